"""Read messages of protobuf from untrusted files, with the fields of a schema and no others; no `protobuf` package.

A field of another type than in the schema, or a single one that is there twice, is an error: parsers differ in what
they make of it. The numbers of fields and of bytes that are kept are limited.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from typing import Any

from seamseg.utils.limits import MIB, format_bytes

_FIELDS = 400_000
"""Most fields of a file: those of the graph of a large quantised network are a tenth."""
_KEPT_BYTES = 32 * MIB

Schema = dict[int, tuple[str, str, bool, bool]]
"""Name, type, whether a field is repeated, and whether it is packed, by the tag in the file."""


class DamagedFile(ValueError):
    """The file is of another format, or is truncated."""


class RefusedFile(ValueError):
    """The file has something that it must not have; the message is what, as "it has a subgraph"."""


def schema(fields: str) -> Schema:
    """Return a schema from fields as "1 text name, 2 int* dims".

    Types are int, float, text, span (start and end in the file, which is not read), or the name of a message; a star
    stands for repeated fields.
    """
    made = {}
    for number, kind, name in (field.split() for field in fields.split(", ")):
        repeated, kind = kind.endswith("*"), kind.rstrip("*")
        made[int(number) << 3 | {"int": 0, "float": 5}.get(kind, 2)] = (name, kind, repeated, False)
        if repeated and kind in ("int", "float"):
            made[int(number) << 3 | 2] = (name, kind, True, True)
    return made


class MessageReader:
    """Reads messages of a file.

    Parameters
    ----------
    data : the file
    schemas : schema by the name of the message
    refused : what a field stands for, by message and number: an error of its own
    """

    def __init__(
        self, data: mmap.mmap | bytes, schemas: Mapping[str, Schema], refused: Mapping[tuple[str, int], str]
    ) -> None:
        self._data = data
        self._schemas = schemas
        self._refused = refused
        self._fields_left = _FIELDS
        self._bytes_left = _KEPT_BYTES

    def message(self, at: int, end: int, name: str) -> dict[str, Any]:
        """Return the fields of a message between two positions."""
        data, schema, found = self._data, self._schemas[name], dict[str, Any]()
        while at < end:
            tag, at = (data[at], at + 1) if data[at] < 128 else self._varint(at, end)
            self._fields_left -= 1
            known = schema.get(tag)
            if known is None or self._fields_left < 0:
                raise self._unknown(tag, name)
            field, kind, repeated, packed = known
            wire = tag & 7
            value, at = (4, at) if wire == 5 else self._varint(at, end)
            after = at + value if wire else at
            if after > end:
                raise DamagedFile(f"{name} ends early")
            given = self._value(at, after, kind, packed) if wire else value - (value >> 63 << 64)
            at = after
            if not repeated and field in found:
                raise DamagedFile(f"{name} has two of {field}")
            if not repeated:
                found[field] = given
            elif packed:
                found.setdefault(field, []).extend(given)
            else:
                found.setdefault(field, []).append(given)
        return found

    def _value(self, at: int, end: int, kind: str, packed: bool) -> Any:
        """Return a field that is no number of variable length, from its bytes between two positions."""
        if kind == "text":
            return self._text(at, end)
        if kind == "span":
            return at, end
        if packed:
            return self.packed(at, end, kind)
        return struct.unpack("<f", self._data[at:end])[0] if kind == "float" else self.message(at, end, kind)

    def _unknown(self, tag: int, name: str) -> Exception:
        if self._fields_left < 0:
            return RefusedFile(f"it has more than {_FIELDS} fields")
        foreign = self._refused.get((name, tag >> 3))
        if foreign is not None:
            return RefusedFile(foreign)
        return DamagedFile(f"field {tag >> 3} of {name} is unknown or of another type")

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        data, value, shift = self._data, 0, 0
        if at < end and data[at] < 128:
            return data[at], at + 1
        while at < end and shift < 70:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at
            shift += 7
        raise DamagedFile("a number ends early")

    def keep(self, at: int, end: int) -> bytes:
        """Return bytes of the file."""
        self._bytes_left -= end - at
        if self._bytes_left < 0:
            raise RefusedFile(f"it has more than {format_bytes(_KEPT_BYTES)} of names and texts")
        return self._data[at:end]

    def _text(self, at: int, end: int) -> str:
        try:
            return self.keep(at, end).decode()
        except UnicodeDecodeError:
            raise DamagedFile("a text is not UTF-8") from None

    def packed(self, at: int, end: int, kind: str = "int") -> list[Any]:
        """Return numbers that follow each other."""
        data = self.keep(at, end)
        if kind == "float":
            if len(data) % 4:
                raise DamagedFile("a list ends early")
            return list(struct.unpack(f"<{len(data) // 4}f", data))
        numbers = []
        while at < end:
            value, at = self._varint(at, end)
            numbers.append(value - (value >> 63 << 64))
        return numbers
