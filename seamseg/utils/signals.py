"""Signals that end a process: as exceptions in the main process, which removes its files, but not in its workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from seamseg.utils.errors import HungUp, Terminated

_ENDINGS = {signal.SIGTERM: Terminated}
if hasattr(signal, "SIGHUP"):  # not on Windows
    _ENDINGS[signal.SIGHUP] = HungUp
_OF_WORKERS = {signal.SIGINT, *_ENDINGS}


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
    process = multiprocessing.parent_process()
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
