"""Base of the networks: options, batches of images as input, losses, and the module of a training step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn

from seamseg.maps.predictions import MapFormat, Prediction
from seamseg.results import ImageResult
from seamseg.structures import Batch, PackedSequence

Terms: TypeAlias = dict[str, tuple[Tensor, "Tensor | int"]]
"""Losses of a batch by name: each the mean over anchors, samples, mask pixels or images, and their number."""

N = TypeVar("N", bound="Network")
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class BatchOptions:
    """How a :class:`Network` takes batches of images; the base of its options.

    With `channels_last` it runs in this memory format; at inference the sides of a batch are padded to multiples of
    `pad_to`, and `run_dense` runs :meth:`Network.dense`, for example compiled, with outputs that the caller owns. With
    `probabilities` a semantic network predicts the probability of the class of each pixel, too.
    """

    channels_last: bool = True
    pad_to: int = 1
    run_dense: Callable[[Tensor], Any] | None = None
    probabilities: bool = False


class Losses(NamedTuple):
    """The losses of a batch by name, in the order of `[optimizer] loss_weights`.

    Attributes
    ----------
    means : scalars, each a mean over anchors, samples, mask pixels or images
    counts : their number, float64 scalars on the same device, by which the means of several batches are weighted
    metrics : scalars that are only reported, such as an accuracy, each a mean over the images
    """

    means: dict[str, Tensor]
    counts: dict[str, Tensor]
    metrics: Mapping[str, Tensor] = MappingProxyType({})

    @staticmethod
    def of(terms: Terms) -> Losses:
        """Return means and counts, these on the device of the means."""
        means, counts = {}, {}
        for name, (mean, count) in terms.items():
            means[name] = mean
            if not isinstance(count, Tensor):
                # filled in on the device, as a copy would block the host
                count = torch.full((), count, dtype=torch.float64, device=mean.device)
            counts[name] = count.double()
        return Losses(means, counts)


class PaddedPredictions(NamedTuple):
    """Predictions of a batch in tensors whose shapes depend on its shape only, with rows of 0 after the detections.

    predictions are in pixels of the padded batch, with a class map of uint8. found, int64 `N x 2`: how many rows of
    each image are detections, and 0 if :meth:`Network.predict` may find others; None if they are all. levels are those
    of the pyramid for custom heads. reads returns what is read beside the input: a CUDA graph does not keep it.
    """

    predictions: list[Prediction[Tensor]]
    found: Tensor | None = None
    levels: Sequence[Tensor] = ()
    reads: Callable[[], Any] | None = None


class Network(nn.Module):
    """Base of the networks. Its parts are its children, in the order of the arguments of the class, before the options.

    A part is None if this network does not have it. `options` are everything else; :meth:`with_options` changes them.

    Attributes
    ----------
    kind : the kind of prediction: panoptic, instance_seg, detection or semantic
    result_type : what a prediction becomes, at the size of the image
    compiled : whether parts were compiled by :meth:`compile_parts`
    custom_heads, map_formats : the custom heads, and the further output maps, by name
    nms_threshold : IoU from which detections suppress others; None for a network without detections
    predicts_ids : whether `maps["ids"]` of the predictions are the things, in place of masks
    run_in_training : runs :meth:`dense` in training, such as a CUDA graph; None to run the layers
    exportable : whether :meth:`predict` can be traced by `torch.export`
    of_parts : whether it has body and heads, which are folded, quantised and exported; False for one that runs as it is
    """

    compiled_parts: ClassVar[tuple[str, ...]] = ("body",)
    dense_parts: ClassVar[tuple[str, ...]] = ()
    of_parts: ClassVar[bool] = True
    options: Any
    kind: str
    result_type: type[ImageResult]
    custom_heads: Mapping[str, Any] = MappingProxyType({})
    map_formats: Mapping[str, MapFormat] = MappingProxyType({})
    nms_threshold: float | None = None
    predicts_ids: bool = False
    exportable: bool = True

    def __init__(self, parts: dict[str, nn.Module | None], options: BatchOptions) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.options = options
        self.memory_format = torch.channels_last if options.channels_last else torch.contiguous_format
        self.to(memory_format=self.memory_format)
        self.compiled = False
        self.run_in_training: Callable[[Tensor], Any] | None = None

    @property
    def backbone(self) -> nn.Module | None:
        """The part whose learning rate has the factor `[optimizer] body_lr_factor`."""
        return None

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the parameters, to which images are converted."""
        return next(self.parameters()).dtype

    def with_options(self: N, **changes: Any) -> N:
        """Return a network with other options and the layers of this one; with copies if `channels_last` differs."""
        make, options = cast(Callable[..., N], type(self)), replace(self.options, **changes)
        shared = options.channels_last == self.options.channels_last
        parts = nn.ModuleDict(self._modules)  # type: ignore[arg-type]
        net = make(*(parts if shared else copied(parts))._modules.values(), options)
        net.training, net.compiled = self.training, self.compiled and shared
        return net

    def loss(self, outputs: Any, targets: Batch) -> Losses:
        """Compute the losses, not weighted, of what :meth:`forward` returned for the images of a batch."""
        raise NotImplementedError

    def predict(self, images: PackedSequence, least_score: float = 0.0) -> list[Prediction[Tensor]]:
        """Return the predictions for normalised images `3 x H x W`; detections up to `least_score` may be left out."""
        raise NotImplementedError

    def predict_padded(self, padded: Tensor, sizes: Tensor) -> PaddedPredictions:
        """Compute :meth:`predict` of all detections without a wait of the host, for networks :attr:`of_parts`.

        `padded` are normalised images `N x 3 x H x W`, with their `(height, width)` in `sizes`, int64 `N x 2`.
        """
        raise NotImplementedError

    def initialise(self, categories: Sequence[str]) -> str | None:
        """Load the network's own weights of a new training for these classes; return a line for its log, if any."""
        return None

    def inference(self, normalise: Any, device: torch.device, dtype: torch.dtype) -> Any:
        """Return the network's own :class:`seamseg.maps.predictions.InferenceNetwork`; None without one."""
        return None

    def dense(self, padded: Tensor) -> Any:
        """Run :attr:`dense_parts`, whose operations depend on the size of the padded batch `N x 3 x H x W` only."""
        raise NotImplementedError

    def step_problem(self) -> str | None:
        """Return why not only shapes decide what a step on a :class:`seamseg.structures.FixedBatch` computes, if so."""
        return "its losses are its own"

    def step_constants(self, outputs: Any) -> Any:
        """Return the tensors that :meth:`forward` read beside its input and the layers, from its outputs."""
        return None

    def compile_parts(self, backend: str = "inductor") -> None:
        """Compile :attr:`compiled_parts` in place at the first batch, for any size; state-dict keys stay."""
        for name in self.compiled_parts:
            part = getattr(self, name)
            if part is not None:
                part.compile(backend=backend)
        self.compiled = True

    def padded(self, images: PackedSequence) -> tuple[Tensor, list[tuple[int, int]]]:
        """Return a batch `N x 3 x H x W` of images, padded to one size, and the `(height, width)` of each image."""
        padded, sizes = images.as_padded(multiple=1 if self.training else self.options.pad_to)
        padded = padded.to(dtype=self.dtype, memory_format=self.memory_format)
        if self.compiled:
            mark_sizes_dynamic([padded])
        return padded, sizes


class TrainingModule(nn.Module):
    """A network and its losses as one module: from a batch to its losses.

    `run_step` computes the losses in their place, such as a CUDA graph; None to run the network.
    """

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net
        self.run_step: Callable[[Batch], Losses] | None = None

    def forward(self, batch: Batch) -> Losses:
        """Compute the losses of a batch, not weighted."""
        if self.run_step is not None:
            return self.run_step(batch)
        outputs = self.net(batch.images, batch)
        return self.net.loss(outputs, batch)


def copied(part: M) -> M:
    """Return a copy of a part of a network, also of one whose hooks compute weights before each call."""
    computed = [x for m in part.modules() for x in vars(m).values() if isinstance(x, Tensor) and x.grad_fn is not None]
    return copy.deepcopy(part, {id(x): x.detach().clone() for x in computed})


def mark_sizes_dynamic(maps: list[Tensor]) -> None:
    """Have `torch.compile` treat height and width of these maps as dynamic, except sides of 1 pixel."""
    for x in maps:
        for dimension in (2, 3):
            if x.shape[dimension] > 1:
                torch._dynamo.maybe_mark_dynamic(x, dimension)
