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
from collections.abc import Callable
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
from seamseg.ops.fused import PRECISIONS, FusedConv2d, FusedLinear, activation_layer, compute_dtype, use_winograd
from seamseg.ops.norm import ABN, CONVOLUTIONS, IN_PLACE, InPlaceABN, NormSequential, is_plain, is_tiling
from seamseg.ops.pooling import box_filter_pool
from seamseg.utils.errors import InputError

_SEQUENCES = (nn.Sequential, NormSequential, Transition, RPNHead)
"""Modules whose layers run one after the other, at least where a norm follows a convolution."""

Net = TypeVar("Net", bound=Network)
Module = TypeVar("Module", bound=nn.Module)


class _Affine(NamedTuple):
    """A norm at inference, `act(x * scale + offset)`: scale and offset `C` (float64), name and parameter of `act`."""

    scale: Tensor
    offset: Tensor
    activation: tuple[str, float]


def _affine(norm: object) -> _Affine | None:
    """Return what a norm computes at inference; None if it is no such affine map."""
    if not is_plain(norm, ABN, *IN_PLACE):
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


def _scaled(layer: Any, affine: _Affine, axis: int = 0) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a layer with a norm after it."""
    shape = [1] * layer.weight.dim()
    shape[axis] = -1
    weight = layer.weight.detach().double() * affine.scale.view(shape)
    bias = affine.offset if layer.bias is None else affine.offset + layer.bias.detach().double() * affine.scale
    return weight.to(layer.weight.dtype), bias.to(layer.weight.dtype)


def _fuse(conv: Any, affine: _Affine | None, first: int = 0) -> FusedConv2d:
    """Return a convolution as one layer with the norm after it, if any, in which its channels begin at `first`."""
    if affine is not None:
        channels = slice(first, first + conv.out_channels)
        affine = affine._replace(scale=affine.scale[channels], offset=affine.offset[channels])
        return FusedConv2d(*_scaled(conv, affine), conv, *affine.activation)
    return FusedConv2d(conv.weight, torch.zeros_like(conv.weight[:, 0, 0, 0]) if conv.bias is None else conv.bias, conv)


class ChannelwiseActivation(nn.Module):
    """A norm at inference that no convolution precedes: `act(x * scale + offset)` with scale and offset `C`."""

    def __init__(self, affine: _Affine, dtype: torch.dtype) -> None:
        super().__init__()
        self.activation = activation_layer(*affine.activation)
        self.scale = nn.Parameter(affine.scale.to(dtype).view(1, -1, 1, 1), requires_grad=False)
        self.offset = nn.Parameter(affine.offset.to(dtype).view(1, -1, 1, 1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x C x ...` to the same shape, a new tensor."""
        shape = (1, -1, *[1] * (x.dim() - 2))
        y: Tensor = self.activation(torch.addcmul(self.offset.view(shape), x, self.scale.view(shape)))
        return y


class FoldedBlock(nn.Module):
    """A residual block: its last convolution adds the shortcut, and has the activation that follows the sum, if any."""

    def __init__(self, block: ResidualBlock | PreActivationBlock) -> None:
        super().__init__()
        layers = [layer for layer in block.convs if not isinstance(layer, nn.Dropout2d)]
        pairs = zip(layers, [*layers[1:], None])
        convs = [_fuse(conv, _affine(norm)) for conv, norm in pairs if isinstance(conv, nn.Conv2d)]
        self.first: nn.Module | None = None
        if isinstance(block, PreActivationBlock):
            # a norm is folded into the convolution before it; the first one follows a sum
            first, last = _affine(block.bn1), None
            assert first is not None
            self.first = ChannelwiseActivation(first, convs[0].weight.dtype)
        else:
            convs[-1].activation, convs[-1].activation_param = block.activation, block.activation_param
            last = _affine(block.proj_bn) if block.has_projection else None
        self.convs = nn.ModuleList(convs)
        self.projection = _fuse(block.proj_conv, last) if block.has_projection else None

    def forward(self, x: Tensor) -> Tensor:
        """Compute what a `ResidualBlock` or `PreActivationBlock` of :mod:`seamseg.models.backbones` does."""
        y = x if self.first is None else self.first(x)
        shortcut = x if self.projection is None else self.projection(y)
        for conv in list(self.convs)[:-1]:
            y = conv(y)
        out: Tensor = self.convs[-1](y, shortcut)
        return out


def _fold_deeplab(module: MiniDeepLab) -> MiniDeepLab:
    # an affine map commutes with the average of the last branch and its padding; the activation follows it
    norm = _affine(module.bn1)
    assert norm is not None
    linear, width = norm._replace(activation=("identity", 0)), module.conv1_3x3.out_channels
    for i, name in enumerate(("conv1_3x3", "conv1_dil", "conv1_glb")):
        setattr(module, name, _fuse(getattr(module, name), linear, i * width))
    module.bn1 = activation_layer(*norm.activation)
    module.conv2, module.bn2 = _fuse(module.conv2, _affine(module.bn2)), nn.Identity()  # type: ignore[assignment]
    return module


