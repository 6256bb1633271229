"""Errors of the code of components, which name it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any, TypeVar

from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import InputError, SeamsegError, near_names, one_line

Base = TypeVar("Base")


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
        raise SeamsegError(f"{what}{described(error, file_of(module))}") from error


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
    """Return what a component has made.

    Parameters
    ----------
    base : the class of :mod:`seamseg.components` that its class must derive from
    made : the object
    where : beginning of the message, the component
    name : name of `base` in that module, if it is another one there

    Raises
    ------
    InputError
        if it is of another class
    """
    if not isinstance(made, base):
        raise InputError(f"{where}: must be a class derived from seamseg.components.{name or base.__name__}")
    return made


def misspelt(made: object) -> str:
    """Return a line about a method that nothing calls and whose name is almost that of one of the base class, or ""."""
    base = next((c for c in getattr(made, "__mro__", ()) if c.__module__.startswith("seamseg.")), None)
    if base is None:
        return ""
    own = {name: value for name, value in vars(made).items() if callable(value)}
    called = {name for value in own.values() if hasattr(value, "__code__") for name in value.__code__.co_names}
    meant = [name for name, value in vars(base).items() if callable(value) and name not in own]
    for name in (name for name in own if not (name.startswith("_") or name in called or hasattr(base, name))):
        if found := near_names(name, meant, 1, 0.8):
            return f"it has a method {name}, which nothing calls: is it meant to be {found[0]}?"
    return ""
