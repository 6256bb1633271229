"""What makes a network that sees many images sooner done with each: compiled code, CUDA graphs, fewer sizes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seamseg.inference.cuda_graphs import Function, Recordings, recorded_on_gpu
from seamseg.models.panoptic import DenseOutputs, PanopticNet, mark_sizes_dynamic
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.progress import is_quiet

COARSEST = 1024
"""Padding to multiples of more would be more padding than image."""


@dataclass(frozen=True)
class Acceleration:
    """How body, RPN head and semantic head are run.

    Attributes
    ----------
    compile : through torch.compile
    cuda_graphs : recorded as CUDA graphs, one a size of the network's input
    pad_to : sides of the network's input are padded to multiples of this, so that there are fewer sizes; 1 for none
    backend : of torch.compile

    Raises
    ------
    InputError
        if the multiple is out of range
    """

    compile: bool = False
    cuda_graphs: bool = False
    pad_to: int = 1
    backend: str = "inductor"

    def __post_init__(self) -> None:
        if not 1 <= self.pad_to <= COARSEST:
            raise InputError(f"--pad-to {self.pad_to}: must be between 1 (no padding) and {COARSEST}")

    def check(self, device: torch.device, looks: bool) -> None:
        """Whether all this can be done on a device, with several `looks` at each image or one.

        Raises
        ------
        InputError
            if not
        """
        if self.cuda_graphs and device.type != "cuda":
            raise InputError(f"--cuda-graphs needs a GPU, the device is {device}: leave it out")
        if self.pad_to > 1 and looks:
            raise InputError("--pad-to does not go with --tta: the looks at an image would be padded differently")

    def apply(self, net: PanopticNet, device: torch.device) -> tuple[PanopticNet, Recordings | None]:
        """Return a network that shares the layers of `net`, which is for inference only, and its CUDA graphs if any.

        Raises
        ------
        SeamsegError
            if the compiler does not work here
        """
        run: Function = CompiledDense(net, device, self.backend) if self.compile else net.dense_part()
        recordings = recorded_on_gpu(run) if self.cuda_graphs else None
        if recordings is not None:
            return net.with_options(pad_to=self.pad_to, run_dense=recordings), recordings
        return net.with_options(pad_to=self.pad_to, run_dense=run if self.compile else None), None


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

    See :class:`seamseg.models.panoptic.DensePart`. The compiler runs with the first call, and again for another number
    of images; each time it prints a line to stderr.

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

    def __call__(self, padded: Tensor) -> DenseOutputs:
        """What the network makes of a padded batch.

        Raises
        ------
        SeamsegError
            if the compiler fails
        RuntimeError
            if the memory does not suffice, see :func:`seamseg.utils.device_memory.lacks_memory`
        """
        from torch._inductor import config

        self._size = f"{padded.shape[-1]} x {padded.shape[-2]}"
        mark_sizes_dynamic([padded])
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
