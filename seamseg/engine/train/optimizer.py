"""SGD over two groups of parameters, those of normalisation layers and the others (SPEC section 2 `[optimizer]`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from seamseg.config import Config
from seamseg.errors import InputError
from seamseg.ops.norm import ABN

_NORM_LAYERS = (ABN, _BatchNorm, nn.GroupNorm, nn.LayerNorm)


def split_parameters(module: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trainable parameters of normalisation layers, and all other trainable ones, each in the order of the modules.

    The order is part of the snapshot format: an optimizer state names parameters by their place in it.
    """
    norm: list[nn.Parameter] = []
    other: list[nn.Parameter] = []
    seen: set[nn.Parameter] = set()
    for layer in module.modules():
        group = norm if isinstance(layer, _NORM_LAYERS) else other
        for parameter in layer.parameters(recurse=False):
            if parameter.requires_grad and parameter not in seen:
                seen.add(parameter)
                group.append(parameter)
    return norm, other


def build_optimizer(net: nn.Module, config: Config) -> torch.optim.SGD:
    """SGD with Nesterov momentum; group 0 are the normalisation parameters, group 1 the others.

    Normalisation parameters have learning rate 0 when `body.bn_frozen`, and weight decay only with
    `optimizer.weight_decay_norm`. Parameters that need no gradient are in neither group.
    """
    options = config.optimizer
    norm, other = split_parameters(net)
    groups = [
        {
            "params": norm,
            "lr": 0.0 if config.body.bn_frozen else options.lr,
            "weight_decay": options.weight_decay if options.weight_decay_norm else 0.0,
        },
        {"params": other, "lr": options.lr, "weight_decay": options.weight_decay},
    ]
    return torch.optim.SGD(
        groups,
        lr=options.lr,
        momentum=options.momentum,
        nesterov=options.nesterov and options.momentum > 0,
        fused=all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in (*norm, *other)),
    )


def load_optimizer_state(optimizer: torch.optim.SGD, state: Mapping[str, Any], source: str) -> None:
    """Take the momentum out of a saved optimizer state, also of the original's.

    Rates, decay and momentum stay those of the configuration, so that they can be changed between two runs.

    Parameters
    ----------
    optimizer : over the same parameters, with the device and memory format to keep
    state : what `state_dict()` of the optimizer gave
    source : file it comes from, for messages

    Raises
    ------
    InputError
        if it belongs to other parameters
    """
    groups, saved = optimizer.param_groups, state.get("param_groups", [])
    counts = [len(g["params"]) for g in groups]
    if [len(g["params"]) for g in saved] != counts:
        raise InputError(
            f"{source}: its optimizer holds {[len(g['params']) for g in saved]} parameters a group, this training "
            f"{counts}; were body.num_frozen or the architecture changed? start anew with --pre-train {source}"
        )
    for group, saved_group in zip(groups, saved):
        for parameter, index in zip(group["params"], saved_group["params"]):
            momentum = state["state"].get(index, {}).get("momentum_buffer")
            if momentum is None:
                continue
            if momentum.shape != parameter.shape:
                raise InputError(
                    f"{source}: its optimizer has a {tuple(momentum.shape)} tensor where this training has "
                    f"{tuple(parameter.shape)}; start anew with --pre-train {source}"
                )
            buffer = torch.empty_like(parameter, memory_format=torch.preserve_format)
            optimizer.state[parameter]["momentum_buffer"] = _copied(buffer, momentum)


@torch.no_grad()
def _copied(target: Tensor, values: Tensor) -> Tensor:
    return target.detach().copy_(values)


def set_learning_rates(optimizer: torch.optim.Optimizer, rates: list[float]) -> None:
    """Give each parameter group its rate."""
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate
