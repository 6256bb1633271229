"""Settings of the process for speed on a CPU, and signals that end it.

The settings, of the allocator of glibc and of waiting threads of libgomp, affect the whole process, so only the
commands apply them, never `import seamseg`. Settings of the user take precedence. Child processes inherit them through
the environment. Measured in docs/reference/performance.md. Signals are exceptions in the main process, which removes
its files, but not in its workers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from seamseg.utils.errors import HungUp, Terminated

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

_ENDINGS = {signal.SIGTERM: Terminated}
if hasattr(signal, "SIGHUP"):  # not on Windows
    _ENDINGS[signal.SIGHUP] = HungUp
_OF_WORKERS = {signal.SIGINT, *_ENDINGS}


def _is_glibc() -> bool:
    import platform  # not for --help

    return platform.libc_ver()[0] == "glibc"


def apply_settings() -> None:
    """Apply the settings to this process and its child processes; to be called before torch is imported."""
    # glibc has applied variables of the environment at the start of the process
    set_before = any(name in os.environ for name in MALLOC)
    if not _switched_off() and not set_before and _is_glibc():
        import ctypes

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
    if any(name in os.environ for name in MALLOC) and _is_glibc():
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    _returned = time.monotonic()


def malloc_status() -> str:
    """Return a one-line status of the allocator."""
    if not _is_glibc():
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


@contextmanager
def graceful_termination(advice: str = "") -> Iterator[None]:
    """Raise `Terminated` at SIGTERM and SIGHUP; a second one ends the process.

    An `advice` is added to what interrupts the block. A signal that the process ignores, as after `nohup`, stays
    ignored, and one whose handler is not of Python keeps it. Not for code that waits for other processes: Python
    handles signals only between two bytecode instructions.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise _ENDINGS[signal.Signals(number)]

    handlers = {number: signal.getsignal(number) for number in _ENDINGS}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, terminate)
    try:
        yield
    except KeyboardInterrupt as stop:
        raise type(stop)(*([advice] if advice else stop.args)) from stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def block_stop_signals() -> Iterator[None]:
    """Block SIGTERM, SIGHUP and SIGINT in processes that start within, until they call :func:`begin_worker_process`.

    They are blocked in this process meanwhile, and delivered at the end.
    """
    # macOS has a mask, but nothing that would remove it in the new processes
    if not hasattr(signal, "sigwaitinfo"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_WORKERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker_process() -> None:
    """Let the parent alone end this worker process, which multiprocessing has started: by a signal, or by its own end.

    SIGINT and SIGHUP are ignored, and SIGTERM unless the parent sends it: clusters signal whole process groups, and so
    does Ctrl-C. The parent decides when to stop, and needs the results until then.
    """
    from multiprocessing import parent_process  # not for --help

    process = parent_process()
    assert process is not None and process.pid is not None
    parent = process.pid
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, _OF_WORKERS)
        threading.Thread(target=_end_at_signal, args=(parent,), daemon=True).start()
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end_with(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL: it would wait for work, or for a reader, forever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _end_at_signal(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
