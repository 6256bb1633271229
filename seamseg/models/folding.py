"""Conversion of a trained network for inference: norms are folded into the convolutions before them.

Only layers that are exactly of the classes known here, without hooks, are replaced; all others, and all parts of other
packages, run as they are, with their norms.

At inference a norm is `act((x - mean) / sqrt(var + eps) * gamma + bias)` with constants (in-place ABN: `gamma =
|weight| + eps`; docs/contract.md, section 3), which the kernel and the bias of a convolution can absorb. Folding
happens in float64.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from seamseg.models.backbones.base import Backbone
from seamseg.models.backbones.preactivation import PreActivationBlock, Transition
from seamseg.models.backbones.resnet import ResidualBlock
from seamseg.models.heads.roi import ROIHead
from seamseg.models.heads.rpn import RPNHead
from seamseg.models.heads.semantic import MiniDeepLab
from seamseg.models.network import Network, copied
from seamseg.models.semantic import DeeplabV3
from seamseg.ops.activation import activate, activate_
from seamseg.ops.fused import PRECISIONS, FusedConv2d, FusedLinear, compute_dtype, use_winograd
from seamseg.ops.norm import (
    ABN,
    CONVOLUTIONS,
    InPlaceABN,
    InPlaceABNSync,
    NormSequential,
    has_hooks,
    is_plain,
    is_tiling,
)
from seamseg.ops.pooling import box_filter_pool
from seamseg.utils.errors import InputError

_SEQUENCES = (nn.Sequential, NormSequential, Transition)
"""Sequences whose layers run one after the other."""

Net = TypeVar("Net", bound=Network)
Module = TypeVar("Module", bound=nn.Module)


class Activation(nn.Module):
    """What remains of a norm whose scale and offset are in the layers before it, computed in place."""

    def __init__(self, activation: str, activation_param: float) -> None:
        super().__init__()
        self.activation = activation
        self.activation_param = activation_param

    def forward(self, x: Tensor) -> Tensor:
        """Return `act(x)` in the memory of `x`."""
        return activate_(x, self.activation, self.activation_param)


class ChannelwiseActivation(Activation):
    """A norm at inference that no convolution precedes: `act(x * scale + offset)` with scale and offset `C`."""

    def __init__(self, scale: Tensor, offset: Tensor, activation: str, activation_param: float) -> None:
        super().__init__(activation, activation_param)
        self.scale = nn.Parameter(scale.view(1, -1, 1, 1), requires_grad=False)
        self.offset = nn.Parameter(offset.view(1, -1, 1, 1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x C x ...` to the same shape, a new tensor."""
        shape = (1, -1, *[1] * (x.dim() - 2))
        return super().forward(torch.addcmul(self.offset.view(shape), x, self.scale.view(shape)))


