"""The errors a user can cause. Each message is one line that says what, where and what to do."""

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
    """SIGTERM has come where it is heard."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: "; did you mean 'car'?", or nothing if no known name is near."""
    match = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {match[0]!r}?" if match else ""


class UnreadableImage(InputError):
    """A file that is missing, broken, too large or no image."""
