"""Conversion of batch norm and the activation after it to in-place ABN, and back, in a network of any kind."""

from __future__ import annotations

import copy
import itertools
import operator
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from seamseg.inplace_abn._equality import check_equal
from seamseg.inplace_abn._tracing import Forwards, Network, name_of
from seamseg.ops.abn import apply_norm
from seamseg.ops.fused import activate, activation_layer, check_activation
from seamseg.ops.norm import ABN, InPlaceABN, InPlaceABNSync, has_hooks
from seamseg.utils.output import warn

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LAYERS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.LeakyReLU: "leaky_relu", nn.ELU: "elu"}
_PARAMETERS = {"relu": ("", 0.0), "leaky_relu": ("negative_slope", 0.01), "elu": ("alpha", 1.0)}
_SHOWN = 6
"""Layers that an error message names for each reason."""


class _Following(NamedTuple):
    """The activation that a norm takes over, its call, and the call of the sum between norm and activation."""

    activation: str = "identity"
    parameter: float = 0.01
    removed: fx.Node | None = None
    total: fx.Node | None = None


class ResidualABN(InPlaceABN):
    """The last norm of a residual block, `activation(norm(x) + residual)`, which keeps only its result.

    State as :class:`InPlaceABN`.
    """

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:  # type: ignore[override]
        """Map two `N x C x ...` to the same shape."""
        if residual.shape == x.shape:
            return self.add(x, residual, self.activation, self.activation_param)
        # a residual with fewer values, as one for each channel
        y = apply_norm(x, self.weight, self.bias, self._norm("identity", 1.0)) + residual
        return activate(y, self.activation, self.activation_param)


class ResidualABNSync(ResidualABN, InPlaceABNSync):
    """:class:`ResidualABN` with the training statistics of all ranks, as :class:`InPlaceABNSync`."""


class _Refused(Exception):
    """A norm cannot be converted; the message is the reason."""


def convert(
    module: nn.Module,
    *,
    relu: str | None = None,
    small_scales: str = "refuse",
    otherwise: str = "refuse",
    sync: bool = False,
    example: Any = None,
) -> nn.Module:
    """Return a copy of a network with in-place ABN in the place of batch norm and the activation after it.

    The copy computes the same function up to rounding, in training and evaluation mode, and has the same state-dict
    keys. The scale of in-place ABN is `|weight| + eps`, so `eps` is subtracted from each weight. A negative scale
    changes its sign together with the convolution before it, whose only reader the norm must be. Layers of the copy do
    not work in place, since the backward pass needs the outputs of the norms.

    Parameters
    ----------
    module : any network; not changed
    relu : activation in the place of every ReLU of the network, "leaky_relu:0.01" or "elu:1.0", which changes its
        function (in-place ABN needs an invertible activation); None refuses norms that a ReLU follows. Calls of
        `relu` in a `forward` that cannot be rewritten stay
    small_scales : scales below `eps`, which in-place ABN cannot represent: "refuse", or "clamp" raises them to `eps`
    otherwise : "refuse" raises an error if a norm cannot be converted; "keep" leaves it as it is, with one warning
    sync : also convert layers other than `SyncBatchNorm` to :class:`InPlaceABNSync`
    example : input of the network (a tuple for several): outputs, gradients and running statistics of the copy are
        compared with the original, in both modes and in float64

    Returns
    -------
    the copy; modules whose `forward` had to change, as it calls an activation that is gone, are `torch.fx.GraphModule`

    Raises
    ------
    ValueError
        if norms cannot be converted, with their names and reasons; for a wrong option; if the results for `example`
        differ
    """
    if small_scales not in ("refuse", "clamp") or otherwise not in ("refuse", "keep"):
        raise ValueError(
            f"convert: small_scales must be 'refuse' or 'clamp', otherwise 'refuse' or 'keep', got {small_scales!r}, "
            f"{otherwise!r}"
        )
    network = Network(copied(module))
    _separate_activations(network)
    if relu is not None:
        _replace_relu(network, relu)
    reference = None if example is None else copied(network.root)
    conversion = _Conversion(network, small_scales == "clamp", sync)
    reasons = conversion.plan()
    if reasons:
        message = f"convert: {len(reasons)} norms cannot be converted: {_listed(reasons)}"
        if otherwise == "refuse":
            raise ValueError(f"{message} (otherwise='keep' leaves them as they are)")
        warn(message, stacklevel=2)
    conversion.apply()
    if reference is not None:
        for name in conversion.clamped:
            _clamp(reference.get_submodule(name))
        check_equal("convert", reference, network.root, example)
    return network.root


def _listed(reasons: dict[str, str]) -> str:
    """Return each reason once, with the first of its layers."""
    layers: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        layers.setdefault(reason, []).append(name or "the network")
    return "; ".join(
        f"{', '.join(names[:_SHOWN])}{' and others' if len(names) > _SHOWN else ''}: {reason}"
        for reason, names in layers.items()
    )


