"""Errors caused by usage or input. Each message is one line with the problem, its location and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SeamsegError(Exception):
    """The work failed: the command line prints the message and exits with `exit_code`."""

    exit_code = 1


class InputError(SeamsegError):
    """Bad usage or bad input: a wrong argument, a missing or broken file, a config with a typo."""

    exit_code = 2


class Terminated(KeyboardInterrupt):
    """The process has received SIGTERM."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message on an unknown name, "; did you mean 'car'?"; empty if no known name is similar."""
    match = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {match[0]!r}?" if match else ""


class UnreadableImage(InputError):
    """A file is missing, damaged, too large or not an image."""
