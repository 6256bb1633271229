"""Recognize out-of-memory errors of a device, and release cached memory."""

from __future__ import annotations

import gc
import re
import sys

_WORDS = re.compile(r"out[ _]?of[ _]?memory|_ALLOC(ATION)?_FAILED|cudaErrorMemoryAllocation", re.IGNORECASE)
"""`CUDNN_STATUS_ALLOC_FAILED`, `CUDA error: out of memory`, `hipErrorOutOfMemory`; not `out of shared memory`"""


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error means that a device or the computer is out of memory.

    Only torch's own allocator raises an error of its own type; cuDNN, cuBLAS, Triton and others raise a RuntimeError.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and _WORDS.search(str(error)) is not None


def free_memory() -> None:
    """Collect garbage and release the cached memory of the GPU."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
