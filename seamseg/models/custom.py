"""Heads, losses and whole networks of a user: what they declare, and how their code is called.

A head reads the pyramid of a network of kind panoptic, instance_seg or detection. It states its losses and its output
maps, so that everything else follows: training on several processes, mixed precision, averages of the weights,
snapshots, prediction in tiles and of several views, files (docs/how-to/extend.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.config import KINDS, Config
from seamseg.config.components import Component
from seamseg.maps.folder import ReadMap
from seamseg.maps.predictions import MapFormat, Prediction
from seamseg.models.backbones.base import NormFactory
from seamseg.models.network import BatchOptions, Losses, Network, Terms
from seamseg.ops.upsample import upsample_cross_entropy
from seamseg.results import result_of
from seamseg.structures import Batch, Features, PackedSequence
from seamseg.utils.errors import SeamsegError, named_errors

__all__ = ["CustomNetwork", "Head", "HeadContext", "Map", "MapFormat", "NetworkContext"]

Map = MapFormat


@dataclass(frozen=True)
class HeadContext:
    """Arguments of a head.

    Attributes
    ----------
    width : channels of all levels of the pyramid
    strides : stride of each level, finest first
    num_stuff, num_thing : classes of the data set; stuff comes first
    norm : factory of norm + activation layers, `norm(channels)`, of `[body] normalization_mode`; of `a+b`, a
    config : the whole configuration
    """

    width: int
    strides: tuple[int, ...]
    num_stuff: int
    num_thing: int
    norm: NormFactory
    config: Config


class Head(nn.Module):
    """A head; derive from it, and register the class with :data:`seamseg.components.head`.

    Parameters
    ----------
    keys : values of the section `[head NAME]`
    context : channels, strides and classes

    Attributes
    ----------
    losses : name of each loss, and the key that holds its weight, or the weight itself
    outputs : the maps that it predicts, by name, each also an output format; an instance may set its own
    exportable : whether `forward` and `predict` can be traced by `torch.export`
    reads : the ground truth that is read from the data set in training, by name
    """

    losses: ClassVar[Mapping[str, str | float]] = {}
    outputs: ClassVar[Mapping[str, Map]] = {}
    exportable: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, ReadMap]] = {}

    def __init__(self, keys: Any, context: HeadContext) -> None:
        super().__init__()
        self.keys = keys
        self.context = context

    def forward(self, features: Features) -> dict[str, Tensor]:
        """Compute maps `N x channels x h x w` by name, at any resolution.

        Parameters
        ----------
        features : `levels` of a padded batch, `N x width x h x w` each, finest first; `padded_size`; `valid_sizes`, the
            `(height, width)` of each image, which is the upper left part of the padded one; in an exported network that
            is `padded_size`
        """
        raise NotImplementedError

    def targets(self, batch: Batch) -> Any:
        """Return the ground truth of the head for a batch, on its device; called without gradients.

        Parameters
        ----------
        batch : `masks`, `L x H x W` ids of each image, after scaling, cropping and flipping; `categories` and
            `iscrowd` by id; `maps` of :attr:`reads` by name, `channels x H x W` float32 of each image; see
            :class:`seamseg.structures.Batch`
        """
        return None

    def loss(self, outputs: dict[str, Tensor], targets: Any) -> dict[str, tuple[Tensor, Tensor | int]]:
        """Return the mean of each of :attr:`losses` and the number of what it averages, 0 for a batch without any.

        The numbers are the weights of processes and batches with `[optimizer] loss_average = step`; by default each
        process has the same weight.
        """
        return {}

    def predict(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the maps of :attr:`outputs`, `N x channels x h x w`, such as sigmoids, from the maps of `forward`."""
        return outputs


def declared_outputs(part: Any) -> dict[str, Map]:
    """Return the output maps of a head or network by name, with `mirror` and `values` of their ground truth."""
    found = {}
    for name, spec in part.outputs.items():
        read = part.reads.get(name)
        if read is not None and read.scale != "none" and spec.values is None:
            spec = replace(spec, values=read.scale)
        if read is not None and spec.mirror is None and read.channels == spec.channels:
            spec = replace(spec, mirror=read.mirror)
        found[name] = spec
    return found


def loss_weight(keys: Any, weight: str | float) -> Any:
    """Return the weight of a loss, which is declared as the name of a key or as a number; None for an unknown key."""
    return getattr(keys, weight, None) if isinstance(weight, str) else weight


