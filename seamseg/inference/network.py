"""A trained network that torch executes, for a predictor."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from seamseg.checkpoints.bundle import ModelFile, kind_of, load_network
from seamseg.config.kinds import SEAMLESS
from seamseg.data.input_size import InputSize
from seamseg.data.transforms import Normalise
from seamseg.fusion import download
from seamseg.inference.cuda_graphs import CudaGraphCache
from seamseg.inference.options import OF_PARTS, Augmentation, InferenceOptions
from seamseg.inference.tta import predict_augmented, segment_augmented
from seamseg.models.custom_network import WholeNetwork
from seamseg.models.folding import choose_precision, for_inference
from seamseg.models.network import Network
from seamseg.models.panoptic import PanopticNet
from seamseg.models.semantic import SemanticNet
from seamseg.predictions import ArrayPrediction, ExtendedNetwork, MapFormat
from seamseg.structures import PackedSequence
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import InputError
from seamseg.utils.launcher import is_main_process
from seamseg.utils.output import echo, warn
from seamseg.utils.progress import is_quiet

_REENTRANT = ("seamseg", "torch")
"""Packages whose layers keep nothing of a forward pass."""


class TorchNetwork(ExtendedNetwork):
    """A network on a device; see :class:`seamseg.inference.predictor.InferenceNetwork`.

    Parameters
    ----------
    net : trained network; is moved to `device` and set to evaluation mode
    normalise : conversion of bytes to the network's input
    device : device to compute on
    augmentation : views of each image; None for one plain view
    tta_fusion : how the views of a semantic network are merged, see :class:`seamseg.inference.options.InferenceOptions`
    averaged : whether the weights are a moving average of those of the training
    """

    uses_torch = True

    def __init__(
        self,
        net: Network,
        normalise: Normalise,
        device: torch.device,
        augmentation: Augmentation | None = None,
        tta_fusion: str = "mean",
        averaged: bool = False,
    ) -> None:
        self.net = net.to(device).eval()
        self.normalise = copy.copy(normalise).to(device)
        self.kind = net.kind
        self.device = device
        self.on_gpu = device.type != "cpu"
        self.augmentation = augmentation
        self.tta_fusion = tta_fusion
        self.averaged = averaged

    @property
    def tiles_problem(self) -> str | None:
        """Why images cannot be processed in tiles; None if they can."""
        whole = isinstance(self.net, WholeNetwork) and self.net.network.predicts_ids
        return f"the network {self.net.name} predicts ids, which tiles do not share" if whole else None

    @property
    def precision(self) -> str:
        """Name of the compute dtype."""
        return str(self.net.dtype).removeprefix("torch.")

    @property
    def nms_threshold(self) -> float | None:
        """IoU from which detections suppress others; None for a semantic network."""
        return self.net.nms_threshold

    @property
    def map_formats(self) -> Mapping[str, MapFormat]:
        """The output maps of custom heads by name."""
        return self.net.map_formats

    @property
    def photos_at_a_time(self) -> int:
        """See :class:`seamseg.predictions.ExtendedNetwork`; 1 also for layers of others and compiled networks.

        Layers of others may keep what they compute, and compiled code may not be called from several threads.
        """
        if self.on_gpu or isinstance(self.net, WholeNetwork):
            return 1
        ours = all(type(module).__module__.partition(".")[0] in _REENTRANT for module in self.net.modules())
        if not ours or self.net.compiled or self.net.options.run_dense is not None:
            return 1
        return torch.get_num_threads()

    @property
    def graph_cache(self) -> CudaGraphCache | None:
        """CUDA graphs of the network, if it uses any; they are dropped if the memory does not suffice."""
        run = self.net.options.run_dense
        return run if isinstance(run, CudaGraphCache) else None

    def run(self, images: Sequence[np.ndarray]) -> list[ArrayPrediction]:
        """Run the network; if the memory does not suffice, drop the CUDA graphs, if any, and run it again."""
        return self.run_for_map(images, 0.0)

    def run_for_map(self, images: Sequence[np.ndarray], score_threshold: float) -> list[ArrayPrediction]:
        """See :class:`seamseg.predictions.ExtendedNetwork`."""
        try:
            return self._forward(images, score_threshold)
        except Exception as error:
            graphs = self.graph_cache
            if graphs is None or len(graphs) == 0 or not lacks_memory(error):
                raise
        # after the handler: the error keeps tensors of the network alive
        graphs.clear()
        return self._forward(images, score_threshold)

    def _forward(self, images: Sequence[np.ndarray], score_threshold: float) -> list[ArrayPrediction]:
        with torch.inference_mode():
            on_device = [self.prepare(image) for image in images]
            if self.augmentation is None and isinstance(self.net, PanopticNet):
                predictions = self.net.predict(PackedSequence(on_device), least_score=score_threshold)
            elif self.augmentation is None:
                predictions = self.net.predict(PackedSequence(on_device))
            elif isinstance(self.net, SemanticNet):
                predictions = segment_augmented(self.net, on_device, self.augmentation, self.tta_fusion)
            else:
                predictions = predict_augmented(cast(PanopticNet, self.net), on_device, self.augmentation)
        return [download(p) for p in predictions]

    def prepare(self, image: np.ndarray) -> torch.Tensor:
        """Return the input `3 x H x W` on the device for an image `H x W x 3` uint8."""
        # torch warns about arrays that are read-only
        pixels = torch.from_numpy(image if image.flags.writeable else image.copy())
        return self.normalise(pixels.to(self.device, non_blocking=True).permute(2, 0, 1))


def run_by_torch(net: Network, normalise: Normalise, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a network as it is, without views, for a predictor; arguments as of :class:`TorchNetwork`."""
    if isinstance(net, WholeNetwork):
        net.to(device).eval()
        with net.errors():
            own = net.network.inference(copy.copy(normalise), device, dtype)
        if own is not None:
            return own
    return TorchNetwork(net, normalise, device)


