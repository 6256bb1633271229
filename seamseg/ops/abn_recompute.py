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


class _StatisticsCache:
    """Statistics of the norms of a part in its first run, in order; `position` is the next entry of a later run."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.position: int | None = None


class _Run(AbstractContextManager[None]):
    """The first run of a part, or a recomputation: one for each backward pass through the same graph, in any thread."""

    def __init__(self, cache: _StatisticsCache, recompute: bool) -> None:
        self._cache = cache
        self._recompute = recompute

    def __enter__(self) -> None:
        self._outer = getattr(_state, "cache", None)
        self._cache.position = 0 if self._recompute else None
        _state.cache = self._cache

    def __exit__(self, *error: Any) -> None:
        _state.cache = self._outer


_state = threading.local()
"""`cache` of the part that this thread is running. The backward pass has threads of its own."""
_in_compiled_part = False
"""Whether a checkpointed part is being compiled; a plain variable, which the compiler can follow."""


def recomputing() -> bool:
    """Return whether a part is being recomputed: its layers have counted this batch before."""
    if torch.compiler.is_compiling():
        return False
    cache = getattr(_state, "cache", None)
    return cache is not None and cache.position is not None


def cached_statistics(compute: Callable[..., T], *arguments: Any) -> T:
    """Return `compute(*arguments)`, in a recomputation the value of the first run."""
    if torch.compiler.is_compiling():
        return compute(*arguments)
    cache: _StatisticsCache | None = getattr(_state, "cache", None)
    if cache is None:
        return compute(*arguments)
    if cache.position is None:
        value = compute(*arguments)
        cache.values.append(value)
        return value
    if cache.position == len(cache.values):
        raise RuntimeError(
            f"checkpointing: a part of the network ran {cache.position} norm layers in the forward pass and more in "
            "the backward pass; it must do the same each time"
        )
    cache.position += 1
    first: T = cache.values[cache.position - 1]
    return first


def checkpointed(part: Callable[..., Any], *inputs: Any) -> Any:
    """Run `part(*inputs)`, keeping only inputs and outputs for the backward pass, which recomputes the rest.

    Losses, gradients and running statistics equal a plain call, bit by bit on the CPU. A part inside of another one is
    called plainly, as are all parts of an exported network. Under `torch.compile` the compiler plans the
    recomputation; there, too, statistics and their exchange between processes are kept. `part` must compute the same in
    both runs; a function must not contain dropout.
    """
    if not _can_recompute():
        return part(*inputs)
    if torch.compiler.is_compiling():
        global _in_compiled_part
        keep = partial(create_selective_checkpoint_contexts, _keep_statistics)
        _in_compiled_part = True
        try:
            return checkpoint(part, *inputs, use_reentrant=False, context_fn=keep)
        finally:
            _in_compiled_part = False
    # the states of the random number generators are kept for dropout only: copying them costs time in every call
    layers = part.modules() if isinstance(part, nn.Module) else ()
    random = any(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in layers)
    return checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=random, context_fn=_contexts)


def _can_recompute() -> bool:
    if not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return False
    return not _in_compiled_part if torch.compiler.is_compiling() else getattr(_state, "cache", None) is None


def _keep_statistics(context: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    # the exchange between processes, too, happens in the first run only
    keep = operator is abn_statistics or getattr(operator, "namespace", "") == "_c10d_functional"
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    cache = _StatisticsCache()
    return _Run(cache, recompute=False), _Run(cache, recompute=True)
