"""Semantic segmentation: a backbone with the head of DeepLabV3 (Chen et al. 2017, arXiv 1706.05587)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seamseg.config.sections import Sem
from seamseg.maps.predictions import Prediction
from seamseg.models.backbones.base import NormFactory
from seamseg.models.heads.semantic import SemanticLoss
from seamseg.models.network import BatchOptions, Losses, Network, PaddedPredictions
from seamseg.ops.norm import convolve_each, run_layers
from seamseg.ops.pooling import box_filter_pool
from seamseg.ops.upsample import upsample_argmax, upsample_fusion
from seamseg.results import SemanticMap
from seamseg.structures import Batch, PackedSequence


class DeeplabV3(nn.Module):
    """Parallel 1x1 and dilated 3x3 convolutions plus a global branch, reduced to `out_channels`.

    The global branch is the mean of the whole map in training. At inference it is the average of a window around each
    cell, `pooling_size`, as large as the maps of training: the mean of a larger map would be of another kind than in
    training. State-dict keys are as in the published Mapillary Vistas network: `map_convs.0` is the 1x1 convolution,
    the others follow in the order of `dilations`.
    """

    def __init__(self, config: Sem, in_channels: int, norm: NormFactory) -> None:
        super().__init__()
        hidden_channels, out_channels = config.hidden_channels, config.out_channels
        self.pooling_size: tuple[int, int] | None = config.pooling_size
        self.hidden_channels = hidden_channels
        convolutions = [nn.Conv2d(in_channels, hidden_channels, 1, bias=False)]
        convolutions += [
            nn.Conv2d(in_channels, hidden_channels, 3, padding=dilation, dilation=dilation, bias=False)
            for dilation in config.dilations
        ]
        self.map_convs = nn.ModuleList(convolutions)
        self.map_bn = norm(hidden_channels * len(convolutions))
        self.global_pooling_conv = nn.Conv2d(in_channels, hidden_channels, 1, bias=False)
        self.global_pooling_bn = norm(hidden_channels)
        self.red_conv = nn.Conv2d(hidden_channels * len(convolutions), out_channels, 1, bias=False)
        self.pool_red_conv = nn.Conv2d(hidden_channels, out_channels, 1, bias=False)
        self.red_bn = norm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x in_channels x h x w` to `N x out_channels x h x w`."""
        parts, deferred = convolve_each(self.map_bn, self.map_convs, x)
        local = self.map_bn(torch.cat(parts, dim=1), *deferred)
        (local,), of_local = convolve_each(self.red_bn, [self.red_conv], local)
        if self.training or self.pooling_size is None:
            x = run_layers((self.global_pooling_conv, self.global_pooling_bn), x.mean((2, 3), keepdim=True))
        else:
            # a 1x1 convolution without bias commutes with the average and its padding; so fewer channels are averaged
            x = self.global_pooling_bn(box_filter_pool(self.global_pooling_conv(x), self.pooling_size))
        (context,), of_context = convolve_each(self.red_bn, [self.pool_red_conv], x)
        # the sum is linear in both kernels together; the first row, whose gradient is that of the weight, counts once
        deferred = tuple(torch.stack((a[0], a[1] + b[1])) for a, b in zip(of_local, of_context))
        reduced: Tensor = self.red_bn(local + context, *deferred)
        return reduced


class SemanticLogits(NamedTuple):
    """Class logits `N x classes x h x w` of a padded batch, its `(height, width)`, and the size of each image in it."""

    logits: Tensor
    padded_size: tuple[int, int]
    valid_sizes: list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class SemanticOptions(BatchOptions):
    """Settings of a :class:`SemanticNet`; `semantic_loss` is the loss in training."""

    semantic_loss: SemanticLoss | None = None


class SemanticNet(Network):
    """A backbone, the head of DeepLabV3, and a classifier of each cell (Rota Bulo et al., arXiv 1712.02616).

    The names of the three parts and the state-dict keys are as in the published Mapillary Vistas network. The body
    maps images to features `N x C x h x w`, or to a dict of which the last entry is used.
    """

    compiled_parts = ("body", "head")
    dense_parts = ("body", "head", "cls")
    kind, result_type = "semantic", SemanticMap
    body: nn.Module
    head: DeeplabV3
    cls: nn.Conv2d
    options: SemanticOptions

    def __init__(
        self, body: nn.Module, head: DeeplabV3, cls: nn.Conv2d, options: SemanticOptions = SemanticOptions()
    ) -> None:
        super().__init__({"body": body, "head": head, "cls": cls}, options)

    @property
    def backbone(self) -> nn.Module:
        """The body."""
        return self.body

    def dense(self, padded: Tensor) -> Tensor:
        """Map a padded batch `N x 3 x H x W` to logits `N x classes x h x w`."""
        x = self.body(padded)
        # a body may return the outputs of all its stages
        logits: Tensor = self.cls(self.head(list(x.values())[-1] if isinstance(x, dict) else x))
        return logits

    def forward(self, images: PackedSequence, targets: Batch | None = None) -> SemanticLogits:
        """Compute the class logits of images `3 x H x W`, padded to one size; the targets are not used."""
        padded, sizes = self.padded(images)
        run = self.run_in_training if self.training else self.options.run_dense
        logits = self.dense(padded) if run is None else run(padded)
        return SemanticLogits(logits, (int(padded.shape[-2]), int(padded.shape[-1])), sizes)

    def loss(self, outputs: SemanticLogits, targets: Batch) -> Losses:
        """Compute `sem_loss`, not weighted."""
        assert self.options.semantic_loss is not None, "the options have no loss"
        return Losses.of(self.options.semantic_loss(outputs.logits, outputs.padded_size, targets))

    def step_problem(self) -> str | None:
        """See the base class."""
        loss = self.options.semantic_loss
        return "it has no loss" if loss is None else loss.step_problem()

    @torch.no_grad()
    def predict(self, images: PackedSequence, least_score: float = 0.0) -> list[Prediction[Tensor]]:
        """Predict the class of each pixel of images `3 x H x W`, without detections; `least_score` has no effect.

        RuntimeError if the network is in training mode.
        """
        if self.training:
            raise RuntimeError("SemanticNet.predict: the network is in training mode, call eval() first")
        logits, padded, sizes = self(images)
        if not self.options.probabilities:
            return [class_map_prediction(upsample_argmax(x, padded, size)) for x, size in zip(logits, sizes)]
        maps = (upsample_fusion([x.float()], padded) for x in logits)
        return [class_map_prediction(*(x[:h, :w] for x in both)) for both, (h, w) in zip(maps, sizes)]

    @torch.no_grad()
    def predict_padded(self, padded: Tensor, sizes: Tensor) -> PaddedPredictions:
        """See :class:`seamseg.models.network.Network`."""
        found = self.predict(PackedSequence(list(padded)))
        return PaddedPredictions([replace(p, semantic=p.semantic.byte()) for p in found if p.semantic is not None])


def class_map_prediction(classes: Tensor, probabilities: Tensor | None = None) -> Prediction[Tensor]:
    """Return a prediction without detections: a class map `H x W` int64 and the probability of each pixel, if known."""
    size = int(classes.shape[0]), int(classes.shape[1])
    nothing = torch.zeros(0, device=classes.device)
    maps = {} if probabilities is None else {"probability": probabilities}
    return Prediction(nothing.view(0, 4), nothing.long(), nothing, None, classes, size, maps=maps)
