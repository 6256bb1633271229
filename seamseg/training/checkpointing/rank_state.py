"""What each process of a training holds of its own: chance, running statistics, averages of its losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seamseg.checkpoints.snapshot import NETWORK_MODULES, network_parts
from seamseg.training.checkpointing.rng import random_state
from seamseg.utils.distributed import World, gather_objects


def gather_rank_states(
    world: World, net: nn.Module, averaged: Mapping[str, Any], losses: dict[str, Any]
) -> list[dict[str, Any]]:
    """The state of every process, by rank; a collective call.

    Buffers that equal those of the main process, which the snapshot has anyway, are left out.

    Parameters
    ----------
    net : with the parts of :data:`NETWORK_MODULES`; its buffers are averaged over the processes once an epoch only
    averaged : moving averages of the network by part, empty without; those of buffers differ as the buffers do
    losses : averages of the losses of this process
    """
    buffers = {f"{part}.{key}": value.detach().cpu().clone() for part, key, value in _buffers(net, _states(net))}
    means = {f"{part}.{key}": value.detach().cpu().clone() for part, key, value in _buffers(net, averaged)}
    own = {"random": random_state(world.device), "losses": losses, "buffers": buffers, "ema": means}
    states = gather_objects(world, own)
    main = states[0]
    for state in states[1:]:
        for kind in ("buffers", "ema"):
            state[kind] = {key: value for key, value in state[kind].items() if not torch.equal(value, main[kind][key])}
    main["buffers"], main["ema"] = {}, {}
    return states


def load_rank_state(state: Mapping[str, Any], net: nn.Module) -> None:
    """Give this process its running statistics; the network holds the main process' already."""
    tensors = {f"{part}.{key}": value for part, key, value in _buffers(net, _states(net))}
    for name, value in state["buffers"].items():
        tensors[name].copy_(value)


def with_own_averages(averaged: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Moving averages of a snapshot, with those of a process' buffers in place of the main process'."""
    own = state["ema"]
    parts = {part: averaged[part] for part in NETWORK_MODULES if part in averaged}
    mixed = {part: {k: own.get(f"{part}.{k}", v) for k, v in tensors.items()} for part, tensors in parts.items()}
    return {**averaged, **mixed}


def pooled_losses(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Averages of losses for processes that are not those that took them: the mean over these."""
    return _mean([state["losses"] for state in states])


def _mean(values: list[Any]) -> Any:
    if isinstance(values[0], Mapping):
        return {key: _mean([value[key] for value in values if key in value]) for key in values[0]}
    return sum(values) / len(values)


def _states(net: nn.Module) -> dict[str, dict[str, Tensor]]:
    return {part: module.state_dict() for part, module in network_parts(net).items()}


def _buffers(net: nn.Module, states: Mapping[str, Any]) -> list[tuple[str, str, Tensor]]:
    """Part, key and value of those entries that are buffers of the network."""
    parts = network_parts(net)
    names = {part: {n for n, _ in module.named_buffers()} for part, module in parts.items() if part in states}
    return [(part, key, value) for part in names for key, value in states[part].items() if key in names[part]]
