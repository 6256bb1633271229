"""Where the memory of a device does not suffice: told by which errors, and how some of it is given back."""

from __future__ import annotations

import gc
import re

import torch

_WORDS = re.compile(r"out[ _]?of[ _]?memory|_ALLOC(ATION)?_FAILED|cudaErrorMemoryAllocation", re.IGNORECASE)
"""`CUDNN_STATUS_ALLOC_FAILED`, `CUDA error: out of memory`, `hipErrorOutOfMemory`; not `out of shared memory`"""


def lacks_memory(error: BaseException | None) -> bool:
    """Whether an error is about too little memory of a device.

    Only torch's own allocator has a type for it; of cuDNN, cuBLAS, Triton and others it is a RuntimeError that says so.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _WORDS.search(str(error)) is not None


def free_memory() -> None:
    """Give back to the GPU what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
