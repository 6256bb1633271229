"""Memory that decoding an image takes, estimated from its header. No torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from seamseg.utils.errors import InputError, UnreadableImage

if TYPE_CHECKING:
    from PIL import Image

VARIABLE = "SEAMSEG_IMAGE_MEMORY"
"""Environment variable with the budget of an image in GB, which child processes inherit."""
BUDGET_GB = 1.5
ALONE_BYTES = 500_000_000
"""`predict` decodes images that take more one at a time: with 7 bytes per pixel, from 71 megapixels."""
RGB_BYTES = 7
"""Memory of a pixel of an image and of its copy as an array: Pillow stores RGB in four bytes."""
MASK_BYTES = 16
"""Memory of a pixel of a mask: Pillow's image, `int32`, and the arrays of the segments that are made of it."""

_OF_FRAMES = ("WEBP", "AVIF")
_FRAME_BYTES = 16
"""Memory of a pixel of these: planes of the frame, two canvases, a copy in Python, and Pillow's image."""
_SIDE_BYTES = 800
"""Memory of a pixel of the longer side: tables to resize it, and rows that a run-length BMP may skip at once."""


def budget() -> float:
    """Return the most bytes that decoding an image may take; InputError if :data:`VARIABLE` is not a number."""
    text = os.environ.get(VARIABLE, "")
    try:
        found = float(text or BUDGET_GB)
    except ValueError:
        found = 0.0
    if not found > 0:
        raise InputError(f"{VARIABLE}={text}: must be a positive number of GB")
    return found * 1e9


def memory_needed(image: Image.Image, per_pixel: float = RGB_BYTES) -> int:
    """Return the estimated bytes of decoding an open image; `per_pixel` until the image and its arrays are dropped."""
    per_pixel = max(per_pixel, _FRAME_BYTES if image.format in _OF_FRAMES else 0)
    return int(per_pixel * image.width * image.height) + _SIDE_BYTES * max(image.size)


def is_large(pixels: int) -> bool:
    """Return whether an RGB image is decoded alone, by its number of pixels."""
    return RGB_BYTES * pixels > ALONE_BYTES


def check_memory(name: object, kind: str, size: tuple[int, int], needed: float) -> None:
    """Raise UnreadableImage if more bytes are needed than :func:`budget` allows.

    Path, format, and `(width, height)` are for the error.
    """
    if needed > (most := budget()):
        raise UnreadableImage(
            f"{name}: decoding {size[0]} x {size[1]} pixels of {kind} takes {needed / 1e9:.3g} GB of memory, above the "
            f"limit of {most / 1e9:.3g} GB; the environment variable {VARIABLE} sets it"
        )
