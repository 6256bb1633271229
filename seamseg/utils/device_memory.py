"""Recognize out-of-memory errors of a device, and release cached memory."""

from __future__ import annotations

import errno
import gc
import re
import sys

from seamseg.utils.errors import OutOfMemory

_WORDS = re.compile(
    # of CUDA, cuDNN, cuBLAS, Triton, HIP and compilers; not "out of shared memory"
    r"out[ _]?of[ _]?memory|_ALLOC(ATION)?_FAILED|cudaErrorMemoryAllocation"
    # of torch's allocator of the CPU, C++, glibc, ONNX Runtime and OpenVINO; static TLS is that of a library to load
    r"|(can't|cannot|failed to) allocate (\d+ bytes of )?memory(?! in static TLS)|not enough memory|bad[ _]alloc"
    # of oneDNN, for a buffer and for generated code; "a primitive descriptor" is about arguments
    r"|could not create a (memory object|primitive(?! desc))"
    # of C++ operators and packages: torch up to 2.11 does not pass on the reason
    r'|("aten::(new_)?(empty|zeros)\w*"|aoti_torch_(new_)?empty\w*).*API call failed',
    re.IGNORECASE | re.DOTALL,
)
_OF_ENGINES = ("onnxruntime",)
"""Modules whose errors are direct subclasses of Exception."""


def lacks_memory(error: BaseException | None) -> bool:
    """Return whether an error means that a device or the computer is out of memory.

    Only Python, numpy and torch's allocator of the GPU raise errors of their own types. cuDNN, Triton, oneDNN, torch's
    allocator of the CPU and others raise a RuntimeError, ONNX Runtime types that derive from Exception.
    """
    torch = sys.modules.get("torch")
    if isinstance(error, (MemoryError, OutOfMemory)) or (torch and isinstance(error, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    of_engine = type(error).__module__.startswith(_OF_ENGINES)
    return (of_engine or isinstance(error, (RuntimeError, OSError))) and _WORDS.search(str(error)) is not None


def free_memory() -> None:
    """Collect garbage and release the cached memory of the GPU."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