def copied(module: nn.Module) -> nn.Module:
    """Return a copy of a module that shares its process groups, which cannot be copied."""
    groups = (getattr(m, name, None) for m in module.modules() for name in ("process_group", "group"))
    return copy.deepcopy(module, {id(group): group for group in groups if group is not None})


class _Conversion:
    """The norms of a network: first the plan, which changes nothing, then its application."""

    def __init__(self, network: Network, clamp: bool, sync: bool) -> None:
        self.network = network
        self.plans: dict[str, _Following] = {}
        self.clamped: list[str] = []
        self._clamp, self._sync = clamp, sync
        self._forwards = Forwards(network)
        self._modules, self._calls = self._forwards.modules, self._forwards.calls
        self._owners = Counter(id(p) for m in self._modules.values() for p in m._parameters.values() if p is not None)
        self._sums: dict[fx.Node, fx.Node] = {}
        self._flips: dict[str, tuple[nn.Module, Tensor]] = {}

    def plan(self) -> dict[str, str]:
        """Decide what becomes of each norm; return the reason for each that cannot be converted."""
        reasons: dict[str, str] = {}
        for name, norm in self._modules.items():
            if isinstance(norm, nn.modules.batchnorm._BatchNorm):
                try:
                    self.plans[name] = self._plan(name, norm)
                except _Refused as reason:
                    reasons[name] = str(reason)
        return reasons

    def apply(self) -> None:
        """Replace norms and activations."""
        removed = [plan.removed for plan in self.plans.values() if plan.removed is not None]
        count = Counter(call.meta["module"] for call in removed)
        for name, plan in self.plans.items():
            last = plan.removed or next(iter(self._calls[name]), None)
            if last is not None:
                self._forwards.out_of_place(last)
            if plan.total is not None:
                self._forwards.add_to_norm(self._calls[name][0], plan.total)
            self._replace(name, plan)
        for call in removed:
            name = call.meta["module"]
            if name is not None and count[name] == len(self._calls[name]):
                self.network.replace(name, nn.Identity())
            else:
                # a function, or a layer that stays for other calls
                self._forwards.remove(call)
        for layer in self.network.root.modules() if self.plans else ():
            if getattr(layer, "inplace", False):  # the output of a norm is needed again
                layer.inplace = False  # type: ignore[assignment]
        self._forwards.apply()

    def _plan(self, name: str, norm: nn.Module) -> _Following:
        if type(norm) not in _NORMS or has_hooks(norm):
            raise _Refused(f"{type(norm).__name__} is a class of its own, derived from batch norm, or has hooks")
        if self._forwards.registered[id(norm)] > 1 or any(self._owners[id(p)] > 1 for p in norm.parameters()):
            raise _Refused("the layer has two names, or shares its parameters")
        following = _Following()
        if norm is not self.network.root:
            calls = self._calls.get(name, [])
            if not calls:
                reason = self._forwards.fixed_around(name) or "no forward uses it"
                raise _Refused(f"torch.fx finds no call of the layer: {reason}")
            if len(calls) > 1:
                raise _Refused(f"the layer is called {len(calls)} times")
            readers = list(self._forwards.readers(calls[0]))
            activation = _activation_of(readers[0], self._modules) if len(readers) == 1 else None
            if activation is not None:
                following = _Following(*activation, readers[0])
            else:
                following = self._with_sum(calls[0]) or following
        self._check_scales(name, norm)
        return following

    def _with_sum(self, node: fx.Node) -> _Following | None:
        """Return what follows a norm at the end of a residual block; None if it is at no such place."""
        total = next(iter(node.users), None)
        if total is None or len(node.users) > 1 or len(total.users) != 1 or total.kwargs:
            return None
        addends = {argument for argument in total.args if isinstance(argument, fx.Node)}
        if total.target not in (operator.add, operator.iadd, torch.add) or not len(addends) == len(total.args) == 2:
            return None
        last = next(iter(total.users))
        try:
            activation = _activation_of(last, self._modules)
        except _Refused:
            return None
        # a sum of two norms belongs to the first
        if activation is None or self._sums.setdefault(total, node) is not node:
            return None
        return _Following(*activation, last, total)

    def _check_scales(self, name: str, norm: Any) -> None:
        """Require scales that `|weight| + eps` can represent; note those that change sign or are raised."""
        if norm.weight is None:
            return
        weight = norm.weight.detach()
        if not torch.isfinite(weight).all():
            raise _Refused("its weight is not finite")
        small = weight.abs() < norm.eps
        if small.any():
            if not self._clamp:
                raise _Refused(
                    f"{int(small.sum())} of its scales are below eps = {norm.eps:g}, which in-place ABN cannot "
                    "represent (small_scales='clamp' raises them)"
                )
            self.clamped.append(name)
        negative = (weight < 0) & ~small
        if negative.any():
            source = self._source(name)
            if source is None:
                raise _Refused(
                    f"{int(negative.sum())} of its scales are negative, which in-place ABN cannot represent, and its "
                    "input is not the output of a convolution or linear layer that nothing else reads"
                )
            self._flips[name] = source, negative

    def _source(self, name: str) -> nn.Module | None:
        """Return the convolution that only this norm reads, whose output can change its sign; None without one."""
        source = self._calls[name][0].all_input_nodes[0] if self._calls.get(name) else None
        if source is None or source.op != "call_module" or len(source.users) > 1:
            return None
        called = source.meta["module"]
        layer = self._modules[called]
        shared = any(self._owners[id(p)] > 1 for p in layer.parameters())
        alone = not shared and len(self._calls[called]) == self._forwards.registered[id(layer)] == 1
        return layer if alone and type(layer) in _LINEAR and not has_hooks(layer) else None

    @torch.no_grad()
    def _replace(self, name: str, plan: _Following) -> None:
        norm: Any = self._modules[name]
        if name in self.clamped:
            _clamp(norm)
        if name in self._flips:
            layer, negative = self._flips[name]
            sign = torch.where(negative, -1.0, 1.0)
            mean = [] if norm.running_mean is None else [norm.running_mean]
            for tensor in (*layer.parameters(recurse=False), norm.weight, *mean):
                tensor.mul_(sign.to(tensor).view(-1, *[1] * (tensor.dim() - 1)))
        if norm.weight is not None:
            norm.weight.copy_((norm.weight.double() - norm.eps).clamp(min=0))
        kind: type[InPlaceABN] = InPlaceABN if plan.total is None else ResidualABN
        if self._sync or isinstance(norm, nn.SyncBatchNorm):
            kind = InPlaceABNSync if plan.total is None else ResidualABNSync
        made = kind(norm.num_features, norm.eps, norm.momentum, False, False, plan.activation, plan.parameter)
        _take_state(made, norm)
        if isinstance(made, InPlaceABNSync):
            made.group = getattr(norm, "process_group", None)
        self.network.replace(name, made)


