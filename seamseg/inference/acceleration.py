"""Faster inference on many images: compiled code, fewer input sizes, and CUDA graphs.

A CUDA graph is a function of tensors, captured for their shapes: its hundreds of kernels become one launch. The cache
works on any device; only :class:`CudaGraph` needs a GPU.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from seamseg.models.network import Network, mark_sizes_dynamic
from seamseg.utils.errors import SeamsegError, first_line, free_memory, lacks_memory
from seamseg.utils.output import console, echo

MAX_GRAPHS = 8
"""Graphs that are kept."""
MAX_SHAPES = 1024
"""Shapes that are remembered after their first use, to be captured at the second."""
WARM_UP = 2
"""Runs before a capture, in which libraries choose their algorithms and compilers generate code."""

Function = Callable[[Any], Any]
"""From a tensor, or a tuple of them, to tensors in tuples and lists, with other values that depend on shapes only; the
memory of all is the caller's. A recorded function takes tensors of one shape."""


_CAPTURE = threading.Lock()
"""Held from warm-up to the end of a capture. CUDA allows one capture at a time, and meanwhile no device-wide
synchronisation in another thread."""


def compiler_problem(device: torch.device, backend: str = "inductor") -> str | None:
    """Compile a function of one line, to C++ or Triton, and return the error; None if it works."""
    try:
        torch.compile(lambda x: (x + 1).sin(), backend=backend)(torch.ones(8, device=device))
    except Exception as error:  # each missing tool has its own type
        return first_line(error)
    return None


class CompiledDense:
    """:meth:`seamseg.models.network.Network.dense`, compiled once for all heights and widths.

    The compiler runs at the first call, and again for another number of images and, with torch 2.11, for maps of an odd
    instead of an even height; each time a line is printed to stderr. For inference only: on a CPU the weights of `net`
    become constants. SeamsegError if the compiler does not work here.
    """

    def __init__(self, net: Network, device: torch.device, backend: str = "inductor") -> None:
        reason = compiler_problem(device, backend)
        if reason is not None:
            raise SeamsegError(f"`compile=True`: torch.compile does not work here ({reason})")
        self.device = device
        self._backend = backend
        self._size = ""
        self._run = torch.compile(net.dense, backend=self._compile)

    def __call__(self, padded: Tensor) -> Any:
        """Run the network on a padded batch.

        SeamsegError if the compiler fails; if the memory does not suffice the error is one of
        :func:`seamseg.utils.errors.lacks_memory`.
        """
        from torch._inductor import config

        self._size = f"{padded.shape[-1]} x {padded.shape[-2]}"
        mark_sizes_dynamic([padded])
        try:
            # oneDNN packs constant weights once, and fuses activations into the convolutions
            with config.patch(freezing=self.device.type == "cpu"):
                return self._run(padded)
        except torch._dynamo.exc.TorchDynamoException as error:
            inner = getattr(error, "inner_exception", None)
            if inner is not None and lacks_memory(inner):
                raise inner from None
            raise SeamsegError(
                f"`compile=True`: torch.compile fails for {self._size} pixels ({first_line(error)})"
            ) from error

    def _compile(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        """Run the backend of torch.compile after a message, since it takes minutes."""
        if not console.quiet:
            echo(
                f"{self.device}: compiling the network, first used with {self._size} pixels; this takes minutes",
                file=sys.stderr,
                flush=True,
            )
        if self._backend != "inductor":
            return torch._dynamo.lookup_backend(self._backend)(graph, inputs)
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(graph, inputs)


def input_buffer(x: Any) -> Any:
    """Return empty tensors with the shape, strides, dtype and device of those of `x`, inference tensors if they are.

    Compiled functions are compiled again if an input changes between inference tensors and normal ones.
    """

    def like(tensor: Tensor) -> Tensor:
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            return torch.empty_like(tensor)

    return _pytree.tree_map(like, x)


def fill(buffer: Any, x: Any) -> None:
    """Copy `x` into a buffer from :func:`input_buffer`; outside of inference mode inference tensors are read-only."""
    with torch.inference_mode():
        for kept, new in zip(_pytree.tree_leaves(buffer), _pytree.tree_leaves(x), strict=True):
            kept.copy_(new, non_blocking=True)


class CudaGraph:
    """A function recorded on a GPU, which must not wait for the GPU, for tensors of the shapes of `x`.

    A call copies its input to a fixed place, replays the graph, and returns copies of the outputs. What the function
    reads beside its input must stay where it is: it is kept if it is part of the outputs, but no tensor. The memory
    pool of `shared` is used, too: their calls are serialised, also on several streams.
    """

    def __init__(self, function: Function, x: Any, shared: CudaGraph | None) -> None:
        device: torch.device = _pytree.tree_leaves(x)[0].device
        self._last: Any = torch.cuda.Event() if shared is None else shared._last
        # by default torch captures on a stream of the device of the first capture in the process: graphs of other
        # devices would be empty
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device) if shared is None else shared._stream
        stream = self._stream
        self._input = input_buffer(x)
        fill(self._input, x)
        with _CAPTURE, torch.cuda.device(device):
            now = torch.cuda.current_stream()
            stream.wait_stream(now)
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    function(self._input)
            now.wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            pool = None if shared is None else shared._graph.pool()
            # thread_local: other threads may allocate and launch kernels meanwhile
            with torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self._outputs = function(self._input)

    def __call__(self, x: Any) -> Any:
        """Return the outputs for tensors of these shapes, in memory of the caller."""
        stream = torch.cuda.current_stream(self._stream.device)
        stream.wait_event(self._last)
        fill(self._input, x)
        self._graph.replay()
        outputs = copy_tensors(self._outputs)
        self._last.record(stream)
        return outputs