HeadOutputs: TypeAlias = tuple[str, Head, dict[str, Tensor]]
"""The name of a head, the head, and what its `forward` has returned."""


def run_heads(heads: Mapping[str, Head], features: Features) -> list[HeadOutputs]:
    """Run all heads on a batch."""
    found: list[HeadOutputs] = []
    for name, head in heads.items():
        with named_errors(f"head {name}", type(head).__module__), unchanged("the levels", features.levels):
            found.append((name, head, head(features)))
    return found


@contextmanager
def unchanged(what: str, tensors: Iterable[Tensor]) -> Iterator[None]:
    """Raise ValueError if tensors are changed in place in a `with` block of a training."""
    trains = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    tensors = list(tensors) if trains else []
    versions = [x._version for x in tensors]
    yield
    if versions != [x._version for x in tensors]:
        raise ValueError(f"changes {what} in place, which other parts use: clone what it changes")


def head_losses(outputs: list[HeadOutputs], batch: Batch) -> Terms:
    """Return the mean and the count of each loss of all heads."""
    losses: Terms = {}
    for name, head, maps in outputs:
        with named_errors(f"head {name}", type(head).__module__), unchanged("the batch", batch.tensors()):
            with torch.no_grad():
                targets = head.targets(replace(batch, maps=dict(batch.maps)))
            losses |= checked_losses(head.losses, head.keys, head.loss(maps, targets))
    return losses


def checked_losses(declared: Mapping[str, Any], keys: Any, found: Any) -> Terms:
    """Return the mean and the count of each loss that a head or network declares; an error if others are found."""
    if not isinstance(found, Mapping):
        raise TypeError(f"loss() must return a dict, returned {type(found).__name__}")
    if found.keys() != declared.keys():
        raise ValueError(f"returns the losses {', '.join(found) or 'none'}, declares {', '.join(declared) or 'none'}")
    for name, (mean, count) in found.items():
        if not isinstance(mean, Tensor) or mean.ndim or (isinstance(count, Tensor) and count.numel() != 1):
            raise ValueError(f"{name} must be a scalar tensor, the mean, and a number, the count")
        if not isinstance(count, Tensor) and count < 0:
            raise ValueError(f"the count of {name} is {count}")
        unused = loss_weight(keys, declared[name]) == 0
        if torch.is_grad_enabled() and not (unused or mean.requires_grad) and count > 0:
            raise ValueError(f"{name} is a constant, without gradient: do not detach it, or give it the weight 0")
    return {name: found[name] for name in declared}


class SemanticImage(NamedTuple):
    """Logits and target of one image, for a loss of the semantic head.

    Attributes
    ----------
    logits : float32 `classes x h x w`
    padded_size : `(height, width)` to which the logits are upsampled
    target : class of each pixel, int64 `H x W` of the valid size, the upper left part of the padded one; 255 void
    """

    logits: Tensor
    padded_size: tuple[int, int]
    target: Tensor

    @property
    def upsampled(self) -> Tensor:
        """The logits of each pixel, `classes x H x W`."""
        height, width = self.target.shape
        full = functional.interpolate(self.logits[None], self.padded_size, mode="bilinear", align_corners=False)
        return full[0, :, :height, :width]

    @property
    def cross_entropy(self) -> Tensor:
        """The cross-entropy of each pixel, `H x W`, 0 for void; without :attr:`upsampled` in memory."""
        height, width = self.target.shape
        return upsample_cross_entropy(self.logits, self.padded_size, (height, width), self.target)


ImageLoss: TypeAlias = Callable[[SemanticImage], Tensor]


def custom_loss(component: Component, keys: Any, image: SemanticImage) -> Tensor:
    """Call the function of a user; SeamsegError if it does not return the loss of an image."""
    with named_errors(component.section, component.module):
        loss: Tensor = component.make(image, keys)
    if not isinstance(loss, Tensor) or loss.ndim:
        given = f"a tensor of {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise SeamsegError(f"{component.section} ({component.file}): must return a scalar tensor, returned {given}")
    return loss


