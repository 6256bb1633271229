"""Detections as the benchmarks of Cityscapes and Vistas take them: a text file an image, a mask a detection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from seamseg.evaluation.detections import paste_detections
from seamseg.formats.cityscapes.instance_files import mask_png
from seamseg.structures import Prediction
from seamseg.utils.files import write_atomically

MASKS = "masks"


def write_detections(
    folder: Path, name: str, prediction: Prediction, size: tuple[int, int], labels: Sequence[int]
) -> Path:
    """Write all detections of an image before their fusion, overlapping as they are.

    Each is a line `masks/<name>_<k>.png label score` of `<name>.txt`, the mask 255 on the object and 0 elsewhere.
    Detections without a pixel are left out; there are none without masks.

    Parameters
    ----------
    folder : of the text files
    name : of the image, without folders
    prediction : at the network's size
    size : `(height, width)` of the photo
    labels : of each thing class

    Returns
    -------
    path : of the text file, which is written last
    """
    lines = []
    for k, found in enumerate(paste_detections(prediction, size)):
        if found.crop is None or not found.crop.any():
            continue
        mask = f"{MASKS}/{_one_word(name)}_{k}.png"
        write_atomically(folder / mask, mask_png(found.crop, found.corner, size))
        # nine digits bring back each float32
        lines.append(f"{mask} {labels[found.category]} {found.score:.9g}\n")
    path = folder / f"{name}.txt"
    write_atomically(path, "".join(lines).encode())
    return path


def _one_word(name: str) -> str:
    # the words of a line are told apart by blanks
    return re.sub(r"\s", lambda blank: f"%{ord(blank[0]):02x}", name)
