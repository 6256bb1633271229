"""The optimizer, its groups of parameters (docs/contract.md, section 2), its steps, and the average of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from seamseg.checkpoints.snapshot import check_storable, network_parts
from seamseg.config import Config
from seamseg.config.components import register
from seamseg.config.sections import Optimizer
from seamseg.models.backbones.base import Backbone
from seamseg.ops.norm import ABN
from seamseg.utils.errors import InputError, named_errors

NORM_LAYERS = (ABN, _BatchNorm, nn.GroupNorm, nn.LayerNorm)


def running_statistics(net: nn.Module) -> Iterator[Tensor]:
    """Yield the means, variances and counters of all norm layers, which a forward pass updates in place."""
    for layer in net.modules():
        if isinstance(layer, NORM_LAYERS):
            yield from layer.buffers(recurse=False)


class StatisticsBackup:
    """The running statistics from before a step: a forward pass that overflows makes them invalid."""

    def __init__(self, net: nn.Module) -> None:
        self._buffers: dict[torch.dtype, list[Tensor]] = {}
        for buffer in running_statistics(net):
            self._buffers.setdefault(buffer.dtype, []).append(buffer)
        self._saved: dict[torch.dtype, Tensor] = {}

    def save(self) -> None:
        """Copy the statistics."""
        # one vector for all: hundreds of short tensors would each cost a kernel launch
        self._saved = {dtype: _flat(buffers) for dtype, buffers in self._buffers.items()}

    @torch.no_grad()
    def restore(self, skipped: Tensor) -> None:
        """Restore the copy where `skipped`, a scalar that the host does not read."""
        for dtype, buffers in self._buffers.items():
            chosen = torch.where(skipped, self._saved[dtype], _flat(buffers))
            parts = torch.split(chosen, [buffer.numel() for buffer in buffers])
            torch._foreach_copy_(buffers, [part.view_as(buffer) for part, buffer in zip(parts, buffers)])
        self._saved = {}


def _flat(buffers: list[Tensor]) -> Tensor:
    return torch.cat([buffer.detach().reshape(-1) for buffer in buffers])


def build_optimizer(net: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Build the optimizer of `optimizer.type`; the first group holds normalisation parameters, the last the others.

    Normalisation parameters have learning rate 0 when `body.bn_frozen`, and weight decay only with
    `optimizer.weight_decay_norm`. Frozen parameters are in no group. There are further groups, between these two, for
    parameters of the backbone with another learning rate (`optimizer.body_lr_factor`, `optimizer.layer_decay`) or, in
    timm networks, without weight decay. InputError also if the layers of the backbone cannot be told apart for
    `optimizer.layer_decay`.
    """
    component, keys = config.component("optimizer")
    groups = _parameter_groups(net, config)
    if component.built_in:
        optimizer: torch.optim.Optimizer = component.make(groups, keys)
    else:
        optimizer, where = component.build(groups, keys), f"{component.section} ({component.file})"
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(f"{where}: must return a torch.optim.Optimizer")
        if not hasattr(optimizer, "param_groups"):
            raise InputError(f"{where}: call super().__init__(groups, DEFAULTS)")
        given, kept = ({p for g in some for p in g["params"]} for some in (groups, optimizer.param_groups))
        if lost := len(given - kept):
            raise InputError(
                f"{where}: {lost} of {len(given)} parameters are in no group: pass all to super().__init__"
            )
        check_storable(optimizer.state_dict(), f"{where}: state_dict()")
    fill_state(optimizer)
    return optimizer


@register("optimizer", "sgd")
def sgd(groups: list[dict[str, Any]], keys: Any) -> torch.optim.Optimizer:
    """Return SGD over groups of parameters that have learning rate and weight decay."""
    nesterov = keys.nesterov and keys.momentum > 0
    return torch.optim.SGD(groups, momentum=keys.momentum, nesterov=nesterov, fused=can_fuse(groups))


