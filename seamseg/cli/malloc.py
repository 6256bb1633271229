"""glibc's allocator, told to keep large buffers: about twice the speed of a network on the CPU (docs/performance.md).

The settings are read when a process starts, so the command starts itself once more with them.
"""

from __future__ import annotations

import os
import platform
import sys

SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
SWITCH = "SEAMSEG_MALLOC"
"""Set it to `off` and the allocator is left alone; we set it to `on` for the second start."""


def keep_buffers() -> None:
    """Replace this process by itself with the settings, unless they are there, unwanted, or libc is another one."""
    wanted = os.environ.get(SWITCH) not in ("off", "on")
    if not wanted or platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in SETTINGS):
        return
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **SETTINGS, SWITCH: "on"})


def describe() -> str:
    """One line on what is in force."""
    if platform.libc_ver()[0] != "glibc":
        return "not glibc: left alone"
    if os.environ.get(SWITCH) == "off":
        return "switched off by SEAMSEG_MALLOC=off"
    kept = [name for name in SETTINGS if name in os.environ]
    return "large buffers are kept" if kept else "glibc defaults: CPU work may take twice as long"
