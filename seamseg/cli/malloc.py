"""glibc's allocator, told to keep large buffers, which saves CPU time (docs/performance.md).

Those above 256 MiB are not kept: holes of that size would double the peak for huge photos, and filling them takes so
long that getting them anew does not count.

The settings are read when a process starts, so the command starts itself once more with them.
"""

from __future__ import annotations

import os
import platform
import sys

SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
SWITCH = "SEAMSEG_MALLOC"
"""Set it to `off` and the allocator is left alone."""


def keep_buffers() -> None:
    """Replace this process by itself with the settings, unless they are there, unwanted, or libc is another one."""
    # once they are in the environment, from us or from the user, there is no second time
    if _switched_off() or any(name in os.environ for name in SETTINGS):
        return
    if not sys.executable or platform.libc_ver()[0] != "glibc":
        return
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **SETTINGS})
    except OSError:
        # only speed is lost
        return


def describe() -> str:
    """One line on what is in force."""
    if platform.libc_ver()[0] != "glibc":
        return "not glibc: left alone"
    if any(name in os.environ for name in SETTINGS):
        return "large buffers are kept"
    if _switched_off():
        return f"switched off by {SWITCH}={os.environ[SWITCH]}"
    return "glibc defaults: CPU work takes longer than it need"


def _switched_off() -> bool:
    return os.environ.get(SWITCH, "").lower() in ("off", "no", "0")