@register("optimizer", "adamw")
def adamw(groups: list[dict[str, Any]], keys: Optimizer) -> torch.optim.Optimizer:
    """Return AdamW over groups of parameters that have learning rate and weight decay."""
    for name, beta in (("momentum", keys.momentum), ("beta2", keys.beta2)):
        if beta >= 1:
            raise InputError(f"[optimizer] {name} = {beta}: with type = adamw it must be below 1")
    return torch.optim.AdamW(groups, betas=(keys.momentum, keys.beta2), fused=can_fuse(groups))


def can_fuse(groups: list[dict[str, Any]]) -> bool:
    """Return whether the parameters of an optimizer can take fused steps."""
    parameters = [p for group in groups for p in group["params"]]
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)


def _parameter_groups(net: nn.Module, config: Config) -> list[dict[str, Any]]:
    options, decay = config.optimizer, config.optimizer.layer_decay
    # factor of the learning rate, and whether it is decayed, of each parameter of the backbone
    in_body: dict[nn.Parameter, tuple[float, bool]] = {}
    backbone = getattr(net, "backbone", None)
    if isinstance(backbone, Backbone):
        layers = backbone.layer_ids() if decay < 1 else {}
        above = max(layers.values(), default=-1) + 1
        undecayed = backbone.undecayed()
        # without what is not pre-trained, such as the pyramid of a plain network
        for name, parameter in backbone.pretrained_part.named_parameters():
            factor = options.body_lr_factor * decay ** (above - layers.get(name, above))
            in_body[parameter] = factor, name not in undecayed
    elif backbone is not None:
        # of a network as a whole
        in_body = dict.fromkeys(backbone.parameters(), (options.body_lr_factor, True))
    # the order of groups and, in them, of modules is part of the snapshot format: states refer to parameters by index
    members: dict[tuple[bool, float, bool], list[nn.Parameter]] = {(True, 1.0, True): []}
    of_norms: dict[nn.Parameter, bool] = {}  # a shared parameter is of the first layer that has it
    for layer in net.modules():
        for parameter in layer.parameters(recurse=False):
            of_norms.setdefault(parameter, isinstance(layer, NORM_LAYERS))
    for is_norm in (True, False):
        for parameter in [p for p, of_norm in of_norms.items() if of_norm == is_norm and p.requires_grad]:
            factor, decayed = in_body.get(parameter, (1.0, True))
            members.setdefault((is_norm, factor, decayed or is_norm), []).append(parameter)
    members[False, 1.0, True] = members.pop((False, 1.0, True), [])
    groups = []
    frozen = config.body.bn_frozen and config.parts_of_kind.uses("body", "bn_frozen")
    for (is_norm, factor, decayed), parameters in members.items():
        rate = 0.0 if is_norm and frozen else options.lr * factor
        decays = options.weight_decay_norm if is_norm else decayed
        groups.append({"params": parameters, "lr": rate, "weight_decay": options.weight_decay if decays else 0.0})
    return groups


