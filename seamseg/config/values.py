"""From the text of an INI value to its type, and what is wrong with it in words."""

from __future__ import annotations

import ast
import types
import typing
from dataclasses import Field
from typing import Any

_BOOLEANS = {"yes": True, "true": True, "on": True, "1": True, "no": False, "false": False, "off": False, "0": False}
_NAMES = {int: "a whole number", float: "a number", bool: "yes or no", tuple: "a tuple", list: "a list", dict: "a dict"}


class ValueProblem(ValueError):
    """The text does not fit the key; the message says what was expected."""


def parse_value(text: str, annotation: Any, spec: Field) -> Any:
    """Read `text` as the type of a key.

    Parameters
    ----------
    text : as it stands in the file
    annotation : resolved type of the key
    spec : its field, with choices, length and whether it may be empty

    Raises
    ------
    ValueProblem
    """
    kind = _plain_type(annotation)
    if spec.metadata["optional"] and text.strip() in ("", "None"):
        return None
    value = _read(text.strip(), kind)
    choices, length = spec.metadata["choices"], spec.metadata["length"]
    if choices and value not in choices:
        raise ValueProblem(f"expected one of {', '.join(choices)}")
    if length is not None and len(value) != length:
        raise ValueProblem(f"expected {length} values, got {len(value)}")
    return value


def _plain_type(annotation: Any) -> type:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return next(a for a in typing.get_args(annotation) if a is not type(None))
    return annotation


def _read(text: str, kind: type) -> Any:
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueProblem("expected yes or no")
        return _BOOLEANS[text.lower()]
    expected = f"expected {_NAMES[kind]}"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueProblem(expected) from None
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    if kind is list and isinstance(value, tuple):
        value = list(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind:
        raise ValueProblem(expected)
    return value
