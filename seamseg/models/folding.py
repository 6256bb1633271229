"""Conversion of a trained network for inference: norms are folded into the convolutions before them.

Only layers that are exactly of the classes known here, without hooks, are replaced; all others, and all parts of other
packages, run as they are, with their norms.

At inference a norm is `act((x - mean) / sqrt(var + eps) * gamma + bias)` with constants (in-place ABN: `gamma =
|weight| + eps`; docs/contract.md, section 3), which the kernel and the bias of a convolution can absorb. Folding
happens in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from seamseg.models.backbones.base import Backbone
from seamseg.models.backbones.densenet import DenseModule, Transition
from seamseg.models.backbones.preactivation import PreActivationBlock
from seamseg.models.backbones.resnet import ResidualBlock
from seamseg.models.folded import (
    ChannelwiseActivation,
    FoldedBlock,
    FoldedBoxBranch,
    FoldedDeepLab,
    FoldedDeeplabV3,
    FoldedDenseModule,
    FoldedRPNHead,
    FoldedSemanticHead,
    FoldedUpsampling,
)
from seamseg.models.heads.deeplab import DeeplabV3
from seamseg.models.heads.roi import ROIHead
from seamseg.models.heads.rpn import RPNHead
from seamseg.models.heads.semantic import MiniDeepLab, SemanticHead
from seamseg.models.network import Network, copied
from seamseg.ops.fused import PRECISIONS, FusedConv2d, FusedLinear, compute_dtype
from seamseg.ops.norm import (
    ABN,
    CONVOLUTIONS,
    InPlaceABN,
    InPlaceABNSync,
    NormSequential,
    has_hooks,
    is_plain,
    is_pointwise,
    is_tiling,
)
from seamseg.ops.winograd import WinogradConv2d, is_suitable
from seamseg.utils.errors import InputError

_SEQUENCES = (nn.Sequential, NormSequential, Transition)
"""Sequences whose layers run one after the other."""

Net = TypeVar("Net", bound=Network)
Module = TypeVar("Module", bound=nn.Module)


def fold_abn(net: Net) -> Net:
    """Return a copy of a network for inference only, which computes the same outputs faster.

    Layers with norms of other kinds (group norm, none, or without running statistics), with hooks, of classes derived
    from known ones, and in modules of other packages stay as they are.
    """
    return fold_layers(net).with_options(channels_last=True).eval()


def fold_layers(net: Module) -> Module:
    """Do what :func:`fold_abn` does for any module made of this package's layers, for example a classifier."""
    folded = copied(net).eval().requires_grad_(False)
    kept = {part for module in folded.modules() if _is_foreign(module) for part in module.modules()}
    for parent in [module for module in folded.modules() if module not in kept]:
        for name, child in list(parent._modules.items()):
            fold = None if child in kept else _FOLDS.get(type(child))
            made = None if fold is None else fold(child)
            if made is not None:
                setattr(parent, name, made)
    rest = [module for module in folded.modules() if module not in kept]
    sequences = [module for module in rest if type(module) in _SEQUENCES]
    for sequence in sequences:
        _fold_pairs(sequence)
    for module in (*sequences, *(module for module in rest if isinstance(module, Backbone))):
        for name, child in list(module._modules.items()):
            if (norm := _channelwise(child)) is not None:
                setattr(module, name, norm)
    return folded


def _is_foreign(module: nn.Module) -> bool:
    """Return whether a module may do what the package does not know: it is of another one, or has hooks."""
    return type(module).__module__.partition(".")[0] not in ("seamseg", "timm", "torch") or has_hooks(module)


def for_inference(net: Net, device: torch.device, precision: str = "fp32") -> Net:
    """Return a folded copy of a network on a device, with a compute dtype; its predictions stay float32 or integers.

    A network that is not :attr:`Network.of_parts` is moved only. In fp32 on a CPU, 3x3 convolutions are computed by
    Winograd's algorithm, see `seamseg/ops/winograd.py`. InputError as of :func:`choose_precision`.
    """
    dtype = choose_precision(precision, device)
    if not net.of_parts:
        return net.to(device).eval()
    folded = fold_abn(net).to(device=device, dtype=dtype)
    if device.type == "cpu" and dtype == torch.float32:
        _use_winograd(folded)
    return folded


def _use_winograd(net: nn.Module) -> None:
    """Replace the 3x3 convolutions of a folded network, most of its time: they have hundreds of channels."""
    for path, parent in list(net.named_modules()):
        for name, child in list(parent.named_children()):
            if is_suitable(child):
                setattr(parent, name, WinogradConv2d(child, regions=path.startswith("roi_head")))


