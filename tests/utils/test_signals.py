"""Signals that end a process, where a system or its program differs."""

from __future__ import annotations

import signal

import pytest

from seamseg.utils.errors import Terminated
from seamseg.utils.signals import block_stop_signals, graceful_termination


def test_a_handler_that_is_not_of_python_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """`getsignal` has None for it, which cannot be set again."""
    get = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGHUP else get(number))
    hung_up, terminated = get(signal.SIGHUP), get(signal.SIGTERM)
    with graceful_termination():
        assert get(signal.SIGHUP) is hung_up
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
    assert get(signal.SIGTERM) is terminated


def test_nothing_is_blocked_where_workers_could_not_unblock_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, whose workers would ignore SIGTERM of their parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    monkeypatch.delattr(signal, "sigwaitinfo")
    with block_stop_signals():
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
