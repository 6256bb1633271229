"""The errors a user can cause. Each message is one line that says what, where and what to do."""

from __future__ import annotations


class SeamsegError(Exception):
    """The work failed: the command line prints the message and exits with `exit_code`."""

    exit_code = 1


class InputError(SeamsegError):
    """Bad usage or bad input: a wrong argument, a missing or broken file, a config with a typo."""

    exit_code = 2
