"""The parts of the network for inference, with norms folded into the convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.ops.activation import activate, activate_
from seamseg.ops.fused import FusedConv2d, FusedLinear
from seamseg.ops.pooling import box_filter_pool


class ChannelwiseActivation(nn.Module):
    """A norm at inference that no convolution precedes: `act(x * scale + offset)` with scale and offset `C`."""

    def __init__(self, scale: Tensor, offset: Tensor, activation: str, activation_param: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(scale.view(1, -1, 1, 1), requires_grad=False)
        self.offset = nn.Parameter(offset.view(1, -1, 1, 1), requires_grad=False)
        self.activation = activation
        self.activation_param = activation_param

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x C x ...` to the same shape, a new tensor."""
        shape = (1, -1, *[1] * (x.dim() - 2))
        y = torch.addcmul(self.offset.view(shape), x, self.scale.view(shape))
        return activate_(y, self.activation, self.activation_param)


class FoldedBlock(nn.Module):
    """A residual block: its last convolution adds the shortcut, and has the activation that follows the sum, if any.

    The shortcut is the input without a `projection`. `first` is the norm of a block that begins with one.
    """

    def __init__(
        self,
        convs: Sequence[FusedConv2d],
        projection: FusedConv2d | None,
        first: ChannelwiseActivation | None = None,
    ) -> None:
        super().__init__()
        self.first = first
        self.convs = nn.ModuleList(convs)
        self.projection = projection

    def forward(self, x: Tensor) -> Tensor:
        """Compute what a `ResidualBlock` or `PreActivationBlock` of :mod:`seamseg.models.backbones` does."""
        y = x if self.first is None else self.first(x)
        shortcut = x if self.projection is None else self.projection(y)
        for conv in list(self.convs)[:-1]:
            y = conv(y)
        out: Tensor = self.convs[-1](y, shortcut)
        return out


class FoldedDenseModule(nn.Module):
    """The layers of a DenseNet, each on the maps of all before it: norm, 1x1 and 3x3 convolution."""

    def __init__(
        self, norms: Sequence[ChannelwiseActivation], first: Sequence[FusedConv2d], second: Sequence[FusedConv2d]
    ) -> None:
        super().__init__()
        self.norms, self.first, self.second = (nn.ModuleList(layers) for layers in (norms, first, second))

    def forward(self, x: Tensor) -> Tensor:
        """Compute what :class:`seamseg.models.backbones.densenet.DenseModule` does."""
        for norm, first, second in zip(self.norms, self.first, self.second):
            x = torch.cat((x, second(first(norm(x)))), dim=1)
        return x


