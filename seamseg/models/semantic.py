"""Semantic segmentation: a backbone with the head of DeepLabV3, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seamseg.models.criterion import Losses
from seamseg.models.heads.deeplab import DeeplabV3
from seamseg.models.heads.semantic import semantic_loss, semantic_target
from seamseg.models.panoptic import mark_sizes_dynamic
from seamseg.ops.upsample import upsample_argmax, upsample_fusion
from seamseg.structures import Batch, PackedSequence, Prediction


class SemanticLogits(NamedTuple):
    """Class logits `N x classes x h x w` of a padded batch, its `(height, width)`, and those of each image in it."""

    logits: Tensor
    padded_size: tuple[int, int]
    valid_sizes: list[tuple[int, int]]


class DenseSegmentation(nn.Module):
    """Body, head and classifier of a network as one module, from a padded batch to its logits.

    Parameters
    ----------
    body, head, cls : of the network
    """

    def __init__(self, body: nn.Module, head: nn.Module, cls: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.cls = cls

    def forward(self, padded: Tensor) -> Tensor:
        """Map `N x 3 x H x W` to logits `N x classes x h x w`."""
        x = self.body(padded)
        # a body may return the outputs of all its stages
        logits: Tensor = self.cls(self.head(list(x.values())[-1] if isinstance(x, dict) else x))
        return logits


@dataclass(frozen=True)
class SemanticOptions:
    """What a :class:`SemanticNet` is besides its layers.

    Parameters
    ----------
    channels_last : run in channels-last memory format
    pad_to : at inference, sides of a batch are padded to multiples of this
    probabilities : predict the probability of the class of each pixel, too
    run_dense : runs the :class:`DenseSegmentation` at inference, for example compiled; None runs its modules in turn

    Raises
    ------
    ValueError
        if `pad_to` is not positive
    """

    channels_last: bool = True
    pad_to: int = 1
    probabilities: bool = False
    run_dense: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        if self.pad_to < 1:
            raise ValueError(f"SemanticOptions: pad_to must be positive, got {self.pad_to}")


class SemanticNet(nn.Module):
    """A backbone, the head of DeepLabV3, and a classifier of each cell (Rota Bulo et al., arXiv 1712.02616).

    The names of the three parts and their state-dict keys are those of the published Mapillary Vistas network.

    Parameters
    ----------
    body : images to features, `N x C x h x w`, or a dict of which the last entry is used
    head : features to features
    cls : 1x1 convolution to class logits
    options : everything else; :meth:`with_options` changes them

    Attributes
    ----------
    memory_format : of the maps and the weights
    compiled : whether the parts were compiled by :meth:`compile_parts`
    """

    def __init__(
        self, body: nn.Module, head: DeeplabV3, cls: nn.Conv2d, options: SemanticOptions = SemanticOptions()
    ) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.cls = cls
        self.options = options
        self.memory_format = torch.channels_last if options.channels_last else torch.contiguous_format
        self.to(memory_format=self.memory_format)
        self.compiled = False

    @property
    def kind(self) -> str:
        """What the network does: semantic."""
        return "semantic"

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the parameters, to which images are converted."""
        return next(self.parameters()).dtype

    def with_options(self, **changes: Any) -> SemanticNet:
        """Return a network that shares the layers of this one and has other :class:`SemanticOptions`."""
        net = SemanticNet(self.body, self.head, self.cls, replace(self.options, **changes))
        net.training, net.compiled = self.training, self.compiled
        return net

    def compile_parts(self, backend: str = "inductor") -> None:
        """Compile body and head in place, for any height and width; state-dict keys stay.

        Parameters
        ----------
        backend : of torch.compile, which runs with the first batch
        """
        self.body.compile(backend=backend)
        self.head.compile(backend=backend)
        self.compiled = True

    def dense_part(self) -> DenseSegmentation:
        """Return all layers as one module, to be compiled or captured in a CUDA graph."""
        return DenseSegmentation(self.body, self.head, self.cls)

    def forward(self, images: PackedSequence) -> SemanticLogits:
        """Compute the class logits of images `3 x H x W`, padded to one size.

        With synchronised norms under torch.distributed all ranks must call this together.
        """
        padded, sizes = images.as_padded(multiple=1 if self.training else self.options.pad_to)
        padded = padded.to(dtype=self.dtype, memory_format=self.memory_format)
        if self.compiled:
            mark_sizes_dynamic([padded])
        run = self.options.run_dense
        logits = self.dense_part()(padded) if self.training or run is None else run(padded)
        return SemanticLogits(logits, (int(padded.shape[-2]), int(padded.shape[-1])), sizes)

    @torch.no_grad()
    def predict(self, images: PackedSequence) -> list[Prediction]:
        """Predict the class of each pixel of images `3 x H x W`.

        Padding influences the result a little: batch only images of one size together if that matters.

        Returns
        -------
        list of Prediction, one an image, without detections

        Raises
        ------
        RuntimeError
            if the network is in training mode
        """
        if self.training:
            raise RuntimeError("SemanticNet.predict: the network is in training mode, call eval() first")
        output = self(images)
        return [self._prediction(x, output.padded_size, size) for x, size in zip(output.logits, output.valid_sizes)]

    def _prediction(self, logits: Tensor, padded_size: tuple[int, int], size: tuple[int, int]) -> Prediction:
        if not self.options.probabilities:
            return class_map_prediction(upsample_argmax(logits, padded_size, size))
        maps = upsample_fusion([logits.float()], padded_size)
        classes, probabilities = (x[: size[0], : size[1]] for x in maps)
        return class_map_prediction(classes, probabilities)


def class_map_prediction(classes: Tensor, probabilities: Tensor | None = None) -> Prediction:
    """Return a prediction without detections: a class map `H x W` int64 and the probability of each pixel, if known."""
    size = int(classes.shape[0]), int(classes.shape[1])
    nothing = torch.zeros(0, device=classes.device)
    return Prediction(nothing.view(0, 4), nothing.long(), nothing, None, classes, size, probabilities)


@dataclass(frozen=True)
class SemanticCriterion:
    """The loss of the network, see :func:`seamseg.models.heads.semantic.semantic_loss`.

    Parameters
    ----------
    ohem : fraction of the pixels of an image, the hardest ones, that the loss averages over; None for all
    max_pooling : power of the loss max-pooling; None for the average
    """

    ohem: float | None = None
    max_pooling: float | None = None

    def __call__(self, output: SemanticLogits, targets: Batch) -> Losses:
        """Compute `sem_loss`, not weighted."""
        pairs = zip(targets.masks, targets.categories)
        classes = [semantic_target(m, c) for m, c in pairs if m is not None and c is not None]
        loss = semantic_loss(output.logits, output.padded_size, classes, self.ohem, self.max_pooling)
        count = torch.full((), len(classes), dtype=torch.float64, device=loss.device)
        return Losses({"sem_loss": loss}, {"sem_loss": count})


class SemanticTrainingModule(nn.Module):
    """The network and its loss as one module, which DistributedDataParallel wraps.

    Parameters
    ----------
    net : the network
    criterion : its loss
    """

    def __init__(self, net: SemanticNet, criterion: SemanticCriterion) -> None:
        super().__init__()
        self.net = net
        self.criterion = criterion

    def forward(self, batch: Batch) -> Losses:
        """Compute the loss of a batch, not weighted."""
        return self.criterion(self.net(batch.images), batch)
