"""Conversion of a trained network for inference: norms are folded into the convolutions before them.

At inference a norm is `act((x - mean) / sqrt(var + eps) * gamma + bias)` with constants (in-place ABN: `gamma =
|weight| + eps`; docs/contract.md, section 3), which the kernel and the bias of a convolution can absorb. Folding
happens in float64.
"""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from typing import TypeVar

import torch
from torch import Tensor, nn

from seamseg.models.backbones.base import Backbone
from seamseg.models.backbones.densenet import DenseModule
from seamseg.models.backbones.preactivation import PreActivationBlock
from seamseg.models.backbones.residual import ResidualBlock
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
from seamseg.models.network import Network
from seamseg.models.panoptic import PanopticNet
from seamseg.models.quantised import is_quantised
from seamseg.ops.fused import FusedConv2d, FusedLinear, bf16_is_fast
from seamseg.ops.norm import ABN, InPlaceABN
from seamseg.ops.winograd import WinogradConv2d, is_suitable
from seamseg.utils.errors import InputError

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Compute dtypes of a network at inference by name; `auto` chooses one of them."""


Net = TypeVar("Net", bound=Network)
Module = TypeVar("Module", bound=nn.Module)


def fold_abn(net: Net) -> Net:
    """Return a copy of a network for inference only, which computes the same outputs faster.

    Layers with norms of other kinds (group norm, none, or without running statistics) stay as they are.
    """
    return fold_layers(net).with_options(channels_last=True).eval()


def fold_layers(net: Module) -> Module:
    """Do what :func:`fold_abn` does for any module made of this package's layers, for example a classifier."""
    folded = copy.deepcopy(net).eval().requires_grad_(False)
    if is_quantised(folded):
        return folded  # already, before its training
    for parent in list(folded.modules()):
        for name, child in list(parent.named_children()):
            made = _replacement(child)
            if made is not None:
                setattr(parent, name, made)
    if isinstance(folded, PanopticNet) and isinstance(folded.roi_head, ROIHead):
        _fold_roi_head(folded.roi_head)
    _fold_sequences(folded)
    return folded


def _fold_sequences(net: nn.Module) -> None:
    """Fold the norms of sequences into the layers before them; the others are replaced by a scale and an offset."""
    for module in net.modules():
        if isinstance(module, nn.Sequential):
            _fold_pairs(module)
    for module in net.modules():
        if isinstance(module, (nn.Sequential, Backbone)):
            for name, child in list(module.named_children()):
                made = _channelwise(child)
                if made is not None:
                    setattr(module, name, made)


def for_inference(net: Net, device: torch.device, precision: str = "fp32") -> Net:
    """Return the folded network on a device, with a compute dtype; its predictions stay float32 or integers.

    In fp32 on a CPU, 3x3 convolutions are computed by Winograd's algorithm, see `seamseg/ops/winograd.py`.

    Parameters
    ----------
    net : trained network, not changed
    device : device to run on
    precision : see :func:`choose_precision`

    Raises
    ------
    InputError
        as :func:`choose_precision`, or if a network trained for int8 is to compute in another precision than fp32
    """
    dtype = choose_precision(precision, device)
    if is_quantised(net):
        if precision not in ("fp32", "auto"):
            raise InputError(f"`precision={precision}`: a network trained for int8 is simulated in fp32 only")
        return fold_abn(net).to(device)
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

    Raises
    ------
    InputError
        if the precision is unknown, or not available on this device
    """
    if precision == "auto":
        return torch.bfloat16 if bf16_is_fast(device) else torch.float32
    if precision not in PRECISIONS:
        raise InputError(f"`precision={precision}`: choose one of auto, {', '.join(PRECISIONS)}")
    if precision == "fp16" and device.type != "cuda":
        raise InputError(f"`precision=fp16` needs a GPU, the device is {device}: choose bf16 or fp32")
    return PRECISIONS[precision]


def _replacement(module: nn.Module) -> nn.Module | None:
    """Return the folded form of a module; None if it stays."""
    if isinstance(module, ResidualBlock):
        return _fold_block(module)
    if isinstance(module, PreActivationBlock):
        return _fold_preactivation(module)
    if isinstance(module, DenseModule):
        return _fold_dense(module)
    if isinstance(module, SemanticHead):
        return _fold_semantic(module)
    if isinstance(module, DeeplabV3):
        return _fold_deeplab_v3(module)
    if isinstance(module, RPNHead):
        return _fold_rpn(module)
    return None


def _affine(norm: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Return scale and offset `C` (float64) of the norm at inference; None if it is no such affine map."""
    if not isinstance(norm, ABN) or norm.running_mean is None or norm.running_var is None:
        return None
    mean, invstd = norm.running_mean.double(), torch.rsqrt(norm.running_var.double() + norm.eps)
    gamma = torch.ones_like(mean) if norm.weight is None else norm.weight.detach().double()
    if isinstance(norm, InPlaceABN) and norm.weight is not None:
        gamma = gamma.abs() + norm.eps
    scale = gamma * invstd
    beta = torch.zeros_like(mean) if norm.bias is None else norm.bias.detach().double()
    return scale, beta - mean * scale


