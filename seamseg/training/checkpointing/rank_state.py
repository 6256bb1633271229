"""The state that differs between the processes of a training: RNG, running statistics, averages of the losses."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seamseg.checkpoints.snapshot import NETWORK_MODULES, network_parts
from seamseg.utils.distributed import World, gather_objects


def seed_everything(seed: int, epoch: int, rank: int, step: int | None = None) -> None:
    """Seed the RNGs of Python, NumPy and torch for an epoch of a process, or for its remainder from a step on.

    The seed depends on the arguments only, so a resumed run continues exactly as the uninterrupted one.
    """
    words = ["seamseg", seed, epoch, rank, *([] if step is None else [step])]
    value = random.Random("/".join(map(str, words))).getrandbits(63)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the state of all RNGs of this process as tensors and plain numbers."""
    version, internal, python_gauss = random.getstate()
    twister: Any = np.random.get_state(legacy=False)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "state": torch.tensor(internal), "gauss": python_gauss},
        "numpy": {
            "keys": torch.from_numpy(twister["state"]["key"].astype(np.int64)),
            "position": int(twister["state"]["pos"]),
            "has_gauss": int(twister["has_gauss"]),
            "gauss": float(twister["gauss"]),
        },
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore a state from :func:`rng_state`; the RNG of a GPU only if both state and device have one."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["state"].tolist()), python["gauss"]))
    keys: Tensor = numpy["keys"]
    np.random.set_state(
        ("MT19937", keys.numpy().astype(np.uint32), numpy["position"], numpy["has_gauss"], numpy["gauss"])
    )
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def gather_rank_states(
    world: World, net: nn.Module, averaged: Mapping[str, Any], losses: dict[str, Any]
) -> list[dict[str, Any]]:
    """Gather random numbers, buffers and averages of every process, by rank; a collective call.

    Buffers equal to the buffers of the main process, which the snapshot holds anyway, are omitted: they are made equal
    once an epoch only. `averaged` are the moving averages of the network by part, `losses` the averages of the losses.
    """
    states = _states(net), averaged
    buffers, means = ({k: value.detach().cpu().clone() for k, value in _buffers(net, of).items()} for of in states)
    own = {"random": rng_state(world.device), "losses": losses, "buffers": buffers, "ema": means}
    gathered = gather_objects(world, own)
    main = gathered[0]
    for state in gathered[1:]:
        for kind in ("buffers", "ema"):
            state[kind] = {key: value for key, value in state[kind].items() if not torch.equal(value, main[kind][key])}
    main["buffers"], main["ema"] = {}, {}
    return gathered


def load_rank_buffers(state: Mapping[str, Any], net: nn.Module) -> None:
    """Restore the running statistics of this process in a network with the statistics of the main process."""
    tensors = _buffers(net, _states(net))
    for name, value in state["buffers"].items():
        tensors[name].copy_(value)


def with_rank_averages(averaged: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the moving averages of buffers in a snapshot, of the main process, by the averages of another process."""
    own = state["ema"]
    parts = {part: averaged[part] for part in NETWORK_MODULES if part in averaged}
    mixed = {part: {k: own.get(f"{part}.{k}", v) for k, v in tensors.items()} for part, tensors in parts.items()}
    return {**averaged, **mixed}


def _states(net: nn.Module) -> dict[str, dict[str, Tensor]]:
    return {part: module.state_dict() for part, module in network_parts(net).items()}


def _buffers(net: nn.Module, states: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return those entries of states by part that are buffers of the network, by name."""
    parts = network_parts(net)
    names = {part: {n for n, _ in module.named_buffers()} for part, module in parts.items() if part in states}
    return {f"{part}.{key}": value for part in names for key, value in states[part].items() if key in names[part]}