class FoldedDeepLab(nn.Module):
    """A level's context, without the concatenation: its 1x1 convolution, `joins`, is a sum over the three branches.

    `context` has no activation: it is `activation`, after the average. The last of the joins has that of the sum.
    """

    def __init__(
        self,
        local: FusedConv2d,
        wide: FusedConv2d,
        context: FusedConv2d,
        joins: Sequence[FusedConv2d],
        pooling_size: tuple[int, int],
        activation: tuple[str, float],
    ) -> None:
        super().__init__()
        self.local, self.wide, self.context = local, wide, context
        self.joins = nn.ModuleList(joins)
        self.pooling_size = pooling_size
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Compute what :class:`seamseg.models.heads.semantic.MiniDeepLab` does."""
        # an affine map commutes with the average and its padding
        context = box_filter_pool(self.context(x), self.pooling_size)
        total = self.joins[0](activate(context, *self.activation))
        total = self.joins[1](self.local(x), total)
        y: Tensor = self.joins[2](self.wide(x), total)
        return y


class FoldedDeeplabV3(nn.Module):
    """The head of DeepLabV3, without the concatenation: its reduction, `joins`, is a sum over the branches.

    `context` has no activation: it is `pooled_activation`, after the average. `reduce_context` has the offset of the
    sum, the last of the joins its activation. Without `pooling_size` the average is the mean of the map.
    """

    def __init__(
        self,
        branches: Sequence[FusedConv2d],
        joins: Sequence[FusedConv2d],
        context: FusedConv2d,
        reduce_context: FusedConv2d,
        pooling_size: tuple[int, int] | None,
        pooled_activation: tuple[str, float],
    ) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.joins = nn.ModuleList(joins)
        self.context = context
        self.reduce_context = reduce_context
        self.pooling_size = pooling_size
        self.pooled_activation = pooled_activation

    def forward(self, x: Tensor) -> Tensor:
        """Compute what :class:`seamseg.models.heads.deeplab.DeeplabV3` does."""
        if self.pooling_size is None:
            pooled = self.context(x.mean((2, 3), keepdim=True))
        else:
            # an affine map commutes with the average and its padding
            pooled = box_filter_pool(self.context(x), self.pooling_size)
        total: Tensor = self.reduce_context(activate(pooled, *self.pooled_activation))
        if total.shape != x.shape[:1] + total.shape[1:2] + x.shape[2:]:
            total = total.expand(-1, -1, *x.shape[2:]).contiguous(memory_format=torch.channels_last)
        for branch, join in zip(self.branches, self.joins):
            total = join(branch(x), total)
        return total


class FoldedSemanticHead(nn.Module):
    """Class logits for every cell of the finest level; its classifier is a 1x1 convolution a level."""

    def __init__(self, output: Sequence[nn.Module], classifiers: Sequence[FusedConv2d], min_level: int) -> None:
        super().__init__()
        self.output = nn.ModuleList(output)
        self.classifiers = nn.ModuleList(classifiers)
        self.min_level = min_level

    def forward(self, levels: Sequence[Tensor]) -> Tensor:
        """Compute what :class:`seamseg.models.heads.semantic.SemanticHead` does."""
        used = levels[self.min_level : self.min_level + len(self.output)]
        parts = [classify(module(x)) for classify, module, x in zip(self.classifiers, self.output, used)]
        logits: Tensor = parts[0]
        for part in parts[1:]:
            logits.add_(functional.interpolate(part, size=logits.shape[-2:], mode="bilinear", align_corners=False))
        return logits


class FoldedRPNHead(nn.Module):
    """Objectness and box codes from one 1x1 convolution, `scores`, for `num_anchors` anchors of a cell."""

    def __init__(self, hidden: FusedConv2d, scores: FusedConv2d, num_anchors: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.scores = scores
        self.num_anchors = num_anchors

    def forward(self, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
        """Compute what :class:`seamseg.models.heads.rpn.RPNHead` does."""
        obj_logits, bbx_logits, shapes = [], [], []
        for level, x in enumerate(levels):
            scores = self.scores(self.hidden(x, level=level), level=level).permute(0, 2, 3, 1)
            n, h, w, _ = scores.shape
            obj_logits.append(scores[..., : self.num_anchors].reshape(n, -1))
            bbx_logits.append(scores[..., self.num_anchors :].reshape(n, -1, 4))
            shapes.append((h, w))
        return torch.cat(obj_logits, dim=1), torch.cat(bbx_logits, dim=1), shapes


class FoldedBoxBranch(nn.Module):
    """The fully connected layers of the box branch, on regions flattened as `h x w x C` rather than `C x h x w`."""

    def __init__(self, first: FusedLinear, second: FusedLinear) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, x: Tensor) -> Tensor:
        """Map pooled features `K x C x h x w` to `K x fc_channels`."""
        made: Tensor = self.second(self.first(x.permute(0, 2, 3, 1).flatten(1)))
        return made


class FoldedUpsampling(nn.Module):
    """A transposed convolution with its activation, whose windows do not overlap: a 1x1 convolution to all their cells.

    From a weight `I x O x side x side` and a bias `O`; the stride is the side.
    """

    def __init__(self, weight: Tensor, bias: Tensor, activation: str, activation_param: float) -> None:
        super().__init__()
        inputs, self.channels, self.side, _ = weight.shape
        like = nn.Conv2d(1, 1, 1)
        cells = weight.permute(2, 3, 1, 0).reshape(-1, inputs, 1, 1)
        self.cells = FusedConv2d(cells, bias.repeat(self.side**2), like, activation, activation_param)

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x I x h x w` to `N x O x (side h) x (side w)`."""
        n, _, h, w = x.shape
        # not pixel_shuffle, whose gradient fails for no maps
        y = self.cells(x).unflatten(1, (self.side, self.side, self.channels)).permute(0, 3, 4, 1, 5, 2)
        moved: Tensor = y.reshape(n, self.channels, h * self.side, w * self.side)
        return moved

    def project(self, x: Tensor, weight: Tensor) -> Tensor:
        """Map `N x I x h x w` and weights `N x O` to products `N x (side h) x (side w)` of the upsampled channels."""
        n, _, h, w = x.shape
        pixels = self.cells(x).permute(0, 2, 3, 1).reshape(n, h * w * self.side**2, self.channels)
        products = torch.bmm(pixels, weight[:, :, None]).view(n, h, w, self.side, self.side)
        return products.transpose(2, 3).reshape(n, h * self.side, w * self.side)
