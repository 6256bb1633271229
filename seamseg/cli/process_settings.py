"""Settings of the process that the command line makes for speed on a CPU: glibc's allocator, libgomp's threads.

They hold for everything in the process, so only the commands make them, never `import seamseg`. What the user has set
stays. Processes that a command starts inherit them through the environment. Measured in docs/performance.md.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys

MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": 256 << 20,
    "MALLOC_TRIM_THRESHOLD_": 8 << 30,
    "MALLOC_TOP_PAD_": 256 << 20,
}
"""Keep large buffers instead of returning them to the system after every layer. Those above 256 MiB are returned:
holes of that size would double the peak for huge photos, and filling one takes longer than getting it anew."""
MALLOC_SWITCH = "SEAMSEG_MALLOC"
"""Set it to `off` and the allocator is left alone."""
SPIN = {"GOMP_SPINCOUNT": 3000}
"""How often a thread of libgomp checks for work before it sleeps. Its default, 300000, takes several milliseconds, in
which it occupies a core that the thread it waits for may need once another program runs. Results stay the same."""
_SPIN_OF_USER = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_MALLOPT = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2}
"""Numbers of the parameters in malloc.h."""


def apply() -> None:
    """Make the settings for this process and those it starts; to be called before torch is loaded."""
    _keep_buffers()
    # libgomp reads its variables once, when torch loads it
    if "torch" not in sys.modules and not any(name in os.environ for name in _SPIN_OF_USER):
        os.environ.update({name: str(value) for name, value in SPIN.items()})


def describe_malloc() -> str:
    """One line on the allocator."""
    if platform.libc_ver()[0] != "glibc":
        return "not glibc: left alone"
    if any(name in os.environ for name in MALLOC):
        return "large buffers are kept"
    if _switched_off():
        return f"switched off by {MALLOC_SWITCH}={os.environ[MALLOC_SWITCH]}"
    return "glibc defaults: CPU work takes longer than it need"


def limits_spin() -> bool:
    """Whether a variable says how OpenMP threads wait."""
    return any(name in os.environ for name in _SPIN_OF_USER)


def describe_spin() -> str:
    """One line on the threads that wait."""
    found = [f"{name}={os.environ[name]}" for name in _SPIN_OF_USER if name in os.environ]
    return ", ".join(found) or "libgomp's default: slow beside other programs"


def _keep_buffers() -> None:
    # what is in the environment is in force: glibc read it when the process started
    if _switched_off() or any(name in os.environ for name in MALLOC) or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    for name, value in MALLOC.items():
        # mallopt takes an int; -1 as a trim threshold means never
        libc.mallopt(_MALLOPT[name], value if value < 2**31 else -1)
    os.environ.update({name: str(value) for name, value in MALLOC.items()})


def _switched_off() -> bool:
    return os.environ.get(MALLOC_SWITCH, "").lower() in ("off", "no", "0")
