"""Settings of the process for speed on a CPU: the allocator of glibc, waiting threads of libgomp.

They affect the whole process, so only the commands apply them, never `import seamseg`. Settings of the user take
precedence. Child processes inherit them through the environment. Measured in docs/reference/performance.md.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import time

MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": 256 << 20,
    "MALLOC_TRIM_THRESHOLD_": 8 << 30,
    "MALLOC_TOP_PAD_": 256 << 20,
}
"""Keep large buffers instead of returning them to the system after every layer. Those above 256 MiB are returned:
fragments of that size would double the peak memory of huge images, and filling one takes longer than allocating it."""
MALLOC_SWITCH = "SEAMSEG_MALLOC"
"""Environment variable; `off` leaves the allocator unchanged."""
BUFFERS_KEPT = "large buffers are kept"
LARGE_PIXELS = 33_000_000
"""Images of as many pixels are processed in bands, by few workers, and their memory is returned, see
:func:`return_memory`."""
SPIN = {"GOMP_SPINCOUNT": 3000}
"""How often a waiting thread of libgomp checks for work before it sleeps. The default of 300000 takes several
milliseconds, during which it occupies a core that the thread it waits for may need if other programs run. Results do
not change."""
_SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_MALLOPT = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2}
"""Parameters of mallopt, from malloc.h."""
_RETURN_INTERVAL = 30.0
"""Seconds; returning memory and filling it again takes .2 s a GB."""
_returned = time.monotonic()


def apply() -> None:
    """Apply the settings to this process and its child processes; to be called before torch is imported."""
    # glibc has applied variables of the environment at the start of the process
    set_before = any(name in os.environ for name in MALLOC)
    if not _switched_off() and not set_before and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for name, value in MALLOC.items():
            # mallopt takes an int; -1 as a trim threshold means never
            libc.mallopt(_MALLOPT[name], value if value < 2**31 else -1)
        os.environ.update({name: str(value) for name, value in MALLOC.items()})
    # libgomp reads its variables once, when torch is imported
    if "torch" not in sys.modules and not any(name in os.environ for name in _SPIN_VARIABLES):
        os.environ.update({name: str(value) for name, value in SPIN.items()})


def return_memory(pixels: int = 0) -> None:
    """Return free memory to the system: after work on an image of so many pixels, if it is large, else now and then.

    Pillow's images consist of small blocks, and each thread would keep those that it has used. Between buffers of
    ever new sizes remain gaps, which grow for hours.
    """
    global _returned  # of the process, as its memory is
    if pixels < LARGE_PIXELS and time.monotonic() < _returned + _RETURN_INTERVAL:
        return
    if any(name in os.environ for name in MALLOC) and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    _returned = time.monotonic()


def malloc_status() -> str:
    """Return a one-line status of the allocator."""
    if platform.libc_ver()[0] != "glibc":
        return "not glibc: unchanged"
    if any(name in os.environ for name in MALLOC):
        return BUFFERS_KEPT
    if _switched_off():
        return f"switched off by {MALLOC_SWITCH}={os.environ[MALLOC_SWITCH]}"
    return "glibc defaults: slower on a CPU"


def openmp_status() -> str:
    """Return a one-line status of waiting OpenMP threads."""
    found = [f"{name}={os.environ[name]}" for name in _SPIN_VARIABLES if name in os.environ]
    return ", ".join(found) or "libgomp default: slow beside other programs"


def _switched_off() -> bool:
    return os.environ.get(MALLOC_SWITCH, "").lower() in ("off", "no", "0")
