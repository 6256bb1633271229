"""Formats that are images to look at: the overlay, and the anonymised photo."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.formats.metadata import Metadata
from seamseg.inference.anonymize import LEAST_SCORE, Style, hide_classes
from seamseg.inference.class_names import choose_classes
from seamseg.inference.photo_result import PhotoResult
from seamseg.inference.result import Panoptic
from seamseg.panoptic_map import PanopticResult
from seamseg.predict.sources.base import Source
from seamseg.predict.writers.base import Writer
from seamseg.predictions import Prediction
from seamseg.utils.errors import InputError, option
from seamseg.utils.files import write_atomically
from seamseg.visualize.overlay import draw_overlay

OVERLAY_QUALITY = 92
ANONYMIZED_QUALITY = 95


class OverlayWriter(Writer[Panoptic]):
    """The photo blended equally with the colours of its segments, and their contours: `<name>.jpg`."""

    needs_photo = True
    member = "overlay.jpg"

    def __init__(self, out: Path, metadata: Metadata) -> None:
        self.out = out
        self.metadata = metadata

    def paths(self, source: Source) -> list[Path]:
        """Return `OUT/<name>.jpg`."""
        return [self.out / f"{source.name}.jpg"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: Panoptic) -> None:
        """Draw and write the overlay."""
        assert rgb is not None
        overlay = draw_overlay(rgb, result, self.metadata.palette, self.metadata.categories)
        buffer = BytesIO()
        Image.fromarray(overlay).save(buffer, "JPEG", quality=OVERLAY_QUALITY)
        write_atomically(self.paths(source)[0], buffer.getvalue())


class AnonymizeWriter(Writer[PhotoResult]):
    """The photo, upright and at its own size, with some classes hidden: `<name>.jpg`.

    The file holds pixels only: no EXIF (place, date, camera), thumbnail, comment or colour profile.

    Parameters
    ----------
    out : folder
    metadata : the classes of the model
    hide : names of the classes, as a list or separated by commas
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
        hide: str | Sequence[str],
        style: Style = "blur",
        least_score: float = LEAST_SCORE,
    ) -> None:
        self.out = out
        self.num_stuff = metadata.num_stuff
        self.classes = choose_classes(hide, metadata, "hide")
        self.style = style
        self.least_score = least_score
        if not 0 <= least_score <= 1:
            raise InputError(f"{option('least_score')} must be between 0 and 1, not {least_score}")

    def paths(self, source: Source) -> list[Path]:
        """Return `OUT/<name>.jpg`."""
        return [self.out / f"{source.name}.jpg"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PhotoResult) -> None:
        """Hide the classes and write the photo."""
        assert rgb is not None
        segments = result if isinstance(result, PanopticResult) else None
        hidden = hide_classes(rgb, segments, prediction, self.classes, self.num_stuff, self.style, self.least_score)
        buffer = BytesIO()
        # saved from an array, without any metadata of the source file
        Image.fromarray(hidden).save(buffer, "JPEG", quality=ANONYMIZED_QUALITY, subsampling=0)
        write_atomically(self.paths(source)[0], buffer.getvalue())