class TrainedModel:
    """A trained model that is opened; see :class:`seamseg.inference.predictor.OpenedModel`.

    Parameters
    ----------
    opened : the model
    device : device to run it on
    options : see :func:`seamseg.inference.predictor.open_for_inference`
    """

    def __init__(self, opened: ModelFile, device: torch.device, options: InferenceOptions) -> None:
        self._device = device
        self._opened = opened
        self.name = self._opened.name
        self.config = self._opened.config
        self.kind = self.config.kind
        if self.config.general.network != SEAMLESS and (name := options.changed(OF_PARTS)):
            raise InputError(f"`{name}` is for networks of body and heads, not for {self.config.general.network}")
        self.metadata = self._opened.metadata.without_images()
        self.reference: InputSize | None = self._opened.reference

    def input_size(self, options: InferenceOptions) -> InputSize:
        """Return the size of the network's input."""
        return options.input_size(self.config)

    def build(self, options: InferenceOptions) -> Any:
        """Return the network."""
        opened, device = self._opened, self._device
        net, report = load_network(opened)
        loading = opened.config.dataloader
        normalise = Normalise(loading.rgb_mean, loading.rgb_std)
        if isinstance(net, WholeNetwork):
            self._state_components()
            network = run_by_torch(net, normalise, device, choose_precision(options.precision, device))
            network.averaged = report.averaged
            return network
        trained = kind_of(opened.snapshot, opened.name)
        if trained != net.kind and is_main_process() and not is_quiet():
            echo(
                f"{opened.name}: a model for {trained} is used for {net.kind}, without its other parts", file=sys.stderr
            )
        self._state_components()
        net = for_inference(net, device, options.precision)
        if options.probabilities:
            net = net.with_options(probabilities=True)
        net = options.acceleration.apply(net, device)
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