def _is_plain(conv: nn.Module) -> bool:
    return isinstance(conv, nn.Conv2d) and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def _fuse(conv: nn.Module, norm: nn.Module) -> FusedConv2d | None:
    """Fuse convolution, norm and activation into one layer."""
    affine = _affine(norm)
    if affine is None or not isinstance(conv, nn.Conv2d) or not _is_plain(conv):
        return None
    assert isinstance(norm, ABN)
    weight, bias = _scaled(conv.weight, conv.bias, *affine)
    return FusedConv2d(weight, bias, conv, norm.activation, norm.activation_param)


def _scaled(weight: Tensor, bias: Tensor | None, scale: Tensor, offset: Tensor, axis: int = 0) -> tuple[Tensor, Tensor]:
    shape = [1] * weight.dim()
    shape[axis] = -1
    wide = weight.detach().double() * scale.view(shape)
    total = offset if bias is None else offset + bias.detach().double() * scale
    return wide.to(weight.dtype), total.to(weight.dtype)


def _plain(conv: nn.Conv2d, columns: slice = slice(None), bias: bool = True) -> FusedConv2d:
    """Return a convolution, or its part for some input channels, as a fused layer without activation."""
    weight = conv.weight[:, columns]
    zeros = torch.zeros(weight.shape[0], dtype=weight.dtype, device=weight.device)
    return FusedConv2d(weight, conv.bias if bias and conv.bias is not None else zeros, conv)


def _fold_pairs(sequence: nn.Sequential) -> None:
    """Fold each norm of a sequence into the layer before it; the names of the layers stay."""
    for (name, layer), (norm_name, norm) in itertools.pairwise(list(sequence.named_children())):
        affine = _affine(norm)
        if affine is None:
            continue
        assert isinstance(norm, ABN)
        made: nn.Module | None = _fuse(layer, norm)
        if isinstance(layer, nn.Linear):
            made = FusedLinear(*_scaled(layer.weight, layer.bias, *affine), norm.activation, norm.activation_param)
        elif isinstance(layer, nn.ConvTranspose2d) and layer.kernel_size == layer.stride == (layer.stride[0],) * 2:
            weight, bias = _scaled(layer.weight, layer.bias, *affine, axis=1)
            made = FoldedUpsampling(weight, bias, norm.activation, norm.activation_param)
        if made is not None:
            setattr(sequence, name, made)
            setattr(sequence, norm_name, nn.Identity())


def _fold_block(block: ResidualBlock) -> FoldedBlock | None:
    layers = OrderedDict(block.convs.named_children())
    convs = [_fuse(layers[f"conv{i}"], layers[f"bn{i}"]) for i in range(1, sum("conv" in name for name in layers) + 1)]
    projection = _fuse(block.proj_conv, block.proj_bn) if block.has_projection else None
    made = [conv for conv in convs if conv is not None]
    if len(made) < len(convs) or (block.has_projection and projection is None):
        return None
    made[-1].activation, made[-1].activation_param = block.activation, block.activation_param
    return FoldedBlock(made, projection)


def _fold_preactivation(block: PreActivationBlock) -> FoldedBlock | None:
    # a norm is folded into the convolution before it; the first one follows a sum
    first = _channelwise(block.bn1)
    layers = [layer for layer in block.convs if not isinstance(layer, nn.Dropout2d)]
    convs = [_fuse(conv, norm) for conv, norm in zip(layers[::2], layers[1::2])]
    made = [conv for conv in convs if conv is not None]
    if first is None or len(made) < len(convs):
        return None
    last = layers[-1]
    assert isinstance(last, nn.Conv2d)
    projection = _plain(block.proj_conv) if block.has_projection else None
    return FoldedBlock([*made, _plain(last)], projection, first)


def _fold_dense(module: DenseModule) -> FoldedDenseModule | None:
    norms = [_channelwise(layer[0]) for layer in module.convs1]  # type: ignore[index]
    first = [_fuse(one[1], two[0]) for one, two in zip(module.convs1, module.convs3)]  # type: ignore[index]
    second = [_plain(layer[1]) for layer in module.convs3]  # type: ignore[index]
    if any(layer is None for layer in (*norms, *first)):
        return None
    return FoldedDenseModule(norms, first, second)  # type: ignore[arg-type]


def _channelwise(norm: nn.Module) -> ChannelwiseActivation | None:
    affine = _affine(norm)
    if affine is None:
        return None
    assert isinstance(norm, ABN)
    dtype = norm.running_mean.dtype  # type: ignore[union-attr]
    scale, offset = (t.to(dtype) for t in affine)
    return ChannelwiseActivation(scale, offset, norm.activation, norm.activation_param)