class FoldedDeeplabV3(nn.Module):
    """The head of DeepLabV3, without the concatenation: its reduction, `joins`, is a sum over the branches."""

    def __init__(self, head: DeeplabV3) -> None:
        super().__init__()
        first, pooled, last = (_affine(norm) for norm in (head.map_bn, head.global_pooling_bn, head.red_bn))
        assert first is not None and pooled is not None and last is not None
        linear = ("identity", 0.0)
        width = head.hidden_channels
        self.branches = nn.ModuleList(_fuse(conv, first, i * width) for i, conv in enumerate(head.map_convs))
        reduced, offset = _scaled(head.red_conv, last)
        # the context adds the offset of the sum, whose activation is that of the last join
        parts = torch.split(reduced, width, dim=1)
        joins = [FusedConv2d(part, torch.zeros_like(offset), head.red_conv) for part in parts]
        joins[-1].activation, joins[-1].activation_param = last.activation
        self.joins = nn.ModuleList(joins)
        self.context = _fuse(head.global_pooling_conv, pooled._replace(activation=linear))
        self.activation = activation_layer(*pooled.activation)
        self.reduce_context = _fuse(head.pool_red_conv, last._replace(activation=linear))
        self.pooling_size = head.pooling_size

    def forward(self, x: Tensor) -> Tensor:
        """Compute what :class:`seamseg.models.semantic.DeeplabV3` does."""
        if self.pooling_size is None:
            pooled = self.context(x.mean((2, 3), keepdim=True))
        else:
            # an affine map commutes with the average and its padding
            pooled = box_filter_pool(self.context(x), self.pooling_size)
        total: Tensor = self.reduce_context(self.activation(pooled))
        if total.shape != x.shape[:1] + total.shape[1:2] + x.shape[2:]:
            total = total.expand(-1, -1, *x.shape[2:]).contiguous(memory_format=torch.channels_last)
        for branch, join in zip(self.branches, self.joins):
            total = join(branch(x), total)
        return total


_FOLDS: dict[type, Callable[[Any], nn.Module]] = {
    ResidualBlock: FoldedBlock,
    PreActivationBlock: FoldedBlock,
    MiniDeepLab: _fold_deeplab,
    DeeplabV3: FoldedDeeplabV3,
}
"""Functions that return the folded form of a module."""

_PARTS = (*_FOLDS, NormSequential, nn.ModuleList, nn.Dropout2d)
"""Further modules that may be below these."""


def _is_convolution(layer: object) -> TypeGuard[nn.Conv2d]:
    """Return whether :class:`FusedConv2d` computes a layer."""
    if not is_plain(layer, *CONVOLUTIONS):
        return False
    # a computed weight, as of pruning, is no parameter
    return "weight" in layer._parameters and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _fold_pairs(sequence: nn.Module, kind: type[nn.Module]) -> None:
    """Fold each norm of a sequence into the layer of a kind before it; the names of the layers stay."""
    # items: a layer may occur twice
    for (name, layer), (norm_name, norm) in itertools.pairwise(list(sequence._modules.items())):
        affine = _affine(norm)
        if affine is None:
            continue
        made: nn.Module = nn.Identity()
        if kind is nn.Conv2d and _is_convolution(layer):
            sequence._modules[name] = _fuse(layer, affine)
        elif kind is nn.Conv2d and is_tiling(layer):
            folded, made = copy.deepcopy(layer), activation_layer(*affine.activation)
            weight, bias = _scaled(layer, affine, axis=1)
            folded.weight, folded.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
            sequence._modules[name] = folded
        elif kind is nn.Linear and is_plain(layer, nn.Linear):
            sequence._modules[name] = FusedLinear(*_scaled(layer, affine), *affine.activation)
        else:
            continue
        sequence._modules[norm_name] = made


def _fold(module: nn.Module) -> None:
    """Fold the norms below a module in place, unless it may do what the package does not know."""
    known = type(module).__module__.partition(".")[0] in ("seamseg", "timm", "torch")
    if not known or not is_plain(module, type(module)):
        return
    if isinstance(module, ROIHead) and is_plain(module.fc, NormSequential):
        # the input of other linear layers may have more dimensions: the norm's channels are not theirs then
        _fold_pairs(module.fc, nn.Linear)
    for name, child in module._modules.items():
        fold = _FOLDS.get(type(child))
        if child is None:
            continue
        if fold is not None and all(
            _is_convolution(part) or _affine(part) is not None or is_plain(part, *_PARTS) for part in child.modules()
        ):
            module._modules[name] = fold(child)
        else:
            _fold(child)
    if type(module) in _SEQUENCES:
        _fold_pairs(module, nn.Conv2d)
    if type(module) in _SEQUENCES or isinstance(module, Backbone):
        for name, child in module._modules.items():
            # a norm that no convolution precedes
            if (affine := _affine(child)) is not None:
                module._modules[name] = ChannelwiseActivation(affine, child.running_mean.dtype)  # type: ignore[union-attr,arg-type]


def fold_abn(net: Module) -> Module:
    """Return a copy of a network, or another module, for inference only, which computes the same outputs faster.

    Layers with norms of other kinds (group norm, none, or without running statistics), with hooks, of classes derived
    from known ones, and in modules of other packages stay as they are.
    """
    folded = copied(net).eval().requires_grad_(False)
    _fold(folded)
    if isinstance(folded, Network) and not folded.options.channels_last:
        folded = folded.with_options(channels_last=True)
    return folded.eval()


def for_inference(net: Net, device: torch.device, precision: str = "fp32") -> Net:
    """Return a folded copy of a network on a device, with a compute dtype; its predictions stay float32 or integers.

    A network that is not :attr:`Network.of_parts` is moved only. In fp32 on a CPU, 3x3 convolutions that gain are
    computed by Winograd's algorithm, see :mod:`seamseg.ops.fused`. InputError as of :func:`choose_precision`.
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
