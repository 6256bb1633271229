"""What makes a network that sees many images sooner done with each: compiled code, CUDA graphs, fewer sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from seamseg.engine.compiler import CompiledDense
from seamseg.engine.cuda_graphs import Function, Recordings, recorded_on_gpu
from seamseg.errors import InputError
from seamseg.models.panoptic import PanopticNet

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

    def apply(self, net: PanopticNet, device: torch.device) -> Recordings | None:
        """Have a network, which is on its device and for inference only, run so; its recordings if there are any.

        Raises
        ------
        SeamsegError
            if the compiler does not work here
        """
        net.pad_to = self.pad_to
        run: Function = CompiledDense(net, device, self.backend) if self.compile else net.dense_part()
        if self.compile:
            net.run_dense = run
        if not self.cuda_graphs:
            return None
        net.run_dense = recordings = recorded_on_gpu(run)
        return recordings
