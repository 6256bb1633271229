"""Parsing and formatting of INI values, with one-line errors."""

from __future__ import annotations

import ast
import math
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, Field
from functools import cache
from typing import Any

from seamseg.utils.errors import did_you_mean

_BOOLEANS = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}
_ONE = {int: "whole number", float: "number", bool: "yes or no", str: "text"}
_MANY = {int: "whole numbers", float: "numbers", str: "quoted names"}

_MAX_LENGTH = 65_536
"""Largest number of characters of a tuple, list or dict; the parser needs about a hundred bytes for each."""


class ValueProblem(ValueError):
    """The text is not a valid value of the key; the message contains what was expected."""


def parse_value(text: str, hint: tuple[Any, bool], limits: Mapping[str, Any]) -> Any:
    """Parse a text as a type of a key, see :func:`hints_of`: bool, int, float, str, or a tuple, list or dict of them.

    `limits` has `choices`, `minimum`, `maximum` (both included), `above` (not included) and `most`, the largest number
    of values; each may be missing. Raises ValueProblem.
    """
    text = text.strip()
    kind, optional = hint
    if optional and text in ("", "None"):
        return None
    if text == "" and kind is not str:
        raise ValueProblem(f"is empty, expected {expected(kind)}")
    value: Any = text
    if kind not in (bool, int, float, str):
        if len(text) > _MAX_LENGTH:
            raise ValueProblem(f"expected at most {_MAX_LENGTH} characters, got {len(text)}")
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise ValueProblem(f"expected {expected(kind)}") from None
    value = _read(value, kind, kind)
    choices = limits.get("choices")
    if choices and value not in choices:
        raise ValueProblem(f"expected one of {', '.join(choices)}{did_you_mean(text, choices)}")
    values = value if isinstance(value, (tuple, list)) else list(value.values()) if isinstance(value, dict) else [value]
    if (most := limits.get("most")) is not None and len(values) > most:
        raise ValueProblem(f"expected at most {most} values, got {len(values)}")
    for number in values:
        if isinstance(number, (int, float)):
            _check_range(number, limits)
    return value


def _check_range(number: float, limits: Mapping[str, Any]) -> None:
    low, high, above = (limits.get(name) for name in ("minimum", "maximum", "above"))
    if above is not None and number <= above:
        raise ValueProblem(f"expected more than {above}")
    if (low is not None and number < low) or (high is not None and number > high):
        between = f"a value from {low} to {high}" if None not in (low, high) else f"at least {low}"
        raise ValueProblem(f"expected {f'at most {high}' if low is None else between}")


def format_value(value: Any) -> str:
    """Format a value as text, the inverse of :func:`parse_value`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else repr(value)


@cache
def hints_of(keys: type) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a dataclass, without `| None`, and whether it was optional."""
    found = {}
    for name, hint in typing.get_type_hints(keys).items():
        optional = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType] if optional else [hint]
        found[name] = kinds[0], optional
    return found


def declaration_problem(spec: Field[Any], keys: type) -> str | None:
    """Return what is wrong with the declaration of a key: its default could not be read from a configuration."""
    if "doc" not in spec.metadata or spec.name != spec.name.lower() or spec.default is MISSING:
        return "declare it as key(DOC, DEFAULT), in lower case"
    try:
        value = parse_value(format_value(spec.default), hints_of(keys)[spec.name], spec.metadata)
    except ValueProblem as problem:
        return f"its default {spec.default!r:.80}: {problem}"
    except Exception as error:  # annotations are code
        types_of = "bool, int, float, str, or a tuple, list or dict of numbers or texts"
        return f"{type(error).__name__}: {error}; a key is {types_of}, not {spec.type}"
    same = value == spec.default or (value is None and spec.default == "")
    return None if same else f"its default {spec.default!r:.80} is not {expected(hints_of(keys)[spec.name][0])}"


def name_of(kind: Any) -> str:
    """Return the name of a type: `whole number`, `dict`, `tuple of 2 numbers`."""
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if origin is None:
        return _ONE[kind]
    if origin is dict:
        return "dict"
    count = "" if origin is list or items[-1] is ... else f"{len(items)} "
    return f"{origin.__name__} of {count}{_MANY[items[0]]}"


def expected(kind: Any) -> str:
    """Describe the values of a type, for errors."""
    if typing.get_origin(kind) is dict:
        return 'a dict such as {"name": 0.9}'
    return name_of(kind) if kind in (bool, str) else f"a {name_of(kind)}"


def _read(value: Any, kind: Any, whole: Any) -> Any:
    """Return a text or a literal as a value of a type; `whole` is the type of the key, for the message."""
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or (kind is str and isinstance(value, str)):
        return value
    if kind is bool:
        if value.lower() in _BOOLEANS:
            return _BOOLEANS[value.lower()]
    elif kind in (int, float) and type(value) in (int, kind, str if kind is whole else int):
        with suppress(ValueError, OverflowError):  # also of isfinite, for a whole number beyond all floats
            if math.isfinite(number := kind(value)):
                return number
    elif origin is dict and isinstance(value, dict):
        return {_read(k, items[0], whole): _read(v, items[1], whole) for k, v in value.items()}
    elif origin in (tuple, list) and isinstance(value, (tuple, list)):
        if origin is tuple and items[-1] is not ... and len(value) != len(items):
            raise ValueProblem(f"expected {len(items)} values, got {len(value)}")
        if not value:
            raise ValueProblem(f"is empty, expected {expected(whole)}")
        return origin(_read(item, items[0], whole) for item in value)
    raise ValueProblem(f"expected {expected(whole)}")
