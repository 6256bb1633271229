"""The state of an optimizer out of a snapshot, ours or the original's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from seamseg.errors import InputError


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], source: str) -> None:
    """Take the momenta (and of AdamW the step counts) out of a saved optimizer state, also of the original's.

    Rates, decay and momentum stay those of the configuration, so that they can be changed between two runs. A parameter
    of which nothing is saved starts anew.

    Parameters
    ----------
    optimizer : over the same parameters, with the device and memory format to keep
    state : what `state_dict()` of the optimizer gave
    source : file it comes from, for messages

    Raises
    ------
    InputError
        if it belongs to other parameters or another type of optimizer, or is damaged
    """
    saved, entries = _checked(state, source)
    groups = optimizer.param_groups
    counts, found = [len(g["params"]) for g in groups], [len(g["params"]) for g in saved]
    if found != counts:
        raise InputError(
            f"{source}: its optimizer holds {found} parameters a group, this training {counts}; "
            f"were body.num_frozen or the architecture changed? start anew with --pre-train {source}"
        )
    wanted = "adamw" if isinstance(optimizer, torch.optim.AdamW) else "sgd"
    name = "adamw" if any("betas" in group for group in saved) else "sgd"
    if name != wanted:
        raise InputError(
            f"{source}: its optimizer is {name}, this training's {wanted}; set optimizer.type = {name}, or start anew "
            f"with --pre-train {source}"
        )
    for group, saved_group in zip(groups, saved):
        for parameter, index in zip(group["params"], saved_group["params"]):
            for key, target in optimizer.state[parameter].items():
                value = entries.get(index, {}).get(key)
                if value is not None:
                    _fill(target, value, source)


def _checked(state: Any, source: str) -> tuple[list[Mapping[str, Any]], Mapping[Any, Mapping[str, Any]]]:
    groups = state.get("param_groups") if isinstance(state, Mapping) else None
    entries = state.get("state") if isinstance(state, Mapping) else None
    if (
        not isinstance(groups, (list, tuple))
        or not all(isinstance(g, Mapping) and isinstance(g.get("params"), (list, tuple)) for g in groups)
        or not isinstance(entries, Mapping)
        or not all(isinstance(entry, Mapping) for entry in entries.values())
    ):
        raise InputError(f"{source}: its optimizer state is damaged; start anew with --pre-train {source}")
    return list(groups), entries


@torch.no_grad()
def _fill(target: Tensor, value: Any, source: str) -> None:
    # older releases of torch wrote the step count as a number
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    if tensor.shape != target.shape:
        raise InputError(
            f"{source}: its optimizer has a {tuple(tensor.shape)} tensor where this training has "
            f"{tuple(target.shape)}; start anew with --pre-train {source}"
        )
    target.copy_(tensor)
