"""Options, each declared once as a field of a frozen dataclass: an argument in Python and a flag of a command."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from os import PathLike
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")


def option(
    text: str,
    default: Any = dataclasses.MISSING,
    metavar: str | None = None,
    *,
    group: str = "",
    flags: str = "",
    choices: Sequence[str] | None = None,
    several: str = "",
) -> Any:
    """Declare an option of a dataclass.

    `text` is for the documentation and, with flags in place of the names of options in backticks, for `--help`, where
    the option is in the `group` of this title. `flags`, separated by spaces, replace that of its name. The command
    accepts only `choices`. `several` is "words" if several values follow, "flags" if the flag may be repeated.
    """
    told = {"text": text, "metavar": metavar, "group": group, "flags": flags, "choices": choices, "several": several}
    return dataclasses.field(default=default, metadata=told)


def flags_of(field: dataclasses.Field[Any]) -> list[str]:
    """Return the flags of an option."""
    return field.metadata["flags"].split() or ["--" + field.name.replace("_", "-")]


def takes(options: Callable[P, Options]) -> Callable[[Callable[[Options], Result]], Callable[P, Result]]:
    """Decorate a function of a dataclass of options: it takes the fields as arguments, and documents them."""

    def decorate(function: Callable[[Options], Result]) -> Callable[P, Result]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Result:
            try:
                given = options(*args, **kwargs)
            except TypeError as error:
                text = str(error).replace(f"{options.__name__}.__init__()", f"{function.__name__}()")
                raise TypeError(text).with_traceback(error.__traceback__) from None
            return function(given)

        declared = vars(options)["__dataclass_fields__"]
        arguments = [_plain(argument) for argument in inspect.signature(options).parameters.values()]
        lines = [f"{argument.name} : {declared[argument.name].metadata['text']}" for argument in arguments]
        vars(call)["__signature__"] = inspect.signature(function).replace(parameters=arguments)
        call.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Parameters", "----------", *lines])
        return call

    return decorate


def _plain(argument: inspect.Parameter) -> inspect.Parameter:
    """Return an argument of a dataclass with the type that callers give."""
    kind = str(argument.annotation)
    return argument.replace(annotation=kind[len("InitVar[") : -1] if kind.startswith("InitVar[") else kind)


def override_texts(overrides: Mapping[str, object] | str | Sequence[str], components: Any = ()) -> tuple[str, ...]:
    """Return overrides, with those that import one or several components, as texts `section.key=value`."""
    given = [f"{key}={value}" for key, value in overrides.items()] if isinstance(overrides, Mapping) else overrides
    return (*several(given), *(f"general.components={name}" for name in several(components or ())))


def several(values: Any) -> tuple[Any, ...]:
    """Return one or several texts or paths as several."""
    return (values,) if isinstance(values, (str, PathLike)) else tuple(values)