def predicted_maps(heads: Mapping[str, Head], features: Features) -> list[dict[str, Tensor]]:
    """Return the output maps of all heads for each image, `H x W`, or `channels x H x W` of several channels."""
    images: list[dict[str, Tensor]] = [{} for _ in features.valid_sizes]
    for name, head, maps in run_heads(heads, features):
        with named_errors(f"head {name}", type(head).__module__):
            found = head.predict(maps)
            for output, spec in head.outputs.items():
                if output not in found:
                    raise KeyError(f"predict() returns no {output}")
                shape = tuple(found[output].shape)
                if len(shape) != 4 or shape[1] != spec.channels:
                    raise ValueError(f"{output} must be N x {spec.channels} x h x w, is {' x '.join(map(str, shape))}")
                full = resized(found[output], features.padded_size, spec)
                for image, x, (height, width) in zip(images, full, features.valid_sizes, strict=True):
                    part = x[:, :height, :width]
                    image[output] = part[0] if spec.channels == 1 else part
    return images


def resized(maps: Tensor, size: tuple[int, int], spec: Map) -> Tensor:
    """Return maps `N x channels x h x w` at another size as they are declared, float32 or integers."""
    if spec.resize != "nearest":
        return functional.interpolate(maps.float(), size, mode="bilinear", align_corners=False)
    if maps.is_floating_point():
        return functional.interpolate(maps.float(), size, mode="nearest-exact")
    for axis, wanted in zip((2, 3), size):  # by index: as float32 integers above 2^24 would be rounded
        index = torch.arange(maps.shape[axis], dtype=torch.float32, device=maps.device)[None, None]
        maps = maps.index_select(axis, functional.interpolate(index, wanted, mode="nearest-exact").flatten().long())
    return maps


def mirrored_map(x: Tensor, spec: Map) -> Tensor:
    """Return a map `... x H x W` of the mirrored image, with the signs of its channels."""
    flipped = x.flip(-1)
    if spec.mirror is None:
        return flipped
    signs = torch.tensor(spec.mirror, dtype=x.dtype, device=x.device)
    return flipped * (signs[:, None, None] if spec.channels > 1 else signs[0])


@dataclass(frozen=True)
class NetworkContext:
    """Arguments of a network.

    Attributes
    ----------
    num_stuff, num_thing : classes of the data set; stuff comes first
    config : configuration of the training
    norm : factory of norm + activation layers, `norm(channels)`, of `[body] normalization_mode`
    """

    num_stuff: int
    num_thing: int
    config: Config
    norm: NormFactory


class CustomNetwork(nn.Module):
    """A network as a whole; derive from it, and register the class with :func:`seamseg.components.network`.

    Parameters
    ----------
    keys : values of the section `[network NAME]`
    context : number of classes and configuration of the training

    Attributes
    ----------
    kind : what it predicts: panoptic, instance_seg, detection or semantic
    losses : name of each loss, and the key that holds its weight, or the weight itself
    reads : ground truth that is read from the data set in training, by name
    outputs : further maps of its predictions, by name, each also an output format
    predicts_ids : whether `maps["ids"]` of its predictions are the things, in place of masks: integers `H x W`, `k` for
        row `k - 1` of the boxes, classes and scores, 0 elsewhere. Its images are not divided into tiles
    exportable : whether `predict` can be traced by `torch.export`
    defaults : values in place of the defaults of the kind, `section.key` to text
    nms_threshold : IoU from which detections of neighbouring tiles are the same thing
    """

    kind: ClassVar[str] = "panoptic"
    losses: ClassVar[Mapping[str, str | float]] = {}
    reads: ClassVar[Mapping[str, ReadMap]] = {}
    outputs: ClassVar[Mapping[str, MapFormat]] = {}
    defaults: ClassVar[Mapping[str, str]] = {}
    nms_threshold: ClassVar[float | None] = 0.5
    predicts_ids: ClassVar[bool] = False
    exportable: ClassVar[bool] = True

    def __init__(self, keys: Any, context: NetworkContext) -> None:
        super().__init__()
        self.keys = keys
        self.context = context

    @staticmethod
    def completed(keys: Any) -> Any:
        """Return the keys with what a training reads from other files once, before it starts."""
        return keys

    def initialise(self, categories: Sequence[str]) -> str | None:
        """Load the weights that a new training starts from; return a line for its log.

        Parameters
        ----------
        categories : names of the classes of the data set
        """
        return None

    @property
    def backbone(self) -> nn.Module | None:
        """The part whose learning rate has the factor `[optimizer] body_lr_factor`."""
        return None

    def loss(self, batch: Batch) -> dict[str, tuple[Tensor, Tensor | int]]:
        """Return the mean of each of :attr:`losses` and the number of what it averages, 0 for a batch without any.

        Parameters
        ----------
        batch : normalised `images`, `3 x H x W` each, with their ground truth, see :class:`seamseg.structures.Batch`
        """
        raise NotImplementedError

    def predict(self, images: PackedSequence) -> list[Prediction[Tensor]]:
        """Return the predictions for normalised images `3 x H x W`."""
        raise NotImplementedError

    def inference(self, normalise: Any, device: torch.device, dtype: torch.dtype) -> Any:
        """Return what runs the network on images `H x W x 3` uint8; None for :meth:`predict`.

        It is an :class:`seamseg.maps.predictions.InferenceNetwork`, whose `result_type` the caller sets.
        """
        return None


