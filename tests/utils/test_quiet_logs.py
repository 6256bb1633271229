"""Warnings of libraries are dropped, errors are not, and the loggers are as before."""

from __future__ import annotations

import logging

import pytest

from seamseg.utils.quiet_logs import quiet_logs, without_message


def test_loggers_are_as_before(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("seamseg_test")
    with quiet_logs("seamseg_test"):
        log.warning("dropped")
        log.error("an error")
    with without_message("seamseg_test", "is an Enum subclass"):
        log.warning("%s is an Enum subclass and so on", int)
        log.warning("kept")
    log.warning("%s is an Enum subclass and so on", int)
    assert [message[:4] for message in caplog.messages] == ["an e", "kept", "<cla"]
