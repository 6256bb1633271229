"""Errors of the code of components, which name it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any, TypeVar

from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import InputError, SeamsegError, one_line

Base = TypeVar("Base")


@contextmanager
def named_errors(what: str, module: str, kind: type[SeamsegError] = SeamsegError) -> Iterator[None]:
    """Name a component (`what`, such as `head edge`) and the line of its module's file in errors of a `with` block.

    Any exception but a lack of memory becomes a `kind`.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, SeamsegError) or lacks_memory(error):
            raise
        raise kind(f"{what}{described(error, file_of(module))}") from error


def file_of(module: str) -> str | None:
    """Return the file of an imported module."""
    return getattr(sys.modules.get(module), "__file__", None)


def described(error: BaseException, file: str | None) -> str:
    """Return the end of a message: a file, the line of it where an exception left it, its type and its message."""
    where, message = "" if file is None else f", {file}", str(error)
    for frame, line in walk_tb(error.__traceback__):
        if frame.f_code.co_filename == file:
            where = f", {file} line {line}"
    if isinstance(error, SyntaxError) and error.filename == file:
        where, message = f", {file} line {error.lineno}", error.msg
    return f"{where}: {one_line(f'{type(error).__name__}: {message}').rstrip(': ')}"


def instance_of(base: type[Base], made: Any, where: str, name: str = "") -> Base:
    """Return the object `made` by a component; InputError, which begins with `where`, unless it is a `base`.

    `name` is the name of `base` in :mod:`seamseg.components`, if it is another one there.
    """
    if not isinstance(made, base):
        raise InputError(f"{where}: must be a class derived from seamseg.components.{name or base.__name__}")
    return made