class WholeNetwork(Network):
    """A :class:`CustomNetwork`, of the component `name`, for the trainer and for predictors.

    `has_masks` tells whether its detections have masks.
    """

    compiled_parts = ()
    of_parts = False
    network: CustomNetwork

    def __init__(self, network: CustomNetwork, name: str) -> None:
        super().__init__({"network": network}, BatchOptions(channels_last=False))
        self.name = name
        self.kind, self.result_type = network.kind, result_of(network.kind)
        self.has_masks = KINDS[network.kind].has_masks
        self.nms_threshold = network.nms_threshold
        self.map_formats = declared_outputs(network)
        self.predicts_ids = network.predicts_ids
        self.exportable = network.exportable

    @property
    def backbone(self) -> nn.Module | None:
        """See :class:`CustomNetwork`."""
        return self.network.backbone

    def initialise(self, categories: Sequence[str]) -> str | None:
        """See :class:`CustomNetwork`."""
        with self.errors():
            return self.network.initialise(categories)

    def inference(self, normalise: Any, device: torch.device, dtype: torch.dtype) -> Any:
        """See :class:`CustomNetwork`; moves the network to the device, in evaluation mode."""
        self.to(device).eval()
        with self.errors():
            return self.network.inference(normalise, device, dtype)

    def errors(self) -> Any:
        """Name the network in errors of its code inside a `with` block."""
        return named_errors(f"network {self.name}", type(self.network).__module__)

    def forward(self, images: PackedSequence, targets: Batch) -> Terms:
        """Compute the losses of a batch, not weighted."""
        with self.errors(), unchanged("the batch", targets.tensors()):
            return checked_losses(self.network.losses, self.network.keys, self.network.loss(targets))

    def loss(self, outputs: Terms, targets: Batch) -> Losses:
        """Return the losses that :meth:`forward` has computed."""
        return Losses.of(outputs)

    @torch.no_grad()
    def predict(self, images: PackedSequence, least_score: float = 0.0) -> list[Prediction[Tensor]]:
        """Return the predictions for normalised images `3 x H x W`; `least_score` has no effect."""
        with self.errors():
            found = self.network.predict(images)
            for prediction in found:
                self._check(prediction)
            return found

    def _check(self, prediction: Prediction[Tensor]) -> None:
        """Raise ValueError if a map is missing or of another shape, or a class or an id is out of range."""
        maps, size = prediction.maps, tuple(prediction.size)
        if "ids" in maps and not self.predicts_ids:
            raise ValueError("maps['ids'] need the attribute predicts_ids = True of the class")
        channels = {name: spec.channels for name, spec in self.network.outputs.items()}
        for name, count in (channels | ({"ids": 1} if self.predicts_ids else {})).items():
            shape, found = size if count == 1 else (count, *size), tuple(maps[name].shape) if name in maps else None
            if found != shape:
                raise ValueError(f"predict() must return maps[{name!r}] of shape {shape}, returned {found}")
        if torch.compiler.is_exporting():
            return
        ranges = [("classes", prediction.classes, self.network.context.num_thing - 1)]
        if self.predicts_ids:
            ranges.append(("maps['ids']", maps["ids"], len(prediction.scores)))
        ranges = [(name, x, most) for name, x, most in ranges if x is not None and x.numel()]
        # one wait for a GPU
        ends = torch.stack([end for _, x, _ in ranges for end in x.aminmax()]).tolist() if ranges else []
        for (name, x, most), least, largest in zip(ranges, ends[::2], ends[1::2], strict=True):
            if x.is_floating_point() or not 0 <= least <= largest <= most:
                raise ValueError(f"{name} must be integers from 0 to {most}, found {least} to {largest}")