class FoldedBlock(nn.Module):
    """A residual block: its last convolution adds the shortcut, and has the activation that follows the sum, if any.

    The shortcut is the input without a `projection`. `first` is the norm of a block that begins with one.
    """

    def __init__(
        self, convs: Sequence[FusedConv2d], projection: FusedConv2d | None, first: nn.Module | None = None
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
        """Compute what :class:`seamseg.models.semantic.DeeplabV3` does."""
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


def fold_abn(net: Net) -> Net:
    """Return a copy of a network for inference only, which computes the same outputs faster.

    Layers with norms of other kinds (group norm, none, or without running statistics), with hooks, of classes derived
    from known ones, and in modules of other packages stay as they are.
    """
    return fold_layers(net).with_options(channels_last=True).eval()


def fold_layers(net: Module) -> Module:
    """Do what :func:`fold_abn` does for any module made of this package's layers, for example a classifier."""
    folded = copied(net).eval().requires_grad_(False)
    _fold(folded)
    return folded


def for_inference(net: Net, device: torch.device, precision: str = "fp32") -> Net:
    """Return a folded copy of a network on a device, with a compute dtype; its predictions stay float32 or integers.

    A network that is not :attr:`Network.of_parts` is moved only. In fp32 on a CPU, 3x3 convolutions are computed by
    Winograd's algorithm, see :mod:`seamseg.ops.fused`. InputError as of :func:`choose_precision`.
    """
    dtype = choose_precision(precision, device)
    if not net.of_parts:
        return net.to(device).eval()
    folded = fold_abn(net).to(device=device, dtype=dtype)
    if device.type == "cpu" and dtype == torch.float32:
        # the 3x3 convolutions take most of the time: they have hundreds of channels
        use_winograd(folded, regions="roi_head")
    return folded


def choose_precision(precision: str, device: torch.device) -> torch.dtype:
    """Return the compute dtype: fp32, bf16, fp16 (GPU only), or auto: bf16 where it is faster than fp32.

    InputError if the precision is unknown, or not available on this device.
    """
    if precision not in ("auto", *PRECISIONS):
        raise InputError(f"`precision={precision}`: choose one of auto, {', '.join(PRECISIONS)}")
    if precision == "fp16" and device.type != "cuda":
        raise InputError(f"`precision=fp16` needs a GPU, the device is {device}: choose bf16 or fp32")
    return compute_dtype(precision, device)


def _fold(module: nn.Module) -> None:
    """Fold the norms below a module in place, unless it may do what the package does not know."""
    if type(module).__module__.partition(".")[0] not in ("seamseg", "timm", "torch") or has_hooks(module):
        return
    if isinstance(module, ROIHead) and is_plain(module.fc, NormSequential):
        _fold_pairs(module.fc, nn.Linear)
    for name, child in module._modules.items():
        fold = _FOLDS.get(type(child))
        if child is not None and fold is not None and all(map(_is_known, child.modules())):
            module._modules[name] = fold(child)
        elif child is not None:
            _fold(child)
    if type(module) in _SEQUENCES:
        _fold_pairs(module, nn.Conv2d)
    if type(module) in _SEQUENCES or isinstance(module, Backbone):
        for name, child in module._modules.items():
            module._modules[name] = _channelwise(child) or child


class _Affine(NamedTuple):
    """A norm at inference, `act(x * scale + offset)`: scale and offset `C` (float64), name and parameter of `act`."""

    scale: Tensor
    offset: Tensor
    activation: tuple[str, float]


def _affine(norm: object) -> _Affine | None:
    """Return what a norm computes at inference; None if it is no such affine map."""
    if not is_plain(norm, ABN, InPlaceABN, InPlaceABNSync):
        return None
    # a module around it may keep it in training mode
    if norm.training or norm.running_mean is None or norm.running_var is None:
        return None
    mean, invstd = norm.running_mean.double(), torch.rsqrt(norm.running_var.double() + norm.eps)
    gamma = torch.ones_like(mean) if norm.weight is None else norm.weight.detach().double()
    if isinstance(norm, InPlaceABN) and norm.weight is not None:
        gamma = gamma.abs() + norm.eps
    scale = gamma * invstd
    beta = torch.zeros_like(mean) if norm.bias is None else norm.bias.detach().double()
    return _Affine(scale, beta - mean * scale, (norm.activation, norm.activation_param))


def _channelwise(norm: object) -> ChannelwiseActivation | None:
    """Return a norm that no convolution precedes as a layer."""
    affine = _affine(norm)
    if affine is None:
        return None
    dtype = norm.running_mean.dtype  # type: ignore[attr-defined]
    return ChannelwiseActivation(affine.scale.to(dtype), affine.offset.to(dtype), *affine.activation)


def _is_convolution(layer: object) -> TypeGuard[nn.Conv2d]:
    """Return whether :class:`FusedConv2d` computes a layer."""
    if not is_plain(layer, *CONVOLUTIONS):
        return False
    # a computed weight, as of pruning, is no parameter
    return "weight" in layer._parameters and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _is_known(layer: nn.Module) -> bool:
    """Return whether a part of a block or head is of the classes that its fold expects."""
    return _is_convolution(layer) or _affine(layer) is not None or is_plain(layer, *_FOLDS, *_CONTAINERS)


def _scaled(weight: Tensor, bias: Tensor | None, affine: _Affine, axis: int = 0) -> tuple[Tensor, Tensor]:
    shape = [1] * weight.dim()
    shape[axis] = -1
    wide = weight.detach().double() * affine.scale.view(shape)
    total = affine.offset if bias is None else affine.offset + bias.detach().double() * affine.scale
    return wide.to(weight.dtype), total.to(weight.dtype)


def _fuse(conv: Any, norm: object = None) -> FusedConv2d:
    """Return a convolution with the norm after it, if any, as one layer."""
    affine = _affine(norm)
    if affine is not None:
        return FusedConv2d(*_scaled(conv.weight, conv.bias, affine), conv, *affine.activation)
    return FusedConv2d(conv.weight, torch.zeros_like(conv.weight[:, 0, 0, 0]) if conv.bias is None else conv.bias, conv)


def _fold_pairs(sequence: nn.Module, kind: type[nn.Module]) -> None:
    """Fold each norm of a sequence into the layer of a kind before it; the names of the layers stay.

    Into linear layers only where their input is known as `K x I`: with more dimensions, the norm's channels are not
    theirs.
    """
    # with layers that occur twice
    for (name, layer), (norm_name, norm) in itertools.pairwise(list(sequence._modules.items())):
        affine = _affine(norm)
        if affine is None:
            continue
        made: nn.Module = nn.Identity()
        if kind is nn.Conv2d and _is_convolution(layer):
            sequence._modules[name] = _fuse(layer, norm)
        elif kind is nn.Conv2d and is_tiling(layer):
            folded, made = copy.deepcopy(layer), Activation(*affine.activation)
            weight, bias = _scaled(layer.weight, layer.bias, affine, axis=1)
            folded.weight, folded.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
            sequence._modules[name] = folded
        elif kind is nn.Linear and is_plain(layer, nn.Linear):
            sequence._modules[name] = FusedLinear(*_scaled(layer.weight, layer.bias, affine), *affine.activation)
        else:
            continue
        sequence._modules[norm_name] = made


def _fold_block(block: ResidualBlock | PreActivationBlock) -> FoldedBlock:
    layers = [layer for layer in block.convs if not isinstance(layer, nn.Dropout2d)]
    convs = [_fuse(conv, norm) for conv, norm in zip(layers, [*layers[1:], None]) if _is_convolution(conv)]
    if isinstance(block, PreActivationBlock):
        # a norm is folded into the convolution before it; the first one follows a sum
        return FoldedBlock(convs, _fuse(block.proj_conv) if block.has_projection else None, _channelwise(block.bn1))
    convs[-1].activation, convs[-1].activation_param = block.activation, block.activation_param
    return FoldedBlock(convs, _fuse(block.proj_conv, block.proj_bn) if block.has_projection else None)


def _branches(convolutions: Iterable[Any], norm: _Affine) -> list[FusedConv2d]:
    """Fuse convolutions with the norm of their concatenated maps, all of one width."""
    made, start = [], 0
    for conv in convolutions:
        channels = slice(start, start + conv.out_channels)
        part = norm._replace(scale=norm.scale[channels], offset=norm.offset[channels])
        made.append(FusedConv2d(*_scaled(conv.weight, conv.bias, part), conv, *norm.activation))
        start += conv.out_channels
    return made


def _fold_deeplab(module: MiniDeepLab) -> MiniDeepLab:
    # an affine map commutes with the average of the last branch and its padding; the activation follows it
    norm = _affine(module.bn1)
    assert norm is not None
    convs = _branches((module.conv1_3x3, module.conv1_dil, module.conv1_glb), norm._replace(activation=("identity", 0)))
    module.conv1_3x3, module.conv1_dil, module.conv1_glb = convs  # type: ignore[assignment]
    module.bn1 = Activation(*norm.activation)
    module.conv2, module.bn2 = _fuse(module.conv2, module.bn2), nn.Identity()  # type: ignore[assignment]
    return module


def _fold_deeplab_v3(head: DeeplabV3) -> FoldedDeeplabV3:
    first, pooled, last = (_affine(norm) for norm in (head.map_bn, head.global_pooling_bn, head.red_bn))
    assert first is not None and pooled is not None and last is not None
    # the activation comes after the average
    context = FusedConv2d(*_scaled(head.global_pooling_conv.weight, None, pooled), head.global_pooling_conv)
    reduce_context, offset = _scaled(head.pool_red_conv.weight, None, last)
    reduced, _ = _scaled(head.red_conv.weight, None, last)
    # the offset is that of the sum: it is added once, by the context
    zeros = torch.zeros_like(offset)
    joins = [FusedConv2d(part, zeros, head.red_conv) for part in torch.split(reduced, head.hidden_channels, dim=1)]
    joins[-1].activation, joins[-1].activation_param = last.activation
    return FoldedDeeplabV3(
        _branches(head.map_convs, first),
        joins,
        context,
        FusedConv2d(reduce_context, offset, head.pool_red_conv),
        head.pooling_size,
        pooled.activation,
    )


def _fold_rpn(head: RPNHead) -> RPNHead:
    head.conv1, head.bn1 = _fuse(head.conv1, head.bn1), nn.Identity()  # type: ignore[assignment]
    return head


_CONTAINERS = (NormSequential, nn.ModuleList, nn.Dropout2d)

_FOLDS: dict[type, Callable[[Any], nn.Module]] = {
    ResidualBlock: _fold_block,
    PreActivationBlock: _fold_block,
    MiniDeepLab: _fold_deeplab,
    DeeplabV3: _fold_deeplab_v3,
    RPNHead: _fold_rpn,
}
"""Functions that return the folded form of a module."""