def _take_state(made: Any, norm: Any) -> None:
    """Give a norm the parameters, buffers and mode of another."""
    for name in ("affine", "track_running_stats", "weight", "bias", "training"):
        setattr(made, name, getattr(norm, name))
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        setattr(made, name, getattr(norm, name))


@torch.no_grad()
def _clamp(norm: Any) -> None:
    norm.weight.copy_(torch.where(norm.weight.abs() < norm.eps, norm.eps, norm.weight))


def _activation_of(node: fx.Node, modules: dict[str, nn.Module]) -> tuple[str, float] | None:
    """Return the activation that a call computes, with its parameter; None if it is something else."""
    if node.op == "call_module":
        layer = modules[node.meta["module"]]
        name = None if has_hooks(layer) else _LAYERS.get(type(layer))
        parameter = getattr(layer, _PARAMETERS[name][0], 0.0) if name is not None else 0.0
    else:
        name = name_of(node).rstrip("_")
        name = name if name in _PARAMETERS else None
        parameter = _argument(node, *_PARAMETERS[name]) if name is not None else 0.0
    if name is None:
        return None
    if name == "relu":
        raise _Refused("ReLU follows, which cannot be inverted (relu='leaky_relu:0.01' replaces all of the network)")
    if not isinstance(parameter, (int, float)) or parameter <= 0:
        raise _Refused(f"{name} with the parameter {parameter} follows, which cannot be inverted")
    return name, float(parameter)


def _argument(call: fx.Node, name: str, default: Any) -> Any:
    """Return the second argument of the call of an activation."""
    return call.kwargs.get(name, call.args[1] if len(call.args) > 1 else default)


def _separate_activations(network: Network) -> None:
    """Give each place of a network an activation of its own: one place may change while another stays."""
    seen: set[int] = set()
    for name, module in list(network.slots()):
        if isinstance(module, tuple(_LAYERS)) and id(module) in seen and not has_hooks(module):
            network.replace(name, copy.deepcopy(module))
        seen.add(id(module))


def _replace_relu(network: Network, relu: str) -> None:
    """Replace each ReLU of a network, layers and calls of functions, by "leaky_relu:0.01"."""
    name, _, parameter = relu.partition(":")
    try:
        value = float(parameter or _PARAMETERS[name][1])
        kind = {"leaky_relu": nn.LeakyReLU, "elu": nn.ELU}[name]
    except (KeyError, ValueError):
        raise ValueError(f"convert: relu must be like 'leaky_relu:0.01' or 'elu:1.0', got {relu!r}") from None
    check_activation("convert: relu", name, value, invertible=True)
    for place, module in list(network.slots()):
        if type(module) is nn.ReLU:
            made = kind(value, module.inplace)
            made.training = module.training
            network.replace(place, made)
    forwards = Forwards(network)
    for node in forwards.nodes():
        if name_of(node) in ("relu", "relu_"):
            in_place = name_of(node) == "relu_" or bool(_argument(node, "inplace", False))
            forwards.call(node, getattr(functional, name), value, in_place)
    forwards.apply()