def choose_precision(precision: str, device: torch.device) -> torch.dtype:
    """Return the compute dtype: fp32, bf16, fp16 (GPU only), or auto: bf16 where it is faster than fp32.

    InputError if the precision is unknown, or not available on this device.
    """
    if precision not in ("auto", *PRECISIONS):
        raise InputError(f"`precision={precision}`: choose one of auto, {', '.join(PRECISIONS)}")
    if precision == "fp16" and device.type != "cuda":
        raise InputError(f"`precision=fp16` needs a GPU, the device is {device}: choose bf16 or fp32")
    return compute_dtype(precision, device)


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


def _are_whole(*layers: nn.Module) -> bool:
    """Return whether layers are convolutions without groups, which can be cut by input channels."""
    return all(_is_convolution(layer) and layer.groups == 1 for layer in layers)


def _fuse(conv: object, norm: object) -> FusedConv2d | None:
    """Fuse convolution, norm and activation into one layer."""
    affine = _affine(norm)
    if affine is None or not _is_convolution(conv):
        return None
    return FusedConv2d(*_scaled(conv.weight, conv.bias, affine), conv, *affine.activation)


def _scaled(weight: Tensor, bias: Tensor | None, affine: _Affine, axis: int = 0) -> tuple[Tensor, Tensor]:
    shape = [1] * weight.dim()
    shape[axis] = -1
    wide = weight.detach().double() * affine.scale.view(shape)
    total = affine.offset if bias is None else affine.offset + bias.detach().double() * affine.scale
    return wide.to(weight.dtype), total.to(weight.dtype)


def _plain(conv: nn.Conv2d, columns: slice = slice(None), bias: bool = True) -> FusedConv2d:
    """Return a convolution, or its part for some input channels, as a fused layer without activation."""
    weight = conv.weight[:, columns]
    zeros = torch.zeros(weight.shape[0], dtype=weight.dtype, device=weight.device)
    return FusedConv2d(weight, conv.bias if bias and conv.bias is not None else zeros, conv)


def _fold_pairs(sequence: nn.Module, rows: bool = False) -> None:
    """Fold each norm of a sequence into the layer before it; the names of the layers stay.

    `rows`: also after linear layers, whose input is `K x I`: with more dimensions, the norm's channels are not theirs.
    """
    # with layers that occur twice
    for (name, layer), (norm_name, norm) in itertools.pairwise(list(sequence._modules.items())):
        affine = _affine(norm)
        if affine is None:
            continue
        made: nn.Module | None = _fuse(layer, norm)
        if rows and is_plain(layer, nn.Linear):
            made = FusedLinear(*_scaled(layer.weight, layer.bias, affine), *affine.activation)
        elif is_tiling(layer):
            made = FoldedUpsampling(*_scaled(layer.weight, layer.bias, affine, axis=1), *affine.activation)
        if made is not None:
            setattr(sequence, name, made)
            setattr(sequence, norm_name, nn.Identity())


def _fold_block(block: ResidualBlock) -> FoldedBlock | None:
    layers = _without_dropout(block.convs)
    convs = [_fuse(conv, norm) for conv, norm in zip(layers[::2], layers[1::2])]
    projection = _fuse(block.proj_conv, block.proj_bn) if block.has_projection else None
    made = [conv for conv in convs if conv is not None]
    if not made or 2 * len(made) < len(layers) or (block.has_projection and projection is None):
        return None
    made[-1].activation, made[-1].activation_param = block.activation, block.activation_param
    return FoldedBlock(made, projection)


def _fold_preactivation(block: PreActivationBlock) -> FoldedBlock | None:
    # a norm is folded into the convolution before it; the first one follows a sum
    first = _channelwise(block.bn1)
    layers = _without_dropout(block.convs)
    convs = [_fuse(conv, norm) for conv, norm in zip(layers[::2], layers[1::2])]
    made = [conv for conv in convs if conv is not None]
    plain = [*layers[-1:], block.proj_conv] if block.has_projection else layers[-1:]
    if first is None or 2 * len(made) + 1 != len(layers) or not all(map(_is_convolution, plain)):
        return None
    last, *projection = [_plain(conv) for conv in plain]  # type: ignore[arg-type]
    return FoldedBlock([*made, last], projection[0] if projection else None, first)


def _without_dropout(layers: nn.Module) -> list[nn.Module]:
    """Return the layers of a sequence but those that do nothing at inference; none for a sequence of another class."""
    if not is_plain(layers, NormSequential):
        return []
    return [layer for layer in layers._modules.values() if layer is not None and not is_plain(layer, nn.Dropout2d)]


def _fold_dense(module: DenseModule) -> FoldedDenseModule | None:
    layers = [[*one.children(), *two.children()] for one, two in zip(module.convs1, module.convs3)]
    if any(len(layer) != 4 or not _is_convolution(layer[3]) for layer in layers):
        return None
    norms = [_channelwise(layer[0]) for layer in layers]
    first = [_fuse(layer[1], layer[2]) for layer in layers]
    second = [_plain(layer[3]) for layer in layers]  # type: ignore[arg-type]
    if any(layer is None for layer in (*norms, *first)):
        return None
    return FoldedDenseModule(norms, first, second)  # type: ignore[arg-type]


