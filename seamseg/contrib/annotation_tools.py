"""Formats of annotation tools, for review and correction: CVAT and Label Studio. `seamseg prepare` reads them back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from seamseg.config.components import register
from seamseg.maps.formats import cvat, label_studio
from seamseg.maps.formats.id_png import write_id_png
from seamseg.maps.formats.metadata import Metadata, class_infos
from seamseg.maps.predictions import ArrayPrediction
from seamseg.predicting.source import Source
from seamseg.predicting.writers.images import OutputFormat, Record, Records
from seamseg.results import Panoptic
from seamseg.utils.errors import InputError
from seamseg.utils.files import replacing, write_atomically, write_json

CLASSES = "classes.json"
"""Class list for `seamseg prepare`: neither tool knows which classes are things."""

LOCAL_FILES = "/data/local-files/?d="
"""Start of the addresses of images below LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT."""


class _ToolWriter(OutputFormat[Panoptic]):
    """Base of the formats with a class list."""

    kinds = ("panoptic",)
    final = CLASSES

    def finish(self, records: Records) -> None:
        """Write the class list."""
        classes = zip(class_infos(self.metadata), self.metadata.palette)
        entries = [{"id": c.id, "name": c.name, "isthing": int(c.isthing), "color": list(rgb)} for c, rgb in classes]
        write_json(self.out / CLASSES, entries, indent=1)


@register("format", "cvat")
class CvatWriter(_ToolWriter):
    """The layout "Segmentation mask 1.1" of CVAT in `OUT/cvat/`.

    See :mod:`seamseg.maps.formats.cvat`. InputError if the name of a class cannot be a label, the name of an image
    cannot be in the list, or it has too many segments.
    """

    map_only = True

    def __init__(self, out: Path, metadata: Metadata, keys: Any = None) -> None:
        super().__init__(out / "cvat", metadata, keys)
        self._colors = cvat.label_colors(metadata)
        self._list = self.out / cvat.LISTS / "default.txt"

    def paths(self, source: Source) -> list[Path]:
        """Return the images of labels and of objects."""
        return [self.out / folder / f"{source.name}.png" for folder in (cvat.CLASS_FOLDER, cvat.OBJECT_FOLDER)]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: Panoptic) -> Record:
        """Write both images and return the name."""
        if source.name.encode(errors="replace").decode().splitlines() != [source.name]:
            raise InputError(f"{cvat.LISTS} has one name per line, in UTF-8")
        masks = cvat.encode_masks(result.id_map, result.segments, self._colors, source.name)
        for path, codes in zip(self.paths(source), masks):
            write_id_png(path, codes)
        return {"listed": source.name}

    def finals(self) -> list[Path]:
        """Return the class list, `labelmap.txt` and the list of names."""
        return [*super().finals(), self.out / cvat.LABELMAP, self._list]

    def finish(self, records: Records) -> None:
        """Write them."""
        super().finish(records)
        write_atomically(self.out / cvat.LABELMAP, cvat.labelmap_text(self.metadata, self._colors).encode())
        with replacing(self._list) as temporary, open(temporary, "w", encoding="utf-8") as file:
            file.writelines(f"{record['listed']}\n" for record in records())


@register("format", "labelstudio")
class LabelStudioWriter(_ToolWriter):
    """Tasks of Label Studio in `OUT/labelstudio/tasks/<name>.json`.

    See :mod:`seamseg.maps.formats.label_studio`. The addresses of images are for Label Studio's local file serving,
    relative to the input.
    """

    map_only = True
    of_files = True
    file = f"{label_studio.TASKS}/{{}}.json"

    def __init__(self, out: Path, metadata: Metadata, keys: Any = None) -> None:
        super().__init__(out / "labelstudio", metadata, keys)

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: Panoptic) -> None:
        """Write the task."""
        address = f"{LOCAL_FILES}{quote(os.fsencode(source.relative))}"
        content = [label_studio.task(result, self.metadata, address)]
        write_atomically(self.paths(source)[0], json.dumps(content, separators=(",", ":"), allow_nan=False).encode())

    def finals(self) -> list[Path]:
        """Return the class list and the labelling interface."""
        return [*super().finals(), self.out / label_studio.CONFIG]

    def finish(self, records: Records) -> None:
        """Write them."""
        super().finish(records)
        write_atomically(self.out / label_studio.CONFIG, label_studio.labeling_config(self.metadata).encode())