_KINDS = (ABN, InPlaceABN, InPlaceABNSync, ResidualABN, ResidualABNSync)
_NORM_AFTER: dict[type[nn.Module], type[nn.modules.batchnorm._BatchNorm]] = {
    nn.Linear: nn.BatchNorm1d,
    nn.Conv1d: nn.BatchNorm1d,
    nn.ConvTranspose1d: nn.BatchNorm1d,
    nn.Conv3d: nn.BatchNorm3d,
    nn.ConvTranspose3d: nn.BatchNorm3d,
}
"""Norms after layers whose output is not `N x C x H x W`."""


def to_batchnorm(module: nn.Module, *, sync: bool = False, example: Any = None) -> nn.Module:
    """Return a copy of a network with batch norm and an activation in the place of ABN and in-place ABN.

    Each layer becomes `nn.Sequential(norm, activation)`; without an activation (identity) the norm alone. The norm is
    `BatchNorm2d`; after a linear layer or a one- or three-dimensional convolution in the same `nn.Sequential`,
    `BatchNorm1d` or `BatchNorm3d`. The scale of in-place ABN, `|weight| + eps`, becomes the weight. State-dict keys of
    layers with an activation get ".0" before the name of the tensor: `bn1.weight` becomes `bn1.0.weight`.

    The copy computes the same function up to rounding, except that a batch norm in training mode refuses a batch with
    one value for each channel.

    Parameters
    ----------
    module : any network with layers :class:`ABN`, :class:`InPlaceABN` or :class:`InPlaceABNSync`; not changed
    sync : `SyncBatchNorm` in the place of :class:`InPlaceABNSync`, with its process group
    example : input of the network (a tuple for several): outputs, gradients and running statistics of the copy are
        compared with the original, in both modes and in float64

    Raises
    ------
    ValueError
        if a layer has hooks, or a class of its own, derived from these; if the results for `example` differ
    """
    network = Network(copied(module))
    # a copy has no group
    groups = [getattr(layer, "group", None) for _, layer in Network(module).slots()]
    before: dict[int, nn.Module] = {}
    for sequence in network.root.modules():
        if isinstance(sequence, nn.Sequential):
            before.update({id(layer): previous for previous, layer in itertools.pairwise(sequence)})
    made: dict[int, nn.Module] = {}
    for (name, layer), group in zip(list(network.slots()), groups):
        if not isinstance(layer, ABN):
            continue
        if type(layer) not in _KINDS:
            raise ValueError(f"to_batchnorm: {name}: {type(layer).__name__} is a class of its own")
        if has_hooks(layer):
            raise ValueError(f"to_batchnorm: {name}: the layer has hooks, which the norm would not run")
        if id(layer) not in made:
            kind = _NORM_AFTER.get(type(before.get(id(layer), layer)), nn.BatchNorm2d)
            if sync and isinstance(layer, InPlaceABNSync):
                kind = nn.SyncBatchNorm
            made[id(layer)] = _batchnorm(layer, kind, group)
        network.replace(name, made[id(layer)])
    if example is not None:
        check_equal("to_batchnorm", module, network.root, example)
    return network.root


class BatchNormSum(nn.Sequential):
    """`activation(norm(x) + residual)`: what becomes of the last norm of a residual block."""

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:  # type: ignore[override]
        """Map two `N x C x ...` to the same shape."""
        norm, activation = self
        y: Tensor = activation(norm(x) + residual)
        return y


@torch.no_grad()
def _batchnorm(layer: ABN, kind: type[nn.modules.batchnorm._BatchNorm], group: Any) -> nn.Module:
    """Return a norm with the parameters and buffers of a layer, and its activation."""
    norm = kind(layer.num_features, layer.eps, layer.momentum, False, False)
    if isinstance(layer, InPlaceABN) and layer.weight is not None:
        layer.weight.copy_(layer.weight.double().abs() + layer.eps)
    _take_state(norm, layer)
    if isinstance(norm, nn.SyncBatchNorm):
        norm.process_group = group
    activation = activation_layer(layer.activation, layer.activation_param)
    result: nn.Module = norm if layer.activation == "identity" else nn.Sequential(norm, activation)
    if isinstance(layer, ResidualABN):
        result = BatchNormSum(norm, activation)
    for part in result.modules():
        part.training = layer.training
    return result