def _fold_semantic(head: SemanticHead) -> FoldedSemanticHead | None:
    levels = [_fold_deeplab(module) for module in head.output if is_plain(module, MiniDeepLab)]
    made = [level for level in levels if level is not None]
    if len(made) != head.num_levels or len(head.output) != len(made) or not is_pointwise(head.conv_sem):
        return None
    width = head.conv_sem.in_channels // head.num_levels
    cuts = [slice(i * width, (i + 1) * width) for i in range(head.num_levels)]
    classifiers = [_plain(head.conv_sem, cut, bias=i == 0) for i, cut in enumerate(cuts)]
    return FoldedSemanticHead(made, classifiers, head.min_level)


def _branches(convolutions: Iterable[Any], norm: _Affine) -> list[FusedConv2d]:
    """Fuse convolutions with the norm of their concatenated maps, all of one width."""
    made, start = [], 0
    for conv in convolutions:
        channels = slice(start, start + conv.out_channels)
        part = norm._replace(scale=norm.scale[channels], offset=norm.offset[channels])
        made.append(FusedConv2d(*_scaled(conv.weight, conv.bias, part), conv, *norm.activation))
        start += conv.out_channels
    return made


def _fold_deeplab(module: MiniDeepLab) -> FoldedDeepLab | None:
    first, last = _affine(module.bn1), _fuse(module.conv2, module.bn2)
    convolutions = (module.conv1_3x3, module.conv1_dil, module.conv1_glb)
    if first is None or last is None or not _are_whole(*convolutions, module.conv2):
        return None
    local, wide, context = _branches(convolutions, first)
    # its activation comes after the average
    context.activation = "identity"
    parts = torch.split(last.weight, module.conv1_3x3.out_channels, dim=1)
    zeros = torch.zeros_like(last.bias)
    joins = [
        FusedConv2d(parts[2], zeros, module.conv2),
        FusedConv2d(parts[0], zeros, module.conv2),
        FusedConv2d(parts[1], last.bias, module.conv2, last.activation, last.activation_param),
    ]
    return FoldedDeepLab(local, wide, context, joins, module.pooling_size, first.activation)


def _fold_deeplab_v3(head: DeeplabV3) -> FoldedDeeplabV3 | None:
    first, pooled, last = (_affine(norm) for norm in (head.map_bn, head.global_pooling_bn, head.red_bn))
    others = (head.global_pooling_conv, head.red_conv, head.pool_red_conv)
    if first is None or pooled is None or last is None or not _are_whole(*head.map_convs, *others):
        return None
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


def _fold_rpn(head: RPNHead) -> FoldedRPNHead | None:
    hidden = _fuse(head.conv1, head.bn1)
    outputs = (head.conv_obj, head.conv_bbx)
    if hidden is None or not all(is_pointwise(conv) and conv.bias is not None for conv in outputs):
        return None
    weight = torch.cat((head.conv_obj.weight, head.conv_bbx.weight))
    bias = torch.cat([conv.bias for conv in outputs if conv.bias is not None])
    return FoldedRPNHead(hidden, FusedConv2d(weight, bias, head.conv_obj), head.conv_obj.out_channels)


def _fold_roi_head(head: ROIHead) -> None:
    """Fold the box branch in place; the mask branch is folded as a sequence."""
    if is_plain(head.fc, NormSequential):
        _fold_pairs(head.fc, rows=True)
    layers = list(head.fc.children())
    if [type(layer) for layer in layers] == [FusedLinear, nn.Identity] * 2:
        first, second = layers[0], layers[2]
        assert isinstance(first, FusedLinear) and isinstance(second, FusedLinear)
        outputs = first.weight.shape[0]
        h, w = (side // 2 for side in head.roi_size)
        weight = first.weight.view(outputs, -1, h, w).permute(0, 2, 3, 1).reshape(outputs, -1)
        first.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        head.fc = FoldedBoxBranch(first, second)  # type: ignore[assignment]
    for name in ("roi_cls", "roi_bbx"):
        layer = head.get_submodule(name)
        if is_plain(layer, nn.Linear) and layer.bias is not None:
            setattr(head, name, FusedLinear(layer.weight, layer.bias))


_FOLDS: dict[type, Callable[[Any], nn.Module | None]] = {
    ResidualBlock: _fold_block,
    PreActivationBlock: _fold_preactivation,
    DenseModule: _fold_dense,
    SemanticHead: _fold_semantic,
    DeeplabV3: _fold_deeplab_v3,
    RPNHead: _fold_rpn,
    ROIHead: _fold_roi_head,
}
"""Functions that return the folded form of a module; None if it stays, or was changed in place."""
