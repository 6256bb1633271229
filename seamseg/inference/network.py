"""A trained network that torch executes, for a predictor."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from seamseg.checkpoints.bundle import ModelFile, kind_of, load_network
from seamseg.config.kinds import SEAMLESS
from seamseg.data.input_size import InputSize
from seamseg.data.transforms import Normalise
from seamseg.fusion import download
from seamseg.inference.acceleration import CudaGraphCache, accelerated
from seamseg.inference.options import OF_PARTS, Augmentation, InferenceOptions
from seamseg.inference.tta import predict_augmented
from seamseg.maps.predictions import ArrayPrediction, InferenceNetwork
from seamseg.models.folding import choose_precision, for_inference
from seamseg.models.network import Network
from seamseg.structures import PackedSequence
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import InputError
from seamseg.utils.launcher import is_main_process
from seamseg.utils.output import echo, warn
from seamseg.utils.progress import is_quiet

_REENTRANT = ("seamseg", "torch")
"""Packages whose layers keep nothing of a forward pass."""


class TorchNetwork(InferenceNetwork):
    """A network on a device, to which it is moved, in evaluation mode.

    `normalise` converts bytes to its input; `augmentation` has the views of each image, None for one plain view, which
    `tta_fusion` merges for a semantic network; `averaged` tells whether the weights are a moving average.
    """

    def __init__(
        self,
        net: Network,
        normalise: Normalise,
        device: torch.device,
        augmentation: Augmentation | None = None,
        tta_fusion: str = "mean",
        averaged: bool = False,
    ) -> None:
        self.net: Any = net.to(device).eval()
        self.normalise = copy.copy(normalise).to(device)
        self.kind = net.kind
        self.precision = str(net.dtype).removeprefix("torch.")
        self.device = device
        self.on_gpu = device.type != "cpu"
        self.augmentation = augmentation
        self.tta_fusion = tta_fusion
        self.averaged = averaged
        self.nms_threshold = net.nms_threshold
        self.map_formats = net.map_formats
        if net.predicts_ids:
            self.tiles_problem = f"the network {self.net.name} predicts ids, which tiles do not share"

    @property
    def images_at_a_time(self) -> int:
        """See :class:`seamseg.maps.predictions.InferenceNetwork`; 1 also for layers of others and compiled networks.

        Layers of others may keep what they compute, and compiled code may not be called from several threads.
        """
        ours = all(type(module).__module__.partition(".")[0] in _REENTRANT for module in self.net.modules())
        if self.on_gpu or not ours or self.net.compiled or self.net.options.run_dense is not None:
            return 1
        return torch.get_num_threads()

    @property
    def graph_cache(self) -> CudaGraphCache | None:
        """CUDA graphs of the network, if it uses any; they are dropped if the memory does not suffice."""
        run = self.net.options.run_dense
        return run if isinstance(run, CudaGraphCache) else None

    def run(self, images: Sequence[np.ndarray], least_score: float = 0.0) -> list[ArrayPrediction]:
        """See :class:`seamseg.maps.predictions.InferenceNetwork`; without enough memory, again without CUDA graphs."""
        while True:
            try:
                return self._forward(images, least_score)
            except Exception as error:
                graphs = self.graph_cache
                if graphs is None or len(graphs) == 0 or not lacks_memory(error):
                    raise
            # after the handler: the error keeps tensors of the network alive
            graphs.clear()

    def _forward(self, images: Sequence[np.ndarray], least_score: float) -> list[ArrayPrediction]:
        with torch.inference_mode():
            on_device = [self.prepare(image) for image in images]
            if self.augmentation is None:
                predictions = self.net.predict(PackedSequence(on_device), least_score=least_score)
            else:
                predictions = predict_augmented(self.net, on_device, self.augmentation, self.tta_fusion)
        return [download(p) for p in predictions]

    def prepare(self, image: np.ndarray) -> torch.Tensor:
        """Return the input `3 x H x W` on the device for an image `H x W x 3` uint8."""
        # torch warns about arrays that are read-only
        pixels = torch.from_numpy(image if image.flags.writeable else image.copy())
        return self.normalise(pixels.to(self.device, non_blocking=True).permute(2, 0, 1))


def run_by_torch(
    net: Network, normalise: Normalise, device: torch.device, dtype: torch.dtype = torch.float32
) -> InferenceNetwork:
    """Return a network as it is, without views, for a predictor; `dtype` is for networks that run themselves."""
    own = net.inference(copy.copy(normalise), device, dtype)
    return TorchNetwork(net, normalise, device) if own is None else cast(InferenceNetwork, own)


class TrainedModel:
    """A trained model that is opened; see :class:`seamseg.inference.predictor.OpenedModel`."""

    def __init__(self, opened: ModelFile, device: torch.device, options: InferenceOptions) -> None:
        self._opened, self._device = opened, device
        self.name, self.config, self.kind = opened.name, opened.config, opened.config.kind
        if self.config.general.network != SEAMLESS and (name := options.changed(OF_PARTS)):
            raise InputError(f"`{name}` is for networks of body and heads, not for {self.config.general.network}")
        self.metadata = opened.metadata.without_images()
        self.reference: InputSize | None = opened.reference

    def input_size(self, options: InferenceOptions) -> InputSize:
        """Return the size of the network's input."""
        return options.input_size(self.config)

    def build(self, options: InferenceOptions) -> InferenceNetwork:
        """Return the network."""
        opened, device = self._opened, self._device
        net, report = load_network(opened)
        loading = opened.config.dataloader
        normalise = Normalise(loading.rgb_mean, loading.rgb_std)
        self._state_components()
        if self.config.general.network != SEAMLESS:
            network = run_by_torch(net, normalise, device, choose_precision(options.precision, device))
            network.averaged = report.averaged
            return network
        trained = kind_of(opened.snapshot, opened.name)
        if trained != self.kind and is_main_process() and not is_quiet():
            echo(
                f"{opened.name}: a model for {trained} is used for {self.kind}, without its other parts",
                file=sys.stderr,
            )
        net = for_inference(cast(Any, net), device, options.precision)
        if options.probabilities:
            net = net.with_options(probabilities=True)
        net = accelerated(net, device, options.compile, options.cuda_graphs, options.pad_to)
        return TorchNetwork(net, normalise, device, options.augmentation, options.tta_fusion, report.averaged)

    def _state_components(self) -> None:
        """Warn of components of the training that are not imported, or have changed since."""
        if not is_main_process():
            return
        records = {f"{record.kind} {record.name}": record for record in self._opened.snapshot.components}
        lines = [record.change for record in records.values()]
        for section in self.config.not_loaded:
            if section.startswith("head "):
                # a folder of convert-model has no records
                plain = f"{section} is not imported: name its file with `components=FILE`"
                lines.append(records[section].missing if section in records else plain)
        for line in filter(None, lines):
            warn(f"{self.name}: {line}", stacklevel=2)
