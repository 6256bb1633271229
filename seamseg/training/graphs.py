"""CUDA graphs in training: all up to the losses, forward and backward, in two launches for each size of a batch.

Where the contents of an image decide on operations, as without `[roi] fixed_samples`, only the dense part of a network
is recorded. The update is never recorded: it takes the learning rate as a number, and gradients of several batches.

Unlike `torch.cuda.make_graphed_callables`, sizes share memory, weights are converted once, gradients of the batches of
a step add up, and DistributedDataParallel may come first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree

from seamseg.inference.acceleration import WARM_UP, CudaGraphCache, copy_tensors
from seamseg.models.network import Losses, Network, TrainingModule
from seamseg.ops.norm import InPlaceABNSync, has_hooks, synchronised_over
from seamseg.structures import Batch, FixedBatch
from seamseg.utils.errors import first_line

MAX_SIZES = 16
"""Sizes whose graphs are kept."""
ROWS = 128
"""Rows of ground truth that a step is recorded for, or a multiple: one graph serves most batches of a size."""
_WITHOUT = "[general] cuda_graphs: {} without CUDA graphs: {}"


class CudaRecorder:
    """Records functions that do not wait for the device as CUDA graphs; `latest` is the last in their shared memory."""

    def __init__(self, device: torch.device) -> None:
        # memory is shared on one stream only
        self._stream = torch.cuda.Stream(device)
        self.latest: object = None
        # a pool that no graph uses any more may be freed
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def warm_up(self, function: Callable[[], object]) -> None:
        """Call a function as it will be recorded."""
        now = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(now)
        with torch.cuda.stream(self._stream):
            function()
        now.wait_stream(self._stream)

    def record(self, function: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Callable[[], None]]:
        """Return tensors at fixed places, and a function that computes the results of `function` there."""
        graph, other = torch.cuda.CUDAGraph(), next(iter(self._graphs), None)
        pool = None if other is None else other.pool()
        now = torch.cuda.current_stream(self._stream.device)
        # thread_local: the threads of a loader allocate page-locked memory meanwhile
        capture = torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local")
        # in older releases of torch a capture that fails leaves its stream the current one
        with torch.cuda.stream(now), capture:
            outputs = function()
        self._graphs.add(graph)
        return outputs, graph.replay


class _Dense(nn.Module):
    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net

    def forward(self, padded: Tensor) -> Any:
        return self.net.dense(padded)


class _Step(nn.Module):
    """A network and its losses: from a batch to their names, means, counts, and what must be kept for a replay."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: FixedBatch) -> tuple[tuple[str, ...], Tensor, Tensor, Callable[[], Any]]:
        outputs = self.net(batch.images, batch)
        means, counts, _ = self.net.loss(outputs, batch)
        constants = self.net.step_constants(outputs)
        stacked = (torch.stack([x.float() for x in means.values()]), torch.stack(list(counts.values())))
        return tuple(means), *stacked, lambda: constants


