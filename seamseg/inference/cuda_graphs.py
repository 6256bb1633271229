"""A function of one tensor recorded as CUDA graphs, one a shape: replayed, its hundreds of kernels are one launch.

What is recorded, and when, is here for any device; only :class:`CudaGraph` needs a GPU.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils import _pytree

from seamseg.utils.device_memory import free_memory, lacks_memory

MOST = 8
"""Shapes that are kept."""
REMEMBERED = 1024
"""Shapes that were seen once, and are recorded when they come again."""
WARM_UP = 2
"""Runs before a recording: libraries choose their algorithms, a compiler makes its code."""

Function = Callable[[Tensor], Any]
"""From a tensor to tensors, in tuples and lists with whatever else depends on its shape only."""


class Recording(Protocol):
    """A function recorded for one shape."""

    def __call__(self, x: Tensor) -> Any:
        """The outputs for a tensor of this shape, the caller's own."""
        ...


_CAPTURE = threading.Lock()
"""Held from warm-up to the end of a capture: CUDA allows one capture at a time, and no device-wide synchronisation from
another thread while it lasts."""


def input_buffer(x: Tensor) -> Tensor:
    """An empty tensor with the shape, strides, dtype and device of `x`, an inference tensor if `x` is one.

    A compiled function is compiled again where an input changes from an inference tensor to a normal one.
    """
    with torch.inference_mode(x.is_inference()), torch.no_grad():
        return torch.empty_like(x)


def fill(buffer: Tensor, x: Tensor) -> None:
    """Copy `x` into a buffer from :func:`input_buffer`, in any mode: inference tensors are read-only elsewhere."""
    with torch.inference_mode():
        buffer.copy_(x, non_blocking=True)


class CudaGraph:
    """A recording on a GPU.

    Its input and outputs lie where they lay when it was made: a call copies the input there, replays, and copies the
    outputs out, so that nothing it gave changes with the next call.

    Parameters
    ----------
    function : what is recorded; may not wait for the GPU
    x : of the shape that it is recorded for
    stream : to capture on, of the device of `x`
    beside : another recording, captured on the same stream, whose memory it shares: their calls come one after the
        other, also on several streams
    """

    def __init__(self, function: Function, x: Tensor, stream: torch.cuda.Stream, beside: CudaGraph | None) -> None:
        self._last: Any = torch.cuda.Event() if beside is None else beside._last
        self._input = input_buffer(x)
        fill(self._input, x)
        with _CAPTURE, torch.cuda.device(x.device):
            now = torch.cuda.current_stream()
            stream.wait_stream(now)
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    function(self._input)
            now.wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            pool = None if beside is None else beside._graph.pool()
            # thread_local: other threads may allocate and launch kernels meanwhile
            with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self._outputs = function(self._input)

    def __call__(self, x: Tensor) -> Any:
        """The outputs for a tensor of this shape, the caller's own."""
        stream = torch.cuda.current_stream(x.device)
        stream.wait_event(self._last)
        fill(self._input, x)
        self._graph.replay()
        outputs = own(self._outputs)
        self._last.record(stream)
        return outputs


class Recordings:
    """A function that is recorded for a shape when this comes for the second time, and replayed from then on.

    Shapes that come once only are run as ever: recording takes as long as several runs. At most `most` are kept;
    beyond, the one that was not used for longest goes, and must come twice again. Their memory: input and outputs of
    each, and what the largest needs in between. May be called from several threads.

    Parameters
    ----------
    function : its outputs depend on the tensor only
    record : makes a recording of a function for the shape of a tensor
    most : recordings that are kept
    """

    def __init__(self, function: Function, record: Callable[[Function, Tensor], Recording], most: int = MOST) -> None:
        self.function = function
        self.record = record
        self.most = most
        self._recordings: OrderedDict[Any, Recording] = OrderedDict()
        self._once: OrderedDict[Any, None] = OrderedDict()
        # two threads would write to one input
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._recordings)

    def __call__(self, x: Tensor) -> Any:
        """The outputs of the function."""
        key = (tuple(x.shape), tuple(x.stride()), x.dtype, x.device, x.is_inference())
        with self._lock:
            found = self._recordings.get(key)
            if found is not None:
                self._recordings.move_to_end(key)
                return found(x)
            if key in self._once:
                made = self._make(key, x)
                if made is not None:
                    return made(x)
            else:
                self._once[key] = None
                while len(self._once) > REMEMBERED:
                    self._once.popitem(last=False)
        return self.function(x)

    def _make(self, key: Any, x: Tensor) -> Recording | None:
        """A recording for a tensor's shape; None where the memory does not suffice for one more."""
        del self._once[key]
        while len(self._recordings) >= self.most:
            self._recordings.popitem(last=False)
        try:
            made = self._recordings[key] = self.record(self.function, x)
            return made
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
        # outside of the handler: the error holds on to what the function had made
        self._drop()
        return None

    def forget(self) -> bool:
        """Drop all recordings, where memory is wanted; whether there were any."""
        with self._lock:
            return self._drop()

    def _drop(self) -> bool:
        there = bool(self._recordings)
        self._recordings.clear()
        self._once.clear()
        free_memory()
        return there


def recorded_on_gpu(function: Function, most: int = MOST) -> Recordings:
    """A function recorded as CUDA graphs that share their memory."""
    # by default torch captures on a stream of the device that captured first in the process: nothing of another device
    # would be in the graph
    stream_of = functools.cache(torch.cuda.Stream)
    # a pool that no recording holds any more may be gone
    there: WeakSet[CudaGraph] = WeakSet()

    def record(function: Function, x: Tensor) -> CudaGraph:
        made = CudaGraph(function, x, stream_of(x.device), next(iter(there), None))
        there.add(made)
        return made

    return Recordings(function, record, most)


def own(outputs: Any) -> Any:
    """Copies of all tensors in tuples and lists, in their memory formats."""
    return _pytree.tree_map_only(Tensor, torch.clone, outputs)
