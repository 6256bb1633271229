"""The output formats of `predict`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from seamseg.formats.metadata import Metadata
from seamseg.predict.writers.base import Writer
from seamseg.predict.writers.images import AnonymizeWriter, OverlayWriter
from seamseg.predict.writers.predictions import CityscapesWriter, CocoWriter, RawWriter, VistasWriter
from seamseg.utils.errors import InputError, option

__all__ = ["FORMATS", "AnonymizeWriter", "Writer", "make_writers"]

FORMATS: dict[str, Callable[[Path, Metadata], Writer]] = {
    "overlay": OverlayWriter,
    "coco": CocoWriter,
    "raw": RawWriter,
    "cityscapes": CityscapesWriter,
    "vistas": VistasWriter,
}


def make_writers(formats: Sequence[str], out: Path, metadata: Metadata) -> list[Writer]:
    """Create the writers of a list of formats.

    Raises
    ------
    InputError
        if one is unknown, the list is empty, or a format cannot hold the classes
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown or not formats:
        raise InputError(
            f"{option('formats', ','.join(formats))}: choose among {', '.join(FORMATS)}, separated by commas"
        )
    return [FORMATS[name](out, metadata) for name in dict.fromkeys(formats)]
