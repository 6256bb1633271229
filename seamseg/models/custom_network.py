"""Custom networks as a whole, instead of the one that body, pyramid and heads make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from seamseg.config import Config
from seamseg.maps.folder import ReadMap
from seamseg.maps.predictions import MapFormat, Prediction
from seamseg.models.backbones.base import NormFactory
from seamseg.models.heads.custom import checked_losses, declared_outputs, unchanged
from seamseg.models.network import BatchOptions, Losses, Network, Terms
from seamseg.structures import Batch, PackedSequence
from seamseg.utils.component_errors import named_errors


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

        It is an :class:`seamseg.maps.predictions.InferenceNetwork`.
        """
        return None


@dataclass(frozen=True)
class CustomOptions(BatchOptions):
    """The options of a network as a whole, which runs as it is."""

    channels_last: bool = False
    run_dense: None = None


class WholeNetwork(Network):
    """A :class:`CustomNetwork`, its only part, of the component `name` for the trainer and for predictors."""

    compiled_parts = ()
    of_parts = False
    network: CustomNetwork

    def __init__(self, network: CustomNetwork, name: str) -> None:
        super().__init__({"network": network}, CustomOptions())
        self.name = name
        self.kind = network.kind
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
            return self.network.inference(copy(normalise), device, dtype)

    def errors(self) -> Any:
        """Name the network in errors of its code inside a `with` block."""
        return named_errors(f"network {self.name}", type(self.network).__module__)

    def forward(self, images: PackedSequence, targets: Batch) -> Terms:
        """Compute the losses of a batch, not weighted; SeamsegError if it does not return those that it declares."""
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
        maps, (height, width) = prediction.maps, prediction.size
        shapes: dict[str, tuple[int, ...]] = {
            name: (height, width) if spec.channels == 1 else (spec.channels, height, width)
            for name, spec in self.network.outputs.items()
        }
        if self.network.predicts_ids:
            shapes["ids"] = height, width
        elif "ids" in maps:
            raise ValueError("maps['ids'] need the attribute predicts_ids = True of the class")
        for name, shape in shapes.items():
            found = tuple(maps[name].shape) if name in maps else None
            if found != shape:
                raise ValueError(f"predict() must return maps[{name!r}] of shape {shape}, returned {found}")
        if torch.compiler.is_exporting():
            return
        whole = [("classes", prediction.classes, self.network.context.num_thing - 1)]
        if self.network.predicts_ids:
            whole.append(("maps['ids']", maps["ids"], len(prediction.scores)))
        filled = [(name, x, most) for name, x, most in whole if x is not None and x.numel()]
        # one wait for a GPU
        ends = torch.stack([end for _, x, _ in filled for end in x.aminmax()]).tolist() if filled else []
        for (name, x, most), least, largest in zip(filled, ends[::2], ends[1::2], strict=True):
            if x.is_floating_point() or not 0 <= least <= largest <= most:
                raise ValueError(f"{name} must be integers from 0 to {most}, found {least} to {largest}")