class GraphPair:
    """A module in training, recorded for inputs like `x`, a tree of tensors: a forward and a backward pass.

    Outputs, at fixed places, hold until the next call of any pair of the same recorder, as do the tensors for the
    backward pass. Gradients of the parameters are copies: autograd adds them up, and hooks of the parameters see them.
    """

    def __init__(self, module: nn.Module, x: Any, recorder: CudaRecorder) -> None:
        self._module = module
        self._input = copy_tensors(x)
        self._autocast_device = next(module.parameters()).device.type
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        # of their own: what adds to the gradients of the parameters belongs to another stream, with
        # DistributedDataParallel for good
        self._aliases = {name: p.detach().requires_grad_() for name, p in trained.items()}
        self._leaves: list[Any] = []
        self._dy: list[Tensor] = []
        for _ in range(WARM_UP):
            recorder.warm_up(self._warm_up)
        self.parameters = [trained[name] for name in self._aliases]
        self._outputs, self._run_forward = recorder.record(self._forward)
        # what is no tensor depends on the size only
        self._template = [Tensor if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        self.differentiable = [y.requires_grad for y in _tensors(self._leaves)]
        self._gradients, self._run_backward = recorder.record(self._backward)
        self._recorder = recorder

    def _warm_up(self) -> None:
        self._forward()
        self._dy = [torch.zeros_like(y) for y in _tensors(self._leaves) if y.requires_grad]
        used = [gradient is not None for gradient in self._differentiate()]
        self._aliases = {name: p for (name, p), is_used in zip(self._aliases.items(), used) if is_used}

    def _forward(self) -> list[Tensor]:
        # weights that were converted elsewhere are not those of the graph, and the other way round
        torch.clear_autocast_cache()
        with torch.enable_grad():
            outputs = functional_call(self._module, self._aliases, (self._input,))
        torch.clear_autocast_cache()
        self._leaves, self._spec = _pytree.tree_flatten(outputs)
        return [y.detach() for y in _tensors(self._leaves)]

    def _differentiate(self) -> Sequence[Tensor | None]:
        results = [y for y in _tensors(self._leaves) if y.requires_grad]
        self._leaves = []
        # as in a step, whose backward pass is outside of autocast
        with torch.autocast(self._autocast_device, enabled=False):
            return torch.autograd.grad(results, list(self._aliases.values()), self._dy, allow_unused=True)

    def _backward(self) -> list[Tensor]:
        return [gradient for gradient in self._differentiate() if gradient is not None]

    def __call__(self, x: Any) -> Any:
        """Return the outputs for an input of these shapes."""
        found = iter(_Replay.apply(self, x, *self.parameters))
        leaves = [next(found) if leaf is Tensor else leaf for leaf in self._template]
        return _pytree.tree_unflatten(leaves, self._spec)

    def forward(self, x: Any) -> tuple[object, list[Tensor]]:
        """Return a token for :meth:`backward` and the outputs."""
        for place, tensor in zip(_tensors(self._input), _tensors(x), strict=True):
            place.copy_(tensor, non_blocking=True)
        self._run_forward()
        self._recorder.latest = token = object()
        return token, self._outputs

    def backward(self, token: object, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients of the parameters for those of the outputs; RuntimeError after another forward pass."""
        if token is not self._recorder.latest:
            raise RuntimeError("cuda_graphs: the backward pass of a batch must come before the next forward pass, once")
        self._recorder.latest = None
        torch._foreach_copy_(self._dy, list(gradients))
        self._run_backward()
        # a copy in one call, as the next batch overwrites them
        return list(torch._foreach_mul(self._gradients, 1.0))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: GraphPair, x: Any, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.pair = pair
        ctx.token, outputs = pair.forward(x)
        results = tuple(y.detach() for y in outputs)
        ctx.mark_non_differentiable(*(y for y, has_gradient in zip(results, pair.differentiable) if not has_gradient))
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [dy for dy, has_gradient in zip(gradients, ctx.pair.differentiable) if has_gradient]
        return None, None, *ctx.pair.backward(ctx.token, wanted)


class TrainingGraphs(CudaGraphCache):
    """Runs the dense part of a network in training: the second batch of a size is recorded, and replayed from then on.

    Layers that cannot be recorded run in turn, after one call of `warn`.
    """

    runs = "the network runs"

    def __init__(
        self,
        net: Network,
        recorder: CudaRecorder,
        warn: Callable[[str], None],
        max_graphs: int = MAX_SIZES,
        module: nn.Module | None = None,
        parts: Sequence[str] | None = None,
    ) -> None:
        recorded = _Dense(net) if module is None else module
        super().__init__(recorded, lambda _, x: GraphPair(recorded, x, recorder), max_graphs)
        self.net = net
        self._parts = net.dense_parts if parts is None else parts
        self.warn = warn
        self.problem: str | None = None
        self._layers, self._parameters = list(net.modules()), list(net.parameters())

    def __call__(self, x: Any) -> Any:
        """Return the outputs of the module, here of :meth:`seamseg.models.network.Network.dense`."""
        if self.problem is not None or not torch.is_grad_enabled():
            return self.function(x)
        return super().__call__(x)

    def key(self, x: Any) -> Any:
        """See the base class; also what a callback may change of the layers."""
        modes = tuple([layer.training for layer in self._layers])
        trained = tuple([p.data_ptr() if p.requires_grad else 0 for p in self._parameters])
        autocast = torch.is_autocast_enabled(self._parameters[0].device.type)
        return super().key(_tensors(x)), autocast, modes, trained

    def _record(self, key: Any, x: Any) -> Callable[[Any], Any] | None:
        self.problem = capture_problem(self.net, self._parts)
        if self.problem is None:
            buffers, device = list(self.net.buffers()), self._parameters[0].device
            saved = [buffer.clone() for buffer in buffers]
            try:
                # each replay draws from the default generator of the device, and moves it on, as the layers in turn
                with torch.random.fork_rng([device] if device.type == "cuda" else []):
                    graph = super()._record(key, x)
                if graph is not None:
                    return graph
                self.problem = "the memory does not suffice"
            except Exception as error:
                # the end of a capture fails as well, without a reason
                self.problem = first_line(error.__context__ or error)
            finally:
                # the batch of the warm-up counts when it is replayed
                torch._foreach_copy_(buffers, saved)
        self.clear()
        self.warn(_WITHOUT.format(self.runs, self.problem))
        return None


class StepGraphs(TrainingGraphs):
    """Computes the losses of a batch of a network without a `step_problem`; records the dense part if it cannot."""

    runs = "proposals, ROI head and losses run"

    def __init__(
        self, net: Network, recorder: CudaRecorder, warn: Callable[[str], None], max_graphs: int = MAX_SIZES
    ) -> None:
        parts = ["", *(name for name, _ in net.named_children())]
        super().__init__(net, recorder, warn, max_graphs, _Step(net), parts)
        self._dense = TrainingGraphs(net, recorder, warn, max_graphs)

    def __call__(self, batch: Batch) -> Losses:
        """Return the losses of a batch after its deferred transforms."""
        names, means, counts, _ = super().__call__(FixedBatch.of(batch, ROWS))
        # copies, as the next batch of a step overwrites them
        means, counts = means.clone().unbind(), counts.clone().unbind()
        return Losses(dict(zip(names, means)), dict(zip(names, counts)))

    def _record(self, key: Any, x: Any) -> Callable[[Any], Any] | None:
        if (graph := super()._record(key, x)) is None:
            self.net.run_in_training = self._dense
        return graph


def capture_problem(net: Network, parts: Sequence[str]) -> str | None:
    """Return why these parts of a network in training cannot be recorded; None if nothing is known."""
    for name, layer in net.named_modules():
        if name.partition(".")[0] not in parts:
            continue
        package = type(layer).__module__.partition(".")[0]
        if package not in ("seamseg", "torch"):
            return f"{name} is a layer of {package}"
        if has_hooks(layer):
            return f"{name or 'the network'} has hooks"
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            return f"{name} is random"
        # processes record at different steps
        if isinstance(layer, InPlaceABNSync) and synchronised_over(layer.group) is not None:
            return f"{name} exchanges statistics with other processes"
    return None


def use_cuda_graphs(
    module: TrainingModule, device: torch.device, warn: Callable[[str], None], recorder: CudaRecorder | None = None
) -> None:
    """Have a network compute its losses, or run its dense part, by CUDA graphs; `warn` is called where it cannot."""
    net = module.net
    if recorder is None and device.type != "cuda":
        warn(_WITHOUT.format(TrainingGraphs.runs, f"the device is {device}"))
    elif not net.dense_parts:
        warn(_WITHOUT.format(TrainingGraphs.runs, "it is not made of body and heads"))
    else:
        recorder = CudaRecorder(device) if recorder is None else recorder
        package = type(net).__module__.partition(".")[0]
        problem = net.step_problem() if package == "seamseg" else f"the network is of {package}"
        if problem is None:
            module.run_step = StepGraphs(net, recorder, warn)
        else:
            warn(_WITHOUT.format(StepGraphs.runs, problem))
            net.run_in_training = TrainingGraphs(net, recorder, warn)
