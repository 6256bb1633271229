"""Parsing and formatting of INI values, with one-line errors."""

from __future__ import annotations

import ast
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field
from functools import cache
from typing import Any

from seamseg.utils.errors import did_you_mean

_BOOLEANS = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}
_ONE = {int: "whole number", float: "number", bool: "yes or no", str: "text"}
_MANY = {int: "whole numbers", float: "numbers", str: "quoted names"}
_EXAMPLES = {int: "(4, 8)", float: "(.5, 1.)", str: '["mod2", "mod3"]'}
_DICT_EXAMPLES = {int: '{"mod1": 64}', Any: '{"gamma": .9}'}

_MAX_LENGTH = 65_536
"""Largest number of characters of a tuple, list or dict; the parser needs about a hundred bytes for each."""


class ValueProblem(ValueError):
    """The text is not a valid value of the key; the message contains what was expected."""


def parse_value(text: str, annotation: Any, limits: Mapping[str, Any]) -> Any:
    """Parse a text as the resolved type of a key: bool, int, float, str, or a tuple, list or dict of them, or `| None`.

    `limits` has `choices`, `minimum`, `maximum` (both included), `above` (not included) and `most`, the largest number
    of values; each may be missing. Raises ValueProblem.
    """
    text = text.strip()
    kind, optional = split_optional(annotation)
    if optional and text in ("", "None"):
        return None
    if text == "" and kind is not str:
        raise ValueProblem(f"is empty, expected {expected(kind)}")
    value = _read(text, kind)
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


def format_value(value: Any) -> str:
    """Format a value as text, the inverse of :func:`parse_value`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else repr(value)


@cache
def hints_of(keys: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass by name, without text annotations."""
    return typing.get_type_hints(keys)


def declaration_problem(spec: Field[Any], keys: type) -> str | None:
    """Return what is wrong with the declaration of a key: its default could not be read from a configuration."""
    if "doc" not in spec.metadata or spec.name != spec.name.lower() or spec.default is MISSING:
        return "declare it as key(DOC, DEFAULT), in lower case"
    try:
        hints = hints_of(keys)
    except Exception as error:  # annotations are code
        return f"{type(error).__name__}: {error}"
    try:
        value = parse_value(format_value(spec.default), hints[spec.name], spec.metadata)
        same = value == spec.default or (value is None and spec.default == "")
        wanted = expected(split_optional(hints[spec.name])[0])
    except ValueProblem as problem:
        return f"its default {spec.default!r:.80}: {problem}"
    except (KeyError, IndexError, TypeError):
        return f"a key is bool, int, float, str, or a tuple, list or dict of numbers or texts, not {spec.type}"
    return None if same else f"its default {spec.default!r:.80} is not {wanted}"


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """Return the type without `| None`, and whether it was optional."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return next(a for a in typing.get_args(annotation) if a is not types.NoneType), True
    return annotation, False


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
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if origin is None:
        return f"a {_ONE[kind]}" if kind in (int, float) else _ONE[kind]
    example = _DICT_EXAMPLES[items[1]] if origin is dict else _EXAMPLES[items[0]]
    if origin is tuple and items[-1] is not ... and len(items) != 2:
        example = f"({', '.join([example[1:].split(',')[0]] * len(items))})"
    return f"a {name_of(kind)} such as {example}"


def _read(text: str, kind: Any) -> Any:
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueProblem("expected yes or no")
        return _BOOLEANS[text.lower()]
    if kind in (int, float):
        return _number(text, kind, kind)
    if len(text) > _MAX_LENGTH:
        raise ValueProblem(f"expected at most {_MAX_LENGTH} characters, got {len(text)}")
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueProblem(f"expected {expected(kind)}") from None
    return _container(value, kind)


def _number(value: Any, target: type, kind: Any) -> Any:
    """`value`, text or a literal, as int or float; `kind` is the type of the whole key, for the message."""
    fits = isinstance(value, (str, int) if target is int else (str, int, float)) and not isinstance(value, bool)
    try:
        number = target(value) if fits else None
        finite = number is not None and math.isfinite(number)
    except (ValueError, OverflowError):  # also of isfinite, for a whole number beyond all floats
        finite = False
    if not finite:
        raise ValueProblem(f"expected {expected(kind)}")
    return number


def _container(value: Any, kind: Any) -> Any:
    origin, items = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        if not isinstance(value, dict):
            raise ValueProblem(f"expected {expected(kind)}")
        return {_item(k, items[0], kind): _item(v, items[1], kind) for k, v in value.items()}
    if not isinstance(value, (tuple, list)):
        raise ValueProblem(f"expected {expected(kind)}")
    if origin is tuple and items[-1] is not ... and len(value) != len(items):
        raise ValueProblem(f"expected {len(items)} values, got {len(value)}")
    if not value:
        raise ValueProblem(f"is empty, expected {expected(kind)}")
    return origin(_item(v, items[0], kind) for v in value)


def _item(value: Any, target: Any, kind: Any) -> Any:
    if target is Any:
        return value
    if target is str or isinstance(value, str):
        if not (target is str and isinstance(value, str)):
            raise ValueProblem(f"expected {expected(kind)}")
        return value
    return _number(value, target, kind)


def _check_range(value: Any, limits: Mapping[str, Any]) -> None:
    low, high, above = (limits.get(name) for name in ("minimum", "maximum", "above"))
    if low is not None and high is not None and not low <= value <= high:
        raise ValueProblem(f"expected a value from {low} to {high}")
    if low is not None and value < low:
        raise ValueProblem(f"expected at least {low}")
    if above is not None and value <= above:
        raise ValueProblem(f"expected more than {above}")
    if high is not None and value > high:
        raise ValueProblem(f"expected at most {high}")
