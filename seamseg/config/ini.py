"""INI files: their text, and the files that they build on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from seamseg.config.experiments import near_files, packaged
from seamseg.utils.errors import InputError
from seamseg.utils.files import decode_text, read_bytes
from seamseg.utils.limits import CONFIG_BYTES, read_ini

Texts = dict[str, dict[str, str]]
"""Values by section and key."""


class Layer(NamedTuple):
    """The content of a configuration or of a base of it, its name in errors, and its folder; None for a model."""

    given: Texts
    source: str
    folder: Path | None


def read_text(path: Path, named_by: str = "") -> str:
    """Return the text of a configuration file; InputError, which begins with `named_by`, if it cannot be read."""
    if os.path.isdir(path):
        raise InputError(f"{named_by}{path}: is a folder, not a config file")
    if not os.path.exists(path):
        raise InputError(f"{named_by}{path}: no such config file{near_files(path)}")
    return decode_text(read_bytes(path, "config file", CONFIG_BYTES), path, "config file")


def layers_of(layer: Layer) -> list[Layer]:
    """Read the configurations that one builds on; return them, the first base first, and itself."""
    layers, seen = [layer], {os.path.realpath(layer.source)}
    while base := layer.given.get("general", {}).pop("base", "").strip():
        names = f"{layer.source}: [general] base = {base:.80}: "
        if layer.folder is None:
            raise InputError(f"{names}a model must have a complete configuration")
        path = layer.folder / base
        if not os.path.exists(path):
            path = packaged(base) or path
        if os.path.realpath(path) in seen:
            raise InputError(f"{names}a configuration cannot build on itself")
        seen.add(os.path.realpath(path))
        layer = Layer(read_ini(read_text(path, names), str(path)), str(path), path.parent)
        layers.insert(0, layer)
    return layers
