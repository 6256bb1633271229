"""Activation checkpointing of layers with batch norm: the backward pass computes a part again (arXiv 1604.06174).

Activation checkpointing keeps the inputs and outputs of a part and computes the tensors between them a second time when
the gradient is due. The batch norms of the part take the statistics of the first run from a cache. The second run
thus computes no statistics, communicates with no other process, leaves the running averages alone and gives the same
bits.
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

from seamseg.ops.abn_steps import abn_statistics

T = TypeVar("T")


class _Run(AbstractContextManager[None]):
    """The first run of a part, or a recomputation: one for each backward pass through the same graph, in any thread.

    `statistics` are those of the norms in the first run, in order; `left` those that a recomputation has not used.
    """

    def __init__(self, statistics: list[Any], recompute: bool) -> None:
        self.statistics = statistics
        self.recompute = recompute

    def __enter__(self) -> None:
        self.left = iter(self.statistics)
        self._outer = getattr(_state, "run", None)
        _state.run = self

    def __exit__(self, *error: Any) -> None:
        _state.run = self._outer


_state = threading.local()
"""`run` of the part that this thread is running. The backward pass has threads of its own."""
_in_compiled_part = False
"""Whether a checkpointed part is being compiled; a plain variable, which the compiler can follow."""


def recomputing() -> bool:
    """Return whether a part is being recomputed: its layers have counted this batch before."""
    run = None if torch.compiler.is_compiling() else getattr(_state, "run", None)
    return run is not None and run.recompute


def cached_statistics(compute: Callable[..., T], *arguments: Any) -> T:
    """Return `compute(*arguments)`, in a recomputation the value of the first run."""
    run: _Run | None = None if torch.compiler.is_compiling() else getattr(_state, "run", None)
    if run is None:
        return compute(*arguments)
    if not run.recompute:
        run.statistics.append(compute(*arguments))
        value: T = run.statistics[-1]
        return value
    first: T | None = next(run.left, None)
    if first is None:
        raise RuntimeError("checkpointing: a part of the network ran more norms in the backward pass than before")
    return first


def checkpointed(part: Callable[..., Any], *inputs: Any) -> Any:
    """Run `part(*inputs)`, keeping only inputs and outputs for the backward pass, which recomputes the rest.

    Losses, gradients and running statistics equal a plain call, bit by bit on the CPU. A part inside another one is
    called plainly, as are all parts of an exported network. Under `torch.compile` the compiler plans the
    recomputation; there, too, statistics and their exchange between processes are kept. `part` must compute the same in
    both runs; a function must not contain dropout.
    """
    global _in_compiled_part
    compiling = torch.compiler.is_compiling()
    inside = _in_compiled_part if compiling else getattr(_state, "run", None) is not None
    if inside or not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return part(*inputs)
    if compiling:
        keep = partial(create_selective_checkpoint_contexts, _keep_statistics)
        _in_compiled_part = True
        try:
            return checkpoint(part, *inputs, use_reentrant=False, context_fn=keep)
        finally:
            _in_compiled_part = False
    # the states of the random number generators are kept for dropout only: copying them costs time in every call
    layers = part.modules() if isinstance(part, nn.Module) else ()
    random = any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in layers)
    statistics: list[Any] = []

    def contexts() -> tuple[_Run, _Run]:
        return _Run(statistics, recompute=False), _Run(statistics, recompute=True)

    return checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=random, context_fn=contexts)


def _keep_statistics(context: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    # the exchange between processes, too, happens in the first run only
    keep = operator is abn_statistics or getattr(operator, "namespace", "") == "_c10d_functional"
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE
