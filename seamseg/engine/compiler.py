"""torch.compile: whether it works here, and the dense part of a network through it."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from seamseg.engine.device_memory import lacks_memory
from seamseg.engine.progress import is_quiet
from seamseg.errors import SeamsegError
from seamseg.models.dense import Dense, let_sizes_vary
from seamseg.models.panoptic import PanopticNet


def why_not(device: torch.device, backend: str = "inductor") -> str | None:
    """The first line of what the compiler says to a function of one line; None if it works.

    Parameters
    ----------
    device : that the code is for: C++ for a CPU, Triton for a GPU
    backend : of torch.compile
    """
    try:
        x = torch.ones(8, device=device)
        torch.compile(_one_line, backend=backend)(x)
    except Exception as error:  # whatever is missing has its own type
        return _first_line(error)
    return None


class CompiledDense:
    """The dense part of a network through torch.compile: one code for all heights and widths.

    See :class:`seamseg.models.dense.DensePart`. The compiler runs with the first call, and again for another number of
    images; each time a line on stderr says so.

    Parameters
    ----------
    net : in evaluation mode, on its device, for inference only: on a CPU its weights become constants of the code
    device : of the network
    backend : of torch.compile

    Raises
    ------
    SeamsegError
        if the compiler does not work here
    """

    def __init__(self, net: PanopticNet, device: torch.device, backend: str = "inductor") -> None:
        reason = why_not(device, backend)
        if reason is not None:
            raise SeamsegError(f"--compile: torch.compile does not work here ({reason}): leave --compile out")
        self.device = device
        self._backend = backend
        self._size = ""
        self._run = torch.compile(net.dense_part(), backend=self._compile)

    def __call__(self, padded: Tensor) -> Dense:
        """What the network makes of a padded batch.

        Raises
        ------
        SeamsegError
            if the compiler fails
        RuntimeError
            if the memory does not suffice, see :func:`seamseg.engine.device_memory.lacks_memory`
        """
        from torch._inductor import config

        self._size = f"{padded.shape[-1]} x {padded.shape[-2]}"
        let_sizes_vary([padded])
        try:
            # with constant weights oneDNN gets them packed once, and takes activations into the convolutions
            with config.patch(freezing=self.device.type == "cpu"):
                return self._run(padded)
        except torch._dynamo.exc.TorchDynamoException as error:
            inner = getattr(error, "inner_exception", None)
            if inner is not None and lacks_memory(inner):
                raise inner from None
            raise SeamsegError(
                f"--compile: torch.compile fails for {self._size} pixels ({_first_line(error)}): leave --compile out"
            ) from error

    def _compile(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        """The backend of torch.compile, with a word before: nobody should think that it hangs."""
        if not is_quiet():
            print(
                f"{self.device}: compiling the network, first seen at {self._size} pixels; this takes minutes",
                file=sys.stderr,
                flush=True,
            )
        if self._backend != "inductor":
            return torch._dynamo.lookup_backend(self._backend)(graph, inputs)
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(graph, inputs)


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0].strip()[:300]


def _one_line(x: Tensor) -> Tensor:
    return (x + 1).sin()
