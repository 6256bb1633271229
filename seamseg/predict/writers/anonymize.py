"""Photos to show around: nobody and nothing of some classes can be recognised."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.formats.metadata import Metadata
from seamseg.inference.anonymize import LEAST_SCORE, Style, hide_classes
from seamseg.inference.class_names import choose_classes
from seamseg.panoptic_map import PanopticResult
from seamseg.predict.sources.base import Source
from seamseg.predict.writers.base import Records
from seamseg.structures import Prediction
from seamseg.utils.errors import InputError
from seamseg.utils.files import write_atomically

JPEG_QUALITY = 95


class AnonymizeWriter:
    """The photo, upright and at its own size, with some classes hidden: `<name>.jpg`.

    The file holds pixels alone: no EXIF (place, date, camera), no thumbnail, no comment, no colour profile.

    Parameters
    ----------
    out : folder
    metadata : the classes of the model
    classes : names to hide, a list or one text with commas between
    style, least_score : see :func:`seamseg.inference.anonymize.hide_classes`

    Raises
    ------
    InputError
        if a class is unknown, or the score out of range
    """

    needs_photo = True
    member = "jpg"

    def __init__(
        self,
        out: Path,
        metadata: Metadata,
        classes: str | Sequence[str],
        style: Style = "blur",
        least_score: float = LEAST_SCORE,
    ) -> None:
        self.out = out
        self.num_stuff = metadata.num_stuff
        self.classes = choose_classes(classes, metadata, "--anonymize")
        self.style = style
        self.least_score = least_score
        if not 0 <= least_score <= 1:
            raise InputError(f"--anonymize-score must be between 0 and 1, not {least_score}")

    def paths(self, source: Source) -> list[Path]:
        """`OUT/<name>.jpg`"""
        return [self.out / f"{source.name}.jpg"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult) -> None:
        """Hide and write."""
        assert rgb is not None
        hidden = hide_classes(rgb, result, prediction, self.classes, self.num_stuff, self.style, self.least_score)
        buffer = BytesIO()
        # made from an array: nothing of the file it came from is in it
        Image.fromarray(hidden).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        write_atomically(self.paths(source)[0], buffer.getvalue())

    def finals(self) -> list[Path]:
        """None"""
        return []

    def finish(self, records: Records) -> None:
        """Nothing is left to do."""
