"""SIGTERM, with which clusters end a job, as Ctrl-C: what is finished is put in its place first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from seamseg.utils.errors import Terminated


@contextmanager
def orderly(advice: str) -> Iterator[None]:
    """SIGTERM raises `Terminated`, a second one ends the process; what interrupts the block says `advice`.

    Not for code that waits for other processes: Python hears a signal only between two of its own steps.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_it(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    before = signal.signal(signal.SIGTERM, raise_it)
    try:
        yield
    except KeyboardInterrupt as stop:
        raise type(stop)(advice) from stop
    finally:
        signal.signal(signal.SIGTERM, before)
