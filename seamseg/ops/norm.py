"""Normalisation layers with an activation: ABN, InPlaceABN, InPlaceABNSync, ActivatedGroupNorm, ActivatedIdentity.

Constructors and state-dict keys equal the `inplace-abn` package, so that snapshots and code carry over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from seamseg.ops.abn import (
    Projection,
    apply_norm,
    apply_plain_norm,
    inplace_abn_projection,
    strided_pixels,
    upsample_abn_rows,
)
from seamseg.ops.abn_steps import Norm, defer_scale_gradient
from seamseg.ops.fused import TrainedWinogradConv2d, activate, check_activation

Kind = TypeVar("Kind", bound=nn.Module)


class PointwiseConv(nn.Conv2d):
    """A 1x1 convolution without padding, with the workaround of :func:`seamseg.ops.abn.strided_pixels`."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        pixels, stride = strided_pixels(input, self.stride)
        return functional.conv2d(pixels, weight, bias, stride)


CONVOLUTIONS = (nn.Conv2d, PointwiseConv, TrainedWinogradConv2d)
"""The classes of plain convolutions of two dimensions, see :func:`is_plain`."""


class ABN(nn.Module):
    """Batch norm followed by an activation.

    Parameters
    ----------
    num_features : channels
    eps : added to the variance
    momentum : weight of the current batch in the running averages; None for the plain average over all batches
    affine : learn weight and bias
    track_running_stats : keep averages for evaluation; without them evaluation uses the statistics of each batch too
    activation : "leaky_relu", "elu", "identity" or "relu"
    activation_param : negative slope of leaky_relu, alpha of elu

    Notes
    -----
    State: weight, bias, running_mean, running_var, num_batches_tracked. A state dict without num_batches_tracked, as
    in old snapshots, can be loaded.
    """

    _invertible = False
    num_batches_tracked: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        activation: str = "leaky_relu",
        activation_param: float = 0.01,
    ) -> None:
        super().__init__()
        check_activation(type(self).__name__, activation, activation_param, self._invertible)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        self.activation = activation
        self.activation_param = activation_param
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine else None
        self.register_buffer("running_mean", torch.zeros(num_features) if track_running_stats else None)
        self.register_buffer("running_var", torch.ones(num_features) if track_running_stats else None)
        self.register_buffer("num_batches_tracked", torch.tensor(0) if track_running_stats else None)

    def reset_running_stats(self) -> None:
        """Set mean 0, variance 1, no batches."""
        for buffer, value in ((self.running_mean, 0), (self.running_var, 1), (self.num_batches_tracked, 0)):
            if buffer is not None:
                buffer.fill_(value)

    def reset_parameters(self) -> None:
        """Set weight 1, bias 0 and reset the running statistics."""
        self.reset_running_stats()
        with torch.no_grad():
            if self.weight is not None and self.bias is not None:
                self.weight.fill_(1)
                self.bias.zero_()

    def _group(self) -> distributed.ProcessGroup | None:
        return None

    def _of_the_batch(self) -> bool:
        return self.training or self.running_mean is None

    def _norm(self, activation: str, activation_param: float) -> Norm:
        group = self._group() if self.training else None
        statistics = (self.running_mean, self.running_var, self._of_the_batch(), self.momentum, self.eps)
        return Norm(*statistics, activation, activation_param, group, self.num_batches_tracked)

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x C x ...` to the same shape."""
        norm = self._norm(self.activation, self.activation_param)
        return apply_plain_norm(x, self.weight, self.bias, norm)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if self.num_batches_tracked is not None:
            state_dict.setdefault(prefix + "num_batches_tracked", torch.zeros_like(self.num_batches_tracked))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Return the options for `repr`."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"{self.activation}({self.activation_param})"
        )


class InPlaceABN(ABN):
    """ABN that keeps its output instead of its input for the backward pass; scale `|weight| + eps`.

    Parameters and state are those of :class:`ABN`; leaky_relu and elu need a positive parameter, relu is no choice.

    Notes
    -----
    In half precision the gradient of scales near 0 needs the kernel of the layer before: call the two together, with
    :func:`run_layers`, :class:`NormSequential` or :meth:`convolve` (docs/reference/ops.md).
    """

    _invertible = True

    def forward(self, x: Tensor, deferred: Tensor | None = None) -> Tensor:
        """Map `N x C x ...` to the same shape; `deferred` as from :meth:`convolve`."""
        norm = self._norm(self.activation, self.activation_param)
        return apply_norm(x, self.weight, self.bias, norm, deferred=deferred)

    def convolve(self, layer: nn.Module, x: Tensor, channels: slice | None = None) -> tuple[Tensor, Tensor | None]:
        """Return `layer(x)`, the input of this norm, and its argument `deferred`.

        In half precision the output of a layer other than a plain convolution or linear layer is kept for the backward
        pass. `channels` of this norm are computed by the layer; None for all.
        """
        weight, dim = self.weight, None
        # dimension of the output channels of the kernel; a computed kernel, as of weight norm or pruning, is no
        # parameter, and of a class derived from these the output need not be linear in it
        if "weight" in layer._parameters:
            if is_plain(layer, nn.ConvTranspose2d):
                dim = 1 if layer.groups == 1 else None
            elif is_plain(layer, nn.Conv1d, nn.Conv3d, nn.Linear, *CONVOLUTIONS):
                dim = 0
        tracked = torch.is_grad_enabled() and weight is not None and weight.requires_grad
        if not tracked:
            return layer(x), None
        assert isinstance(weight, Tensor)
        scale = weight if channels is None else weight[channels]
        # with frozen statistics a bias of the layer does not cancel
        if dim is None or not (layer.bias is None or self._of_the_batch()):
            y = layer(x)
            # the output is linear in itself
            return defer_scale_gradient(y, scale, 1) if y.dtype in (torch.float16, torch.bfloat16) else (y, None)
        assert isinstance(layer.weight, Tensor)
        kernel, deferred = defer_scale_gradient(layer.weight, scale, dim)
        # functional_call, for any layer, takes as long as three convolutions do to start
        if isinstance(layer, nn.Linear):
            return functional.linear(x, kernel, layer.bias), deferred
        if isinstance(layer, nn.ConvTranspose2d):
            shape: Any = layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation
            return functional.conv_transpose2d(x, kernel, layer.bias, *shape), deferred
        assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        return layer._conv_forward(x, kernel, layer.bias), deferred

    def add(
        self, x: Tensor, residual: Tensor, activation: str, activation_param: float, deferred: Tensor | None = None
    ) -> Tensor:
        """Compute `activation(norm(x) + residual)`, keeping only the result: the end of a residual block.

        The activation of the layer itself is not applied. `deferred` as from :meth:`convolve`.
        """
        norm = self._norm(activation, activation_param)
        return apply_norm(x, self.weight, self.bias, norm, residual, deferred)

    def add_projection(
        self,
        x: Tensor,
        shortcut: Tensor,
        convolution: nn.Conv2d,
        shortcut_norm: InPlaceABN,
        activation: str,
        activation_param: float,
        deferred: Tensor | None = None,
    ) -> Tensor:
        """Compute `activation(norm(x) + shortcut_norm(convolution(shortcut)))`, keeping only the result and `shortcut`.

        The convolution must be 1x1 without bias, padding and groups. The activations of the two layers are not applied.
        `deferred`, of the branch, as from :meth:`convolve`.
        """
        vertical, horizontal = convolution.stride
        return inplace_abn_projection(
            x,
            self.weight,
            self.bias,
            self._norm(activation, activation_param),
            shortcut,
            Projection(
                convolution.weight,
                (int(vertical), int(horizontal)),
                shortcut_norm.weight,
                shortcut_norm.bias,
                shortcut_norm._norm("identity", 1.0),
            ),
            deferred,
        )

    def run_channels(self, x: Tensor, channels: slice, deferred: Tensor | None = None) -> Tensor:
        """Compute some channels of the result from those of the input; all in turn, the first first, are one batch."""
        norm = self._norm(self.activation, self.activation_param)
        if channels.start > 0 and norm.batches is not None:
            # counted by the first; a plain average needs the count
            norm = norm._replace(batches=norm.batches - 1 if norm.momentum is None else None)
        vectors = (self.weight, self.bias, norm.running_mean, norm.running_var)
        weight, bias, mean, var = (None if v is None else v[channels] for v in vectors)
        return apply_norm(x, weight, bias, norm._replace(running_mean=mean, running_var=var), deferred=deferred)

    def upsample_rows(self, x: Tensor, rows: Tensor, convolution: nn.ConvTranspose2d) -> Tensor:
        """Compute `self(convolution(x))[rows]` in training mode, without computing the other rows.

        The convolution must be 2x2 of stride 2 without bias; see :func:`seamseg.ops.abn.upsample_abn_rows`.
        """
        norm = self._norm(self.activation, self.activation_param)
        return upsample_abn_rows(x, rows, convolution.weight, self.weight, self.bias, norm)


class InPlaceABNSync(InPlaceABN):
    """InPlaceABN with training statistics over all ranks of a process group.

    Parameters
    ----------
    num_features, eps, momentum, affine, track_running_stats, activation, activation_param : see :class:`ABN`
    group : initial value of the attribute `group`

    Notes
    -----
    The attribute `group` may be set at any time (:func:`seamseg.ops.norm.set_group`). While it is None the layer
    synchronises over all ranks, if torch.distributed is initialised. All ranks of the group must run the layer.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        activation: str = "leaky_relu",
        activation_param: float = 0.01,
        group: distributed.ProcessGroup | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, activation, activation_param)
        self.group = group

    def _group(self) -> distributed.ProcessGroup | None:
        return synchronised_over(self.group)

    def __getstate__(self) -> dict[str, Any]:
        # process groups can neither be copied nor pickled
        return {**self.__dict__, "group": None}


def synchronised_over(group: distributed.ProcessGroup | None) -> distributed.ProcessGroup | None:
    """Return the ranks that share statistics: `group`, all for None; None if there is only one."""
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    group = distributed.group.WORLD if group is None else group
    return group if distributed.get_world_size(group) > 1 else None


IN_PLACE = (InPlaceABN, InPlaceABNSync)
"""The classes of in-place norms; other layers may be computed together with plain ones, see :func:`is_plain`."""


def is_plain(layer: object, *kinds: type[Kind]) -> TypeGuard[Kind]:
    """Return whether a layer computes what these classes do: no class derived from them, no hooks, no other `forward`.

    Only the call of such a layer may be replaced by other operations on its parameters.
    """
    if not isinstance(layer, nn.Module) or type(layer) not in kinds or "forward" in layer.__dict__:
        return False
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return not any(len(kind) > 0 for kind in hooks)


def has_hooks(layer: nn.Module) -> bool:
    """Return whether a call of a layer does more than `forward` of its class: hooks, or a `forward` of its own."""
    return not is_plain(layer, type(layer))


def is_trained_in_half(x: Tensor, *norms: nn.Module) -> bool:
    """Return whether gradients are on, `x` has half precision, and norms after it are plain, in place and trained."""
    half = torch.is_grad_enabled() and x.dtype in (torch.float16, torch.bfloat16)
    return half and all(is_plain(n, *IN_PLACE) and n.weight is not None and n.weight.requires_grad for n in norms)


def is_pointwise(layer: object, strided: bool = False) -> TypeGuard[nn.Conv2d]:
    """Return whether a layer is a plain 1x1 convolution without padding and groups; of stride 1, unless `strided`."""
    if not is_plain(layer, *CONVOLUTIONS):
        return False
    plain = layer.kernel_size == (1, 1) and layer.padding in ((0, 0), "valid") and layer.groups == 1
    return plain and (strided or layer.stride == (1, 1))


def is_tiling(layer: object) -> TypeGuard[nn.ConvTranspose2d]:
    """Return whether a layer is a plain transposed convolution whose square windows cover the result side by side."""
    if not is_plain(layer, nn.ConvTranspose2d):
        return False
    plain = layer.groups == 1 and not any((*layer.padding, *layer.output_padding)) and layer.dilation == (1, 1)
    return plain and layer.kernel_size == layer.stride == (layer.stride[0],) * 2


def run_layers(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Run layers in sequence; plain in-place norms together with a convolution or linear layer before them."""
    layers, deferred = list(layers), None
    for layer, following in zip(layers, [*layers[1:], None]):
        if deferred is not None:
            x, deferred = layer(x, deferred), None
        elif is_plain(following, *IN_PLACE):
            x, deferred = following.convolve(layer, x)
        else:
            x = layer(x)
    return x


def convolve_each(norm: nn.Module, layers: Iterable[nn.Module], x: Tensor) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Return `layer(x)` of layers with equally many channels, and what the norm of all takes after its input.

    The results, concatenated in the order of the layers, are the input of the norm.
    """
    layers = list(layers)
    if not is_plain(norm, *IN_PLACE):
        return [layer(x) for layer in layers], ()
    width = norm.num_features // len(layers)
    parts = [norm.convolve(layer, x, slice(i * width, (i + 1) * width)) for i, layer in enumerate(layers)]
    deferred = [d for _, d in parts if d is not None]
    return [y for y, _ in parts], (torch.cat(deferred, 1),) if len(deferred) == len(parts) else ()


class NormSequential(nn.Sequential):
    """A sequence that runs by :func:`run_layers`."""

    forward = run_layers


class ActivatedGroupNorm(nn.GroupNorm):
    """Group norm followed by an activation; state: weight, bias."""

    def __init__(
        self,
        num_features: int,
        num_groups: int = 16,
        eps: float = 1e-5,
        affine: bool = True,
        activation: str = "leaky_relu",
        activation_param: float = 0.01,
    ) -> None:
        check_activation(type(self).__name__, activation, activation_param)
        super().__init__(num_groups, num_features, eps, affine)
        self.activation = activation
        self.activation_param = activation_param

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x C x ...` to the same shape."""
        y = functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        return activate(y, self.activation, self.activation_param, inplace=True)


class ActivatedIdentity(nn.Module):
    """No normalisation, only the activation (normalization mode "off"); no state."""

    def __init__(self, num_features: int = 0, activation: str = "leaky_relu", activation_param: float = 0.01) -> None:
        super().__init__()
        check_activation(type(self).__name__, activation, activation_param)
        self.num_features = num_features
        self.activation = activation
        self.activation_param = activation_param

    def forward(self, x: Tensor) -> Tensor:
        """Map `N x C x ...` to the same shape."""
        return activate(x, self.activation, self.activation_param)


def set_group(module: nn.Module, group: distributed.ProcessGroup | None) -> None:
    """Make every InPlaceABNSync inside `module` synchronise over `group` (None: over all ranks)."""
    for layer in module.modules():
        if isinstance(layer, InPlaceABNSync):
            layer.group = group
