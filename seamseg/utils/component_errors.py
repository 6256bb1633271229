"""Errors of the code of components, which name it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import SeamsegError, one_line


@contextmanager
def named_errors(what: str, module: str) -> Iterator[None]:
    """Name a component, and the line of its file, in errors of its code inside a `with` block.

    Parameters
    ----------
    what : such as `head edge`
    module : name of its module

    Raises
    ------
    SeamsegError
        for any exception but a lack of memory
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, SeamsegError) or lacks_memory(error):
            raise
        file = getattr(sys.modules.get(module), "__file__", None)
        raise SeamsegError(f"{what}{described(error, file)}") from error


def described(error: BaseException, file: str | None) -> str:
    """Return the end of a message: the line of a file where an exception left it, its type and its message."""
    trace, line = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = f", {file} line {trace.tb_lineno}"
        trace = trace.tb_next
    return f"{line}: {one_line(f'{type(error).__name__}: {error}').rstrip(': ')}"
