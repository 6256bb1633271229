"""A thing that is wrong with a data set."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Problem(NamedTuple):
    """What is wrong (`text`) with which `file`; an error stops training, a warning may be meant."""

    file: str
    text: str
    is_error: bool

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


def error(file: Path | str, text: str) -> Problem:
    """A problem that training would meet."""
    return Problem(str(file), text, True)


def warning(file: Path | str, text: str) -> Problem:
    """A problem that may be meant."""
    return Problem(str(file), text, False)
