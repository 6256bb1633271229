"""Print, warn and log with control characters as escapes, and flags of a command in place of parameters.

Names of classes, files, tensors and nodes come from files of strangers. Nothing else in the package prints or warns,
which `tests/utils/test_output.py` checks.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from seamseg.utils.errors import one_line, printable

if TYPE_CHECKING:
    import logging  # when needed: `--help` does without it


class Console:
    """What a command sets for this process while it runs.

    `quiet` hides progress. `flags` returns the flag of each parameter, and whether a value follows, for messages.
    """

    quiet: bool = False
    flags: Callable[[], Mapping[str, tuple[str, bool]]] = dict


console = Console()


def _with_flags(text: str) -> str:
    """Replace the parameters of a message, such as `device=cpu`, by their flags."""
    flags = console.flags() if "`" in text else {}

    def shown(found: re.Match[str]) -> str:
        flag, takes_value = flags.get(found[1], (found[0], False))
        return f"{flag} {found[2]}" if found[2] and takes_value else flag

    return re.sub(r"`(\w+)(?:=([^`]*))?`", shown, text) if flags else text


def echo(*values: object, sep: str = " ", file: TextIO | None = None, flush: bool = False) -> None:
    """Print like `print`, :func:`seamseg.utils.errors.printable`; a text may have several lines.

    On stderr a command shows its flags.
    """
    text = sep.join(map(str, values))
    print(printable(_with_flags(text) if file is sys.stderr else text), file=file, flush=flush)


def warn(message: str, stacklevel: int = 1) -> None:
    """Warn like `warnings.warn`, in one printable line."""
    warnings.warn(one_line(message), stacklevel=stacklevel + 1)


def make_printable(handler: logging.Handler, form: str | None = None, dates: str | None = None) -> logging.Handler:
    """Have a handler write printable text; `form` and `dates` as of `logging.Formatter`."""
    import logging

    class Printable(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return printable(_with_flags(super().format(record)))

    handler.setFormatter(Printable(form, dates))
    return handler


@contextmanager
def quiet_logs(*names: str) -> Iterator[None]:
    """Have loggers, and those below them, report errors only."""
    import logging

    levels = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