class CudaGraphCache:
    """A function of tensors that is recorded for their shapes at the second use, and replayed from then on.

    Recording takes as long as several runs. The least recently used graph is dropped beyond `max_graphs`, and its shape
    must be used twice again. May be called from several threads.
    """

    def __init__(self, function: Function, record: Any = None, max_graphs: int = MAX_GRAPHS) -> None:
        self.function = function
        # a pool that no graph uses any more may be freed
        self.record = record or (lambda f, x: CudaGraph(f, x, next(iter(self._graphs.values()), None)))
        self.max_graphs = max_graphs
        self._graphs: OrderedDict[Any, Any] = OrderedDict()
        self._used_once: set[Any] = set()
        # the graphs share one input buffer a shape
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._graphs)

    def key(self, x: Any) -> Any:
        """Return what must be equal for a graph to be replayed."""
        tensors = _pytree.tree_leaves(x)
        return tuple((tuple(t.shape), tuple(t.stride()), t.dtype, t.device, t.is_inference()) for t in tensors)

    def __call__(self, x: Any) -> Any:
        """Return the outputs of the function."""
        key = self.key(x)
        with self._lock:
            graph = self._graphs.get(key)
            if graph is not None:
                self._graphs.move_to_end(key)
                return graph(x)
            if key in self._used_once:
                graph = self._record(key, x)
                if graph is not None:
                    return graph(x)
            else:
                if len(self._used_once) == MAX_SHAPES:
                    self._used_once.clear()
                self._used_once.add(key)
        return self.function(x)

    def _record(self, key: Any, x: Any) -> Function | None:
        """Record the function for the shapes of tensors; None if the memory does not suffice."""
        self._used_once.remove(key)
        while len(self._graphs) >= self.max_graphs:
            self._graphs.popitem(last=False)
        try:
            graph: Function = self.record(self.function, x)
            self._graphs[key] = graph
            return graph
        except Exception as error:
            if not lacks_memory(error):
                raise
        # after the handler: the error keeps the tensors of the function alive
        self.clear()
        return None

    def clear(self) -> None:
        """Drop all graphs to free memory."""
        with self._lock:
            self._graphs.clear()
            self._used_once.clear()
            free_memory()


def copy_tensors(outputs: Any) -> Any:
    """Copy all tensors in tuples and lists, in their memory formats."""
    return _pytree.tree_map_only(Tensor, torch.clone, outputs)
