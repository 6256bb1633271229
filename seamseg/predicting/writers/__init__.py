"""The output formats of `predict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

from seamseg.config import components
from seamseg.config.loader import keys_of
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import MapFormat
from seamseg.predicting.source import Source
from seamseg.predicting.writers import annotation_tools  # noqa: F401  # it registers
from seamseg.predicting.writers.base import OutputFormat
from seamseg.predicting.writers.images import AnonymizeWriter
from seamseg.predicting.writers.predictions import MapWriter
from seamseg.utils.errors import InputError, named_errors

__all__ = ["AnonymizeWriter", "OutputFormat", "errors_of", "formats_of", "make_writers"]

_WITH_HEADS = ("panoptic", "instance_seg", "detection")


def formats_of(kind: str) -> list[str]:
    """Return the names of the formats of a kind of network, built in, of imported files, and of heads and networks."""
    of_heads = [name for head in components.registered("head") for name in head.make.outputs]  # type: ignore[attr-defined]
    formats = [c.name for c in components.registered("format") if kind in c.make.kinds]  # type: ignore[attr-defined]
    networks = [c.make for c in components.registered("network")]
    of_networks = [n for make in networks if getattr(make, "kind", None) == kind for n in getattr(make, "outputs", {})]
    return [*formats, *(of_heads if kind in _WITH_HEADS else []), *of_networks]


def make_writers(
    formats: Sequence[str],
    out: Path,
    metadata: Metadata,
    kind: str = "panoptic",
    overrides: Sequence[str] = (),
    maps: Mapping[str, MapFormat] = MappingProxyType({}),
) -> list[OutputFormat[Any]]:
    """Create the writers of formats, each named once, for a kind of network.

    `overrides` are configuration keys, of which formats have sections; each of `maps`, of custom heads, is a format.
    InputError if the kind of network does not have one, two would write the same file, or a format cannot hold the
    classes.
    """
    known = list(dict.fromkeys((*formats_of(kind), *maps)))
    unknown = next((name for name in formats if name not in known), None)
    if unknown is not None:
        raise InputError(
            f"`formats={','.join(formats)}`: a model of kind {kind} has no format {unknown!r}: choose among "
            f"{', '.join(known)}, separated by commas; name the file of another with `components=FILE`"
        )
    made: list[OutputFormat[Any]] = []
    owners: dict[Path, str] = {}
    for name in formats:
        if name in maps:
            writer: OutputFormat[Any] = MapWriter(out, metadata, name, maps[name])
        elif components.is_registered("format", name):
            component = components.find("format", name)
            with named_errors(component.section, component.module):
                writer = component.make(out, metadata, keys_of("format", name, overrides))
        else:
            raise InputError(f"`formats={','.join(formats)}`: the model has no head with the output {name}")
        with errors_of(writer):
            paths = writer.paths(Source(Path("NAME"), "NAME", "NAME"))
        for path in paths:
            if (owner := owners.setdefault(path, name)) != name:
                raise InputError(f"`formats={','.join(formats)}`: {owner} and {name} would both write {path.name}")
        made.append(writer)
    return made


def errors_of(writer: OutputFormat[Any]) -> AbstractContextManager[None]:
    """Return a context that names a custom format, and the line of its file, in errors of its code."""
    own = components.custom_of(writer)
    return nullcontext() if own is None else named_errors(own.section, own.module)
