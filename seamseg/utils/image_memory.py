"""Memory that decoding an image takes, estimated from its header; large images are decoded one at a time. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from seamseg.utils.errors import InputError, UnreadableImage

if TYPE_CHECKING:
    from filelock import FileLock
    from PIL import Image

VARIABLE = "SEAMSEG_IMAGE_MEMORY"
"""Environment variable with the budget of an image in GB, which child processes inherit."""
BUDGET_GB = 1.5
ALONE_BYTES = 500_000_000
"""Images that take more are decoded one at a time: with 7 bytes per pixel, from 71 megapixels."""
RGB_BYTES = 7
"""Memory of a pixel of an image and of its copy as an array: Pillow stores RGB in four bytes."""
MASK_BYTES = 16
"""Memory of a pixel of a mask: Pillow's image, `int32`, and the arrays of the segments that are made of it."""

_OF_FRAMES = ("WEBP", "AVIF")
_FRAME_BYTES = 16
"""Memory of a pixel of these: planes of the frame, two canvases, a copy in Python, and Pillow's image."""
_SIDE_BYTES = 800
"""Memory of a pixel of the longer side: tables to resize it, and rows that a run-length BMP may skip at once."""
_LONGEST_WAIT = 300.0
"""Seconds after which an image is decoded beside others: a stopped process must not stop all."""


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


@contextmanager
def memory_for(name: object, kind: str, size: tuple[int, int], needed: float) -> Iterator[None]:
    """Hold the turn of a large image for a `with` block: over all processes of a user, one is decoded at a time.

    Path, format, and `(width, height)` are for the error, an UnreadableImage if more than :func:`budget` is needed.
    """
    if needed > (most := budget()):
        raise UnreadableImage(
            f"{name}: decoding {size[0]} x {size[1]} pixels of {kind} takes {needed / 1e9:.3g} GB of memory, above the "
            f"limit of {most / 1e9:.3g} GB; the environment variable {VARIABLE} sets it"
        )
    with turn_of(needed):
        yield


@contextmanager
def turn_of(needed: float) -> Iterator[None]:
    """Hold the turn of what takes `needed` bytes for a `with` block; a thread that has it does not wait for itself."""
    if needed <= ALONE_BYTES:
        yield
        return
    from filelock import Timeout

    try:
        turn = _turn()
        turn.acquire(poll_interval=0.02)
    except (Timeout, OSError, NotImplementedError):  # no temporary folder, or a file system without locks
        yield
        return
    try:
        yield
    finally:
        turn.release()


@cache
def _turn() -> FileLock:
    """Return the lock of this process, which each thread holds for itself, several times if it asks for it again."""
    import tempfile

    from filelock import FileLock

    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    return FileLock(Path(tempfile.gettempdir()) / f"seamseg-{user}-image.lock", timeout=_LONGEST_WAIT, mode=0o600)
