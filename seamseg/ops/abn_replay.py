"""Running a part of the network a second time, in the backward pass, as if for the first (arXiv 1604.06174).

Activation checkpointing forgets what lies between the input and the output of a part and runs it again when its
gradient is due. Batch norm must not notice: the second run takes the statistics of the first one. So it sums up no map,
speaks to no other process, leaves the running averages alone and gives the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from .abn_steps import abn_statistics

T = TypeVar("T")


class _Tape:
    """What the norms of a part computed in its first run, in their order; `position` is where a later run stands."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.position: int | None = None


class _Run(AbstractContextManager):
    """The first run of a part, or another: one for each backward pass through the same graph, in any thread."""

    def __init__(self, tape: _Tape, again: bool) -> None:
        self._tape = tape
        self._again = again

    def __enter__(self) -> None:
        self._outer = getattr(_state, "tape", None)
        self._tape.position = 0 if self._again else None
        _state.tape = self._tape

    def __exit__(self, *error: Any) -> None:
        _state.tape = self._outer


_state = threading.local()
"""`tape`: that of the part that this thread is running. The backward pass has threads of its own."""


def replaying() -> bool:
    """Whether a part is being run again: what a layer keeps count of has been counted."""
    if torch.compiler.is_compiling():
        return False
    tape = getattr(_state, "tape", None)
    return tape is not None and tape.position is not None


def remembered(compute: Callable[..., T], *arguments: Any) -> T:
    """`compute(*arguments)`; when a part is being run again, what it gave the first time.

    Raises
    ------
    RuntimeError
        if the second run asks for more than the first one left
    """
    if torch.compiler.is_compiling():
        return compute(*arguments)
    tape = getattr(_state, "tape", None)
    if tape is None:
        return compute(*arguments)
    if tape.position is None:
        value = compute(*arguments)
        tape.values.append(value)
        return value
    if tape.position == len(tape.values):
        raise RuntimeError(
            f"checkpointing: a part of the network ran {tape.position} norm layers in the forward pass and more in the "
            "backward pass; it must do the same each time"
        )
    tape.position += 1
    return tape.values[tape.position - 1]


def checkpointed(part: nn.Module, *inputs: Any) -> Any:
    """`part(*inputs)`, of which only inputs and outputs are kept for the backward pass, which runs it again.

    Losses, gradients and running statistics are those of a plain call, bit by bit on the CPU. Parts must not be nested.
    Under `torch.compile` the compiler plans the second run; there, too, statistics and their exchange between
    processes are kept.

    Parameters
    ----------
    part : layers whose second run gives the same, dropout included
    inputs : its arguments
    """
    if not torch.is_grad_enabled():
        return part(*inputs)
    if torch.compiler.is_compiling():
        keep = partial(create_selective_checkpoint_contexts, _keep_statistics)
        return checkpoint(part, *inputs, use_reentrant=False, context_fn=keep)
    # looking up the state of the generators costs a wait for the device
    by_chance = any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in part.modules())
    return checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=by_chance, context_fn=_contexts)


def _keep_statistics(context: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    # the exchange between processes, too, happens in the first run only
    keep = operator is abn_statistics or getattr(operator, "namespace", "") == "_c10d_functional"
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
    tape = _Tape()
    return _Run(tape, again=False), _Run(tape, again=True)
