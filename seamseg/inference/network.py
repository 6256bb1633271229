"""A trained network that torch executes, for a predictor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from seamseg.checkpoints.bundle import ModelFile, kind_of, load_built
from seamseg.config import Config
from seamseg.config.components import NotLoaded
from seamseg.config.kinds import SEAMLESS
from seamseg.data.input_size import InputSize
from seamseg.fusion import copy_to_host, download
from seamseg.inference.acceleration import CompiledDense, CudaGraphCache
from seamseg.inference.options import Augmentation, InferenceOptions
from seamseg.inference.tta import predict_augmented
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import ArrayPrediction, InferenceNetwork
from seamseg.models.build import build_network
from seamseg.models.custom import predicted_maps
from seamseg.models.folding import choose_precision, for_inference
from seamseg.models.network import Network, PaddedPredictions
from seamseg.structures import Features, Normalise, PackedSequence
from seamseg.utils.distributed import is_main_process
from seamseg.utils.errors import InputError, lacks_memory
from seamseg.utils.output import console, echo, warn


class TorchNetwork(InferenceNetwork):
    """A network on a device, to which it is moved, in evaluation mode.

    `normalise` converts bytes to its input; `augmentation` has the views of each image, None for one plain view, which
    `tta_fusion` merges for a semantic network; `averaged` tells whether the weights are a moving average. If it is of
    `fixed_size` it computes in tensors whose shapes do not depend on what is found, without waits for the device before
    the result, by CUDA `graphs` if there are any; they are dropped if the memory does not suffice.
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
        self.normalise = normalise
        self.kind, self.result_type = net.kind, net.result_type
        self.precision = str(net.dtype).removeprefix("torch.")
        self.device = device
        self.on_gpu = device.type != "cpu"
        self.augmentation = augmentation
        self.tta_fusion = tta_fusion
        self.averaged = averaged
        self.fixed_size = self.on_gpu and augmentation is None and net.of_parts
        self.graphs: CudaGraphCache | None = None
        self._uploads = torch.cuda.Stream(device) if device.type == "cuda" else None
        # layers of others may keep what they compute, and compiled code may not be called from several threads
        ours = all(type(m).__module__.partition(".")[0] in ("seamseg", "torch") for m in net.modules())
        self.concurrent = ours and not (self.on_gpu or net.compiled or net.options.run_dense)
        self.nms_threshold = net.nms_threshold
        self.map_formats = net.map_formats
        if net.predicts_ids:
            self.tiles_problem = f"the network {self.net.name} predicts ids, which tiles do not share"

    def run(self, images: Sequence[np.ndarray], least_score: float = 0.0) -> list[ArrayPrediction]:
        """See :class:`seamseg.maps.predictions.InferenceNetwork`."""
        return [arrays() for arrays in self.start(images, least_score)]

    def start(self, images: Sequence[np.ndarray], least_score: float = 0.0) -> list[Callable[[], ArrayPrediction]]:
        """See :class:`seamseg.maps.predictions.InferenceNetwork`; without enough memory, again without CUDA graphs."""
        if not self.fixed_size:
            with torch.inference_mode():
                on_device = [self.prepare(image) for image in images]
                if self.augmentation is None:
                    found = self.net.predict(PackedSequence(on_device), least_score=least_score)
                else:
                    found = predict_augmented(self.net, on_device, self.augmentation, self.tta_fusion)
                return [download(p) for p in found]
        while True:
            try:
                return self._start_fixed(images)
            except Exception as error:
                if self.graphs is None or len(self.graphs) == 0 or not lacks_memory(error):
                    raise
            # after the handler: the error keeps tensors of the network alive
            self.graphs.clear()

    def begin_thread(self) -> None:
        """See :class:`seamseg.maps.predictions.InferenceNetwork`; on a GPU the thread gets a stream of its own."""
        if self._uploads is not None:
            stream = torch.cuda.Stream(self.device)
            # the weights may still be under way
            stream.wait_stream(torch.cuda.default_stream(self.device))
            torch.cuda.set_stream(stream)

    @torch.inference_mode()
    def _start_fixed(self, images: Sequence[np.ndarray]) -> list[Callable[[], ArrayPrediction]]:
        compute = self.compute if self.graphs is None else self.graphs
        predictions, found, levels, _ = compute(self._upload(images))
        sizes = [(image.shape[0], image.shape[1]) for image in images]
        features = Features(list(levels), predictions[0].size, sizes)
        of_heads = predicted_maps(self.net.custom_heads, features)
        # before the copies of the images, so that it is there with each of them
        on_host = None if found is None else copy_to_host(found)
        started = []
        for number, (image, whole) in enumerate(zip(images, predictions)):
            height, width = sizes[number]
            semantic = None if whole.semantic is None else whole.semantic[:height, :width]
            maps = {name: x[:height, :width] for name, x in whole.maps.items()} | of_heads[number]
            arrays = download(replace(whole, semantic=semantic, size=(height, width), maps=maps))
            started.append(arrays if on_host is None else partial(self._finish, image, arrays, on_host[number]))
        return started

    def _finish(self, image: np.ndarray, arrays: Callable[[], ArrayPrediction], found: torch.Tensor) -> ArrayPrediction:
        """Return the detections of what was computed in fixed sizes, or compute them without if there may be others."""
        p = arrays()
        count, complete = found.tolist()
        if not complete:
            with torch.inference_mode():
                return download(self.net.predict(PackedSequence([self.prepare(image)]))[0])()
        masks = None if p.mask_logits is None else p.mask_logits[:count]
        return replace(p, boxes=p.boxes[:count], classes=p.classes[:count], scores=p.scores[:count], mask_logits=masks)

    def _upload(self, images: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
        """Send images to the device for :meth:`compute`; neither the host waits, nor what the device computes."""
        sizes = [image.shape[:2] for image in images]
        multiple = self.net.options.pad_to
        height, width = (-(-max(sides) // multiple) * multiple for sides in zip(*sizes))
        pinned = self._uploads is not None
        pixels = torch.empty((len(images), height, width, 3), dtype=torch.uint8, pin_memory=pinned)
        for row, image in zip(pixels.numpy(), images):
            row[: image.shape[0], : image.shape[1]] = image
        both = pixels, torch.tensor(sizes, pin_memory=pinned)
        if self._uploads is None:
            return both
        with torch.cuda.stream(self._uploads):
            sent = both[0].to(self.device, non_blocking=True), both[1].to(self.device, non_blocking=True)
        now = torch.cuda.current_stream(self.device)
        now.wait_stream(self._uploads)
        for x in sent:
            x.record_stream(now)
        return sent

    def compute(self, inputs: tuple[torch.Tensor, torch.Tensor]) -> PaddedPredictions:
        """Predict for images `N x H x W x 3` uint8, and the `(height, width)` of each without its padding, `N x 2`.

        The host does not wait for a GPU; this is what CUDA graphs record.
        """
        pixels, sizes = inputs
        rows, columns = (torch.arange(side, device=pixels.device) for side in pixels.shape[1:3])
        valid = (rows < sizes[:, :1])[:, :, None] & (columns < sizes[:, 1:])[:, None]
        padded = torch.where(valid[:, None], self.normalise(pixels.permute(0, 3, 1, 2)), 0.0)
        found: PaddedPredictions = self.net.predict_padded(padded, sizes)
        return found

    def prepare(self, image: np.ndarray) -> torch.Tensor:
        """Return the input `3 x H x W` on the device for an image `H x W x 3` uint8."""
        # torch warns about arrays that are read-only
        pixels = torch.from_numpy(image if image.flags.writeable else image.copy())
        return self.normalise(pixels.to(self.device, non_blocking=True).permute(2, 0, 1))


def run_by_torch(
    net: Network, normalise: Normalise, device: torch.device, dtype: torch.dtype = torch.float32
) -> InferenceNetwork:
    """Return a network as it is, without views, for a predictor; `dtype` is for networks that run themselves."""
    own = net.inference(normalise, device, dtype)
    if own is None:
        return TorchNetwork(net, normalise, device)
    own.result_type = net.result_type
    return cast(InferenceNetwork, own)


@dataclass
class TrainedModel:
    """A trained model that is opened; see :class:`seamseg.inference.predictor.OpenedModel`."""

    name: str
    config: Config
    kind: str
    metadata: Metadata
    reference: InputSize | None
    opened: ModelFile
    device: torch.device

    def input_size(self, options: InferenceOptions) -> InputSize:
        """Return the size of the network's input."""
        return options.input_size(self.config)

    def build(self, options: InferenceOptions) -> InferenceNetwork:
        """Return the network."""
        opened, device = self.opened, self.device
        if options.cuda_graphs and device.type != "cuda":
            raise InputError(f"`cuda_graphs=True` needs a GPU, the device is {device}")
        build = partial(build_network, opened.config, opened.metadata.num_stuff, opened.metadata.num_thing)
        net, report = load_built(build, opened.snapshot, opened.name)
        loading = opened.config.dataloader
        normalise = Normalise(loading.rgb_mean, loading.rgb_std, device)
        # components of the training that are not imported, or have changed since
        records = {f"{record.kind} {record.name}": record for record in opened.snapshot.components}
        lines = [record.change for record in records.values()]
        for section, keys in self.config.parts.items():
            if isinstance(keys, NotLoaded) and section.startswith("head "):
                # a folder of convert-model has no records
                plain = f"{section} is not imported: name its file with `components=FILE`"
                lines.append(records[section].missing if section in records else plain)
        for line in filter(None, lines):
            if is_main_process():
                warn(f"{self.name}: {line}", stacklevel=2)
        if self.config.general.network != SEAMLESS:
            network = run_by_torch(net, normalise, device, choose_precision(options.precision, device))
            network.averaged = report.averaged
            return network
        trained = kind_of(opened.snapshot, opened.name)
        if trained != self.kind and is_main_process() and not console.quiet:
            echo(
                f"{opened.name}: the {self.kind} part of a {trained} model is used",
                file=sys.stderr,
            )
        net = for_inference(cast(Any, net), device, options.precision)
        if options.probabilities or options.pad_to > 1 or options.compile:
            run_dense = CompiledDense(net, device) if options.compile else None
            net = net.with_options(pad_to=options.pad_to, run_dense=run_dense, probabilities=options.probabilities)
        views = Augmentation.parse(options.tta)
        made = TorchNetwork(net, normalise, device, views, options.tta_fusion, report.averaged)
        if options.cuda_graphs:
            made.graphs = CudaGraphCache(made.compute)
        return made