def _fold_semantic(head: SemanticHead) -> FoldedSemanticHead | None:
    levels = [_fold_deeplab(module) for module in head.output if isinstance(module, MiniDeepLab)]
    made = [level for level in levels if level is not None]
    if len(made) < head.num_levels:
        return None
    width = head.conv_sem.in_channels // head.num_levels
    cuts = [slice(i * width, (i + 1) * width) for i in range(head.num_levels)]
    classifiers = [_plain(head.conv_sem, cut, bias=i == 0) for i, cut in enumerate(cuts)]
    return FoldedSemanticHead(made, classifiers, head.min_level)


def _fold_deeplab(module: MiniDeepLab) -> FoldedDeepLab | None:
    first, last = _affine(module.bn1), _fuse(module.conv2, module.bn2)
    if first is None or last is None:
        return None
    norm = module.bn1
    assert isinstance(norm, ABN)
    activation, parameter = norm.activation, norm.activation_param
    width = module.conv1_3x3.out_channels
    branches = []
    for i, conv in enumerate((module.conv1_3x3, module.conv1_dil, module.conv1_glb)):
        channels = slice(i * width, (i + 1) * width)
        weight, bias = _scaled(conv.weight, conv.bias, first[0][channels], first[1][channels])
        # the activation of the third comes after its average
        branches.append(FusedConv2d(weight, bias, conv, "identity" if i == 2 else activation, parameter))
    local, wide, context = branches
    parts = torch.split(last.weight, width, dim=1)
    zeros = torch.zeros_like(last.bias)
    joins = [
        FusedConv2d(parts[2], zeros, module.conv2),
        FusedConv2d(parts[0], zeros, module.conv2),
        FusedConv2d(parts[1], last.bias, module.conv2, last.activation, last.activation_param),
    ]
    return FoldedDeepLab(local, wide, context, joins, module.pooling_size, activation, parameter)


def _fold_deeplab_v3(head: DeeplabV3) -> FoldedDeeplabV3 | None:
    first, pooled, last = (_affine(norm) for norm in (head.map_bn, head.global_pooling_bn, head.red_bn))
    if first is None or pooled is None or last is None:
        return None
    local_norm, pool_norm, last_norm = head.map_bn, head.global_pooling_bn, head.red_bn
    assert isinstance(local_norm, ABN) and isinstance(pool_norm, ABN) and isinstance(last_norm, ABN)
    width = head.hidden_channels
    branches = []
    for i, conv in enumerate(head.map_convs):
        assert isinstance(conv, nn.Conv2d)
        channels = slice(i * width, (i + 1) * width)
        weight, bias = _scaled(conv.weight, None, first[0][channels], first[1][channels])
        branches.append(FusedConv2d(weight, bias, conv, local_norm.activation, local_norm.activation_param))
    weight, bias = _scaled(head.global_pooling_conv.weight, None, *pooled)
    # the activation comes after the average
    context = FusedConv2d(weight, bias, head.global_pooling_conv, "identity")
    reduce_context, offset = _scaled(head.pool_red_conv.weight, None, *last)
    reduced, _ = _scaled(head.red_conv.weight, None, *last)
    zeros = torch.zeros_like(offset)
    parts = torch.split(reduced, width, dim=1)
    # the offset is that of the sum: it is added once, by the context
    joins = [FusedConv2d(part, zeros, head.red_conv) for part in parts]
    joins[-1].activation, joins[-1].activation_param = last_norm.activation, last_norm.activation_param
    return FoldedDeeplabV3(
        branches,
        joins,
        context,
        FusedConv2d(reduce_context, offset, head.pool_red_conv),
        head.pooling_size,
        (pool_norm.activation, pool_norm.activation_param),
    )


def _fold_rpn(head: RPNHead) -> FoldedRPNHead | None:
    hidden = _fuse(head.conv1, head.bn1)
    if hidden is None or head.conv_obj.bias is None or head.conv_bbx.bias is None:
        return None
    weight = torch.cat((head.conv_obj.weight, head.conv_bbx.weight))
    bias = torch.cat((head.conv_obj.bias, head.conv_bbx.bias))
    return FoldedRPNHead(hidden, FusedConv2d(weight, bias, head.conv_obj), head.conv_obj.out_channels)


def _fold_roi_head(head: ROIHead) -> None:
    _fold_pairs(head.fc)
    first, second = head.fc[0], head.fc[2] if len(head.fc) > 2 else None
    if isinstance(first, FusedLinear) and (second is None or isinstance(second, FusedLinear)):
        outputs = first.weight.shape[0]
        h, w = (side // 2 for side in head.roi_size)
        weight = first.weight.view(outputs, -1, h, w).permute(0, 2, 3, 1).reshape(outputs, -1)
        first.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        head.fc = FoldedBoxBranch(first, second)  # type: ignore[assignment]
    head.roi_cls = FusedLinear(head.roi_cls.weight, head.roi_cls.bias)  # type: ignore[assignment]
    head.roi_bbx = FusedLinear(head.roi_bbx.weight, head.roi_bbx.bias)  # type: ignore[assignment]
