"""The update of an optimizer: a step that the device may skip, and its learning rates."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from seamseg.utils.component_errors import named_errors


@torch.no_grad()
def step_unless(optimizer: torch.optim.Optimizer, skipped: Tensor, goes_on: bool = False) -> None:
    """Take a step that, where `skipped`, changes neither parameters nor state; the host does not read the flag.

    It does read it for optimizers without :func:`has_known_state` as long as parameters have no state, and if the
    training goes on after a skipped step: the state of these may have numbers of Python.

    Parameters
    ----------
    optimizer : fused or not
    skipped : bool scalar on the device of the parameters
    goes_on : whether further steps are taken after a skipped one, as with fp16
    """
    known = has_known_state(optimizer)
    if goes_on and not known and bool(skipped):
        return
    if all(group.get("fused") for group in optimizer.param_groups):
        # the flag by which torch's GradScaler skips steps of fused optimizers; it is compared with exactly 1
        optimizer.found_inf = skipped.to(torch.float32)  # type: ignore[attr-defined]
        try:
            _step(optimizer)
        finally:
            del optimizer.found_inf  # type: ignore[attr-defined]
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    # what a step has made cannot be undone
    if not known and any(not optimizer.state.get(p) for p in parameters) and bool(skipped):
        return
    states = [value for p in parameters for value in optimizer.state[p].values() if isinstance(value, Tensor)]
    tensors = [p.detach() for p in parameters] + states
    before = [tensor.clone() for tensor in tensors]
    _step(optimizer)
    for tensor, old in zip(tensors, before):
        # the step counts of AdamW may be on the CPU
        tensor.copy_(torch.where(skipped.to(tensor.device), old, tensor))


def _step(optimizer: torch.optim.Optimizer) -> None:
    """Take a step; an error in the code of a custom optimizer names it."""
    kind = type(optimizer)
    of_torch = kind.__module__.startswith("torch.")
    with nullcontext() if of_torch else named_errors(f"optimizer {kind.__name__}", kind.__module__):
        optimizer.step()


def set_learning_rates(optimizer: torch.optim.Optimizer, rates: list[float]) -> None:
    """Set the learning rate of each parameter group."""
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate


def has_known_state(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether :func:`seamseg.training.optim.optimizer.fill_state` knows the state of this type of optimizer."""
    # a subclass may add state of its own
    return type(optimizer) in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
