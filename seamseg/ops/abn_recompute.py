"""Activation checkpointing of layers with batch norm: the backward pass computes a part again (arXiv 1604.06174).

:func:`checkpointed` is for several layers, :func:`recomputed` for the output of one cheap layer.

Activation checkpointing keeps the inputs and outputs of a part and computes the tensors between them a second time when
the gradient is due. The batch norms of the part take the statistics of the first run from a cache. The second run
thus computes no statistics, communicates with no other process, leaves the running averages alone and gives the same
bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
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


@contextmanager
def recomputed(layer: Callable[[Tensor], Tensor], make_input: Callable[[], Tensor]) -> Iterator[Tensor]:
    """Run a cheap layer; operations of the `with` block do not keep its output for the backward pass.

    The backward pass computes it again from `make_input`, with the same statistics: gradients and running statistics
    equal a plain call, bit by bit. It saves memory where the input is kept anyway, or made from what is. The
    layer maps `N x C x H x W` to the same shape; its output must not be used after the block.
    """
    if torch.compiler.is_compiling() or not _can_recompute():
        yield layer(make_input())
        return
    cache = _StatisticsCache()
    output = _Recomputed(layer, make_input, cache)
    with torch.autograd.graph.saved_tensors_hooks(output.pack, output.unpack):
        with _Run(cache, recompute=False):
            y = output.first_run()
        yield y


@dataclass
class _Saved:
    """A tensor that the layer itself saved in its first run; None for its output, which is computed again."""

    tensor: Tensor | None


class _Recomputed:
    """The output of a layer, kept as what it is computed from; its value lives from its first use to its last."""

    def __init__(
        self, layer: Callable[[Tensor], Tensor], make_input: Callable[[], Tensor], cache: _StatisticsCache
    ) -> None:
        self._layer, self._make_input, self._cache = layer, make_input, cache
        self._output: tuple[Any, ...] | None = None
        self._saved: list[_Saved] = []
        self._uses = self._left = 0
        self._value: Tensor | None = None

    def first_run(self) -> Tensor:
        y = self._layer(self._make_input())
        self._output = _place(y)
        for saved in self._saved:
            if saved.tensor is not None and _place(saved.tensor) == self._output:
                saved.tensor = None
                self._uses += 1
        self._saved.clear()
        return y

    def pack(self, tensor: Tensor) -> Any:
        if self._output is None:
            # the layer saves its output before it returns it: only then its address is known
            self._saved.append(_Saved(tensor))
            return self._saved[-1]
        if _place(tensor) != self._output:
            return tensor
        self._uses += 1
        return self

    def unpack(self, kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        tensor: Tensor | None = kept.tensor if isinstance(kept, _Saved) else None
        return self._get() if tensor is None else tensor

    def _get(self) -> Tensor:
        if self._value is None:
            with torch.no_grad(), _Run(self._cache, recompute=True):
                self._value = self._layer(self._make_input())
            self._left = self._uses
        value = self._value
        self._left -= 1
        if self._left == 0:
            self._value = None
        return value


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Return what identifies the memory of a tensor as long as it lives, of fake tensors too."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()


def _keep_statistics(context: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    # the exchange between processes, too, happens in the first run only
    keep = operator is abn_statistics or getattr(operator, "namespace", "") == "_c10d_functional"
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    cache = _StatisticsCache()
    return _Run(cache, recompute=False), _Run(cache, recompute=True)
