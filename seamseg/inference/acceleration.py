"""Faster inference on many images: compiled code, CUDA graphs, fewer input sizes."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from seamseg.inference.cuda_graphs import Function, cuda_graph_cache
from seamseg.models.folding import Net
from seamseg.models.network import Network, mark_sizes_dynamic
from seamseg.utils.compiler import compiler_problem, first_line
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import SeamsegError
from seamseg.utils.output import echo
from seamseg.utils.progress import is_quiet


def accelerated(
    net: Net,
    device: torch.device,
    compile: bool = False,
    cuda_graphs: bool = False,
    pad_to: int = 1,
    backend: str = "inductor",
) -> Net:
    """Return a network that shares the layers of `net`, which is used for inference only, on its device.

    `compile` compiles body, RPN head and semantic head with torch.compile, `cuda_graphs` records them, one graph for
    each size of the network's input, and `pad_to` pads its sides to multiples, so that there are fewer sizes.
    SeamsegError if the compiler does not work here.
    """
    if not (compile or cuda_graphs):
        return net.with_options(pad_to=pad_to)
    run: Function = CompiledDense(net, device, backend) if compile else net.dense_part()
    return net.with_options(pad_to=pad_to, run_dense=cuda_graph_cache(run) if cuda_graphs else run)


class CompiledDense:
    """The dense part of a network, compiled once for all heights and widths.

    See :class:`seamseg.models.panoptic.DensePart`. The compiler runs at the first call, and again for another
    number of images and, with torch 2.11, for maps of an odd instead of an even height; each time a line is printed to
    stderr. For inference only: on a CPU the weights of `net` become constants. SeamsegError if the compiler does not
    work here.
    """

    def __init__(self, net: Network, device: torch.device, backend: str = "inductor") -> None:
        reason = compiler_problem(device, backend)
        if reason is not None:
            raise SeamsegError(f"`compile=True`: torch.compile does not work here ({reason})")
        self.device = device
        self._backend = backend
        self._size = ""
        self._run = torch.compile(net.dense_part(), backend=self._compile)

    def __call__(self, padded: Tensor) -> Any:
        """Run the network on a padded batch.

        SeamsegError if the compiler fails; if the memory does not suffice the error is one of
        :func:`seamseg.utils.device_memory.lacks_memory`.
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
        if not is_quiet():
            echo(
                f"{self.device}: compiling the network, first used with {self._size} pixels; this takes minutes",
                file=sys.stderr,
                flush=True,
            )
        if self._backend != "inductor":
            return torch._dynamo.lookup_backend(self._backend)(graph, inputs)
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(graph, inputs)
