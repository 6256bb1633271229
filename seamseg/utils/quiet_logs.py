"""Silence libraries whose warnings are of no use to users of this one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_logs(*names: str) -> Iterator[None]:
    """Have loggers, and those below them, report errors only."""
    levels = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def without_message(name: str, text: str) -> Iterator[None]:
    """Drop the messages of one logger that contain a text."""

    def keep(record: logging.LogRecord) -> bool:
        return text not in str(record.msg)

    logger = logging.getLogger(name)
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