def fill_state(optimizer: torch.optim.Optimizer) -> None:
    """Initialise the state of SGD and Adam with zeros for all parameters: the same first step as no state.

    Else fused SGD leaves it uninitialised if the first step is skipped, and fails if a gradient comes after others.
    """
    if not has_known_state(optimizer):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if isinstance(optimizer, torch.optim.Adam):  # also AdamW
                device = parameter.device if group["fused"] else torch.device("cpu")
                state["step"] = torch.zeros((), dtype=torch.float32, device=device)
                state["exp_avg"] = torch.zeros_like(parameter, requires_grad=False)
                state["exp_avg_sq"] = torch.zeros_like(parameter, requires_grad=False)
            elif group["momentum"] > 0:
                state["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)


@torch.no_grad()
def step_unless(optimizer: torch.optim.Optimizer, skipped: Tensor) -> None:
    """Take a step that changes nothing where `skipped`, a scalar that the host reads unless the optimizer is fused."""
    kind = type(optimizer)
    of_torch = kind.__module__.startswith("torch.")
    # an error in the code of a custom optimizer names it
    with nullcontext() if of_torch else named_errors(f"optimizer {kind.__name__}", kind.__module__):
        if all(group.get("fused") for group in optimizer.param_groups):
            # the flag by which torch's GradScaler skips steps of fused optimizers; it is compared with exactly 1
            optimizer.found_inf = skipped.to(torch.float32)  # type: ignore[attr-defined]
            try:
                optimizer.step()
            finally:
                del optimizer.found_inf  # type: ignore[attr-defined]
        elif not bool(skipped):
            optimizer.step()


def set_learning_rates(optimizer: torch.optim.Optimizer, rates: list[float]) -> None:
    """Set the learning rate of each parameter group."""
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate


def has_known_state(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether :func:`fill_state` knows the state of this type of optimizer."""
    # a subclass may add state of its own
    return type(optimizer) in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


def load_optimizer_state(
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    source: str,
    saved_type: str | None = None,
    key: Callable[..., str] = lambda *names: ", ".join(names),
) -> None:
    """Restore a saved optimizer state, including the original's, also into an optimizer that has none yet.

    Learning rates, decay and momentum come from the configuration, so that they can be changed between two runs. A
    parameter without saved state keeps its own. `saved_type` is the name of the class of the saved optimizer; None for
    SGD or AdamW, told apart by their groups. `key` returns the names of keys for errors, see
    :meth:`TrainerOptions.key`. InputError if the state belongs to other parameters or another type, or is damaged.
    """
    try:
        groups, saved, entries = optimizer.param_groups, state["param_groups"], state["state"]
        counts, found = [len(g["params"]) for g in groups], [len(g["params"]) for g in saved]
        if found != counts:
            raise InputError(
                f"{source}: its optimizer holds {found} parameters a group, this training {counts}; "
                f"{key('body.num_frozen', 'optimizer.layer_decay')} or the architecture may have changed; "
                f"use `pretrain={source}` to start from its weights"
            )
        wanted = type(optimizer).__name__
        if saved_type is None:
            adam = wanted if isinstance(optimizer, torch.optim.Adam) else "AdamW"
            saved_type = adam if any("betas" in group for group in saved) else "SGD"
        if saved_type != wanted:
            raise InputError(
                f"{source}: its optimizer is {saved_type.lower()}, this training uses {wanted.lower()}; change "
                f"{key('optimizer.type')}, or use `pretrain={source}` to start from its weights"
            )
        parameters = [parameter for group in groups for parameter in group["params"]]
        numbers = [number for group in saved for number in group["params"]]
        restored = {
            number: _restored(optimizer.state.get(parameter) or {}, entries.get(number, {}), parameter, source)
            for parameter, number in zip(parameters, numbers)
        }
        optimizer.load_state_dict(
            {
                "state": {number: entry for number, entry in restored.items() if entry},
                "param_groups": [_configured(optimizer, *both) for both in zip(groups, saved)],
            }
        )
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        start = f"use `pretrain={source}` to start from its weights"
        raise InputError(f"{source}: its optimizer state is damaged; {start}") from error


def _configured(optimizer: torch.optim.Optimizer, group: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in group.items() if has_known_state(optimizer) or key in _CONFIGURED}
    # groups of other optimizers may hold state, too, such as a number of steps
    rest = {} if has_known_state(optimizer) else {**group, **saved}
    return {**rest, **own, "params": saved["params"]}


_CONFIGURED = ("lr", "weight_decay", "momentum", "nesterov", "betas")
"""Options of optimizers of other libraries that are not taken from a snapshot."""


def _restored(own: Mapping[str, Any], saved: Mapping[str, Any], parameter: Tensor, source: str) -> dict[str, Any]:
    """Return the saved state of a parameter in its memory format; only the entries of its own state if it has one."""
    state = dict(own)
    for key, value in saved.items():
        if own and key not in own:
            continue
        target = own.get(key)
        if isinstance(target, Tensor):
            # older releases of torch save the step count as a number
            value = torch.as_tensor(value, dtype=target.dtype)
            if value.shape != target.shape:
                raise InputError(
                    f"{source}: its optimizer has a {tuple(value.shape)} tensor where this training has "
                    f"{tuple(target.shape)}; use `pretrain={source}` to start from its weights"
                )
        if isinstance(value, Tensor):
            like = parameter if value.shape == parameter.shape else value
            value = torch.empty_like(like, dtype=value.dtype, device=value.device, requires_grad=False).copy_(value)
        state[key] = value
    return state


class WeightAverage:
    """Moving average of the trainable weights and of the running means and variances, in float32.

    It starts as a copy of the weights. Update number t, from 0, keeps the fraction `min(decay, (1 + t) / (10 + t))` of
    it, so that the initial weights are forgotten early in a training. Running statistics are averaged like the weights
    they belong to. Counters of norm layers and frozen weights are taken from the network. `key` is the name of the key
    of `decay`, for errors.
    """

    def __init__(self, net: nn.Module, decay: float, key: str = "optimizer.ema") -> None:
        self.net = net
        self.decay = decay
        self._key = key
        statistics = [b for b in running_statistics(net) if b.is_floating_point()]
        self._live: list[Tensor] = [*(p for p in net.parameters() if p.requires_grad), *statistics]
        self._statistics = len(statistics)
        with torch.no_grad():
            self._averages = [t.detach().clone(memory_format=torch.preserve_format).float() for t in self._live]
        self._updates = torch.zeros((), dtype=torch.int64, device=self._live[0].device)

    @property
    def statistics(self) -> list[Tensor]:
        """The averaged running statistics, which may differ between processes."""
        return self._averages[len(self._averages) - self._statistics :]

    @torch.no_grad()
    def update(self, skipped: Tensor) -> None:
        """Include the current weights of the network, except where `skipped`: a bool scalar the host does not read."""
        keep = ((1 + self._updates) / (10 + self._updates).double()).clamp(max=self.decay)
        weight = torch.where(skipped, 0.0, 1.0 - keep).float()
        # three passes: foreach_lerp has no overload with a single weight on the device
        change = list(torch._foreach_sub(_detached(self._live), self._averages))
        torch._foreach_mul_(change, weight)
        torch._foreach_add_(self._averages, change)
        self._updates += ~skipped

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Replace the weights of the network by the average inside a `with` block, and restore them after it."""
        live = _detached(self._live)
        own = [tensor.clone() for tensor in live]
        try:
            torch._foreach_copy_(live, self._averages)
            yield
        finally:
            torch._foreach_copy_(live, own)

    def state_dict(self) -> dict[str, Any]:
        """Return the average, not copied, by part under the keys of the network's state, and the number of updates."""
        return {**self._by_part(), "updates": self._updates}

    def load_state_dict(self, state: Any, source: str) -> None:
        """Restore a saved average; InputError if it belongs to another network or is damaged."""
        own = set(map(id, self._averages))
        try:
            for part, tensors in self._by_part().items():
                for key, tensor in tensors.items():
                    if id(tensor) in own:
                        tensor.copy_(state[part][key])
            self._updates.copy_(state["updates"])
        except (KeyError, TypeError, RuntimeError):
            raise InputError(
                f"{source}: its moving average does not fit this network; set {self._key}=0 to continue without it"
            ) from None

    def reset(self) -> None:
        """Restart as a copy of the current weights of the network."""
        torch._foreach_copy_(self._averages, _detached(self._live))
        self._updates.zero_()

    def _by_part(self) -> dict[str, dict[str, Tensor]]:
        average = {id(live): mean for live, mean in zip(self._live, self._averages)}
        return {
            # keep_vars: the tensors of the network, which are matched by identity
            part: {key: average.get(id(t), t.detach()) for key, t in module.state_dict(keep_vars=True).items()}
            for part, module in network_parts(self.net).items()
        }


def _detached(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach() for tensor in tensors]
