"""Memory that decoding an image takes, estimated from its header; large images are decoded one at a time. No torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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

_USUAL_SIDE, _SIDE_BYTES = 65_500, 60
"""Longest side of a JPEG, and memory of each pixel of a side beyond it: tables of the columns to resize and to draw."""

_STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
_STORED_BYTES = 4
_WEBP_BYTES, _AVIF_BYTES = 16, 24
"""Of libwebp and libavif: planes or pixels of the frame, two canvases, a copy in Python, and Pillow's image."""
_PLAIN_PPM_BYTES = 6
_SKIPPED_ROWS = 3 * 255
"""Rows that a run-length BMP may skip at once, of which Pillow 10 makes three copies, whatever the height."""
_LONGEST_WAIT = 300.0
"""Seconds after which an image is decoded beside others: a stopped process must not stop all."""
_ROWS_PER_STRIP, _TILE_WIDTH, _TILE_HEIGHT, _BITS, _SAMPLES, _ORIENTATION = 278, 322, 323, 258, 277, 274


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
    """Return the estimated peak in bytes of decoding an open image whose pixels have not been loaded.

    The image is of :func:`seamseg.utils.limits.open_pillow`; `per_pixel` are the bytes that each pixel takes after
    that, until the image and its arrays are dropped.
    """
    pixels = image.width * image.height
    decoding: float = {"WEBP": _WEBP_BYTES, "AVIF": _AVIF_BYTES}.get(image.format or "", 0) * pixels
    if not decoding:
        decoding = _STORED.get(image.mode, _STORED_BYTES) * pixels + _buffers(image)
    return int(max(decoding, per_pixel * pixels)) + _SIDE_BYTES * max(0, max(image.size) - _USUAL_SIDE)


def memory_of(image: Image.Image, name: object, per_pixel: float) -> AbstractContextManager[None]:
    """Return :func:`memory_for` of an open image that `name` names; see :func:`memory_needed`."""
    return memory_for(name, str(image.format), image.size, memory_needed(image, per_pixel))


def _buffers(image: Image.Image) -> float:
    """Return the bytes that the decoder of a file holds beside the pixels."""
    pixels = image.width * image.height
    if image.format in ("JPEG", "MPO"):
        return _coefficients(image)
    if image.format == "PPM":
        return 0 if image.tile and image.tile[0][0] == "raw" else _PLAIN_PPM_BYTES * pixels  # type: ignore[attr-defined]
    if image.format == "BMP":
        skipped = _SKIPPED_ROWS * image.width
        return 2 * pixels + skipped if image.tile and image.tile[0][0] == "bmp_rle" else 0  # type: ignore[attr-defined]
    if image.format == "TIFF":
        tags = image.tag_v2  # type: ignore[attr-defined]
        rows = tags.get(_TILE_HEIGHT) or min(tags.get(_ROWS_PER_STRIP) or image.height, image.height)
        bits = tags.get(_BITS, (1,))
        # Pillow takes one number of bits for that of all samples
        bits = sum(bits) if isinstance(bits, tuple) and len(bits) > 1 else max(bits) * tags.get(_SAMPLES, 1)
        strip = rows * (tags.get(_TILE_WIDTH) or image.width) * bits / 8
        # Pillow turns the image itself
        return max(strip, 0 if tags.get(_ORIENTATION, 1) == 1 else _STORED.get(image.mode, _STORED_BYTES) * pixels)
    return 0


def _coefficients(image: Image.Image) -> float:
    """Return the bytes of the coefficients of a JPEG, which libjpeg holds if a component comes in several scans."""
    layers, file = image.layer, image.fp  # type: ignore[attr-defined]
    length = 2 + 2 + 1 + 2 * len(layers) + 3
    if "progression" not in image.info and file.tell() >= length:
        file.seek(-length, os.SEEK_CUR)  # Pillow has read the header of the first scan
        start = file.read(length)
        if start[:2] == b"\xff\xda" and start[4] == len(layers):
            return 0
    across, down = max(layer[1] for layer in layers), max(layer[2] for layer in layers)
    share = sum(layer[1] * layer[2] for layer in layers) / (across * down)
    return 2 * share * image.width * image.height


def is_large(pixels: int) -> bool:
    """Return whether an RGB image is decoded alone, by its number of pixels."""
    return RGB_BYTES * pixels > ALONE_BYTES


_thread = threading.local()
"""Of each thread: `holds`, whether it has the turn; `kept`, the locks that :func:`keep_turn` releases, or None."""


@contextmanager
def keep_turn() -> Iterator[None]:
    """Keep the turn of a large image that this thread decodes in a `with` block to its end, when it is copied, too."""
    if getattr(_thread, "kept", None) is not None:
        yield
        return
    _thread.kept = []
    try:
        yield
    finally:
        kept, _thread.kept = _thread.kept, None
        for turn in kept:
            _release(turn)


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
    """Hold the turn of what takes `needed` bytes for a `with` block, or in :func:`keep_turn` to its end.

    A thread that has the turn does not wait for itself: an image may be decoded from a large file in memory.
    """
    if needed <= ALONE_BYTES or getattr(_thread, "holds", False):
        yield
        return
    import tempfile

    from filelock import FileLock, Timeout

    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    try:
        lock = Path(tempfile.gettempdir()) / f"seamseg-{user}-image.lock"
        turn = FileLock(lock, timeout=_LONGEST_WAIT, mode=0o600)
        turn.acquire(poll_interval=0.02)
    except (Timeout, OSError, NotImplementedError):  # no such folder, or a file system without locks
        yield
        return
    _thread.holds = True
    try:
        yield
    finally:
        if (kept := getattr(_thread, "kept", None)) is None:
            _release(turn)
        else:
            kept.append(turn)


def _release(turn: FileLock) -> None:
    _thread.holds = False
    turn.release()
