"""Signals that end a process, where a system or its program differs."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from seamseg.utils.errors import HungUp, Terminated
from seamseg.utils.signals import graceful_termination


class Doomed:
    """Its destructor receives a signal."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(0.01)


@pytest.mark.usefixtures("signals_end")
@pytest.mark.parametrize(("number", "raised"), [(2, KeyboardInterrupt), (15, Terminated), (1, HungUp)])
def test_a_signal_in_a_destructor_is_not_lost(number: int, raised: type[BaseException]) -> None:
    """Python drops what a destructor raises."""
    hook, handler = sys.unraisablehook, signal.getsignal(number)

    def wait() -> None:
        Doomed(number)
        time.sleep(5)

    with pytest.raises(raised) as stop, graceful_termination():
        wait()
    assert stop.type is raised
    assert sys.unraisablehook is hook
    assert signal.getsignal(number) is handler
