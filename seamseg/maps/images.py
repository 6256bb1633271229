"""Decode images and masks of any format that Pillow supports, with one-line errors for unreadable files."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import IMAGELENGTH, IMAGEWIDTH, TiffImageFile

from seamseg.maps.formats.id_png import check_png
from seamseg.maps.idmaps.segments import BAND_BYTES
from seamseg.utils.errors import InputError, UnreadableImage, one_line
from seamseg.utils.files import is_hidden, read_bytes
from seamseg.utils.limits import IMAGE_BYTES, MASK_BYTES, RGB_BYTES, check_memory, memory_needed, open_pillow
from seamseg.utils.output import echo
from seamseg.utils.process import return_memory

MAX_PIXELS = 201_326_592
"""Largest image that is decoded, 192 Mi pixels: a few kilobytes of a hostile file can declare terabytes."""

PHOTO_ENDINGS = (
    ".jpg",
    ".jpeg",
    ".jpe",
    ".jfif",
    ".png",
    ".bmp",
    ".tif",
    ".tiff",
    ".webp",
    ".gif",
    ".ppm",
    ".pgm",
    ".avif",
)
"""Endings of the files that are found in a folder, in any case."""

SEVERAL_FRAMES = "several frames"
"""Key of `Image.info`: whether the file is an animation or has several pages."""

_GREY_16 = ("I;16", "I;16L", "I;16B", "I;16N")
_MASK_MODES = ("1", "L", "P", "I", *_GREY_16)
T = TypeVar("T")


def image_files(
    folder: Path, leave_out: Callable[[Path], bool] = lambda folder: False, endings: tuple[str, ...] = PHOTO_ENDINGS
) -> list[Path]:
    """Return the images of a folder and its sub-folders, by the endings of their names, sorted.

    Hidden files and folders, and folders of which `leave_out` is true, are ignored; links are followed. A sub-folder
    that cannot be listed is a line on stderr; if the folder itself cannot, this is an InputError.
    """
    found: list[Path] = []

    def on_error(error: OSError) -> None:
        problem = f"{error.filename}: this folder cannot be listed: {error.strerror or error}"
        if Path(error.filename) == folder:
            raise InputError(problem) from error
        echo(problem, file=sys.stderr)

    for parent, folders, files in os.walk(folder, onerror=on_error, followlinks=True):
        here = Path(parent)
        if leave_out(here):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        found += [here / name for name in files if name.lower().endswith(endings) and not is_hidden(name)]
    return sorted(found)


def open_image(
    path: str | Path, data: bytes | None = None, upright: bool = True, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Decode an image to 8-bit RGB.

    The EXIF orientation is applied if `upright`. 16-bit and floating-point grey are scaled to 8 bits, CMYK and palettes
    are converted; the stored colours of an image with transparency are used. Of several frames or pages the first is
    used, and `info[SEVERAL_FRAMES]` is true. `data` is the content of a file that is not on disk under that name, for
    example one in an archive.

    Raises
    ------
    UnreadableImage
        if the file is missing, empty, truncated, not an image or larger than `max_pixels`
    """
    return _decode(Path(path), _upright_rgb if upright else as_rgb, data, max_pixels)


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert an open image of any mode to 8-bit RGB as :func:`open_image` does, but without rotating it."""
    image.load()  # before its size is asked for: Pillow turns a TIFF itself while it loads
    if image.mode in _GREY_16 or image.mode in ("I", "F"):
        image = Image.fromarray(_to_8_bit(image))
    elif image.mode == "P" and "transparency" in image.info:
        # as bytes it makes Pillow warn, and alpha is dropped anyway
        image = image.copy()
        del image.info["transparency"]
    return image if image.mode == "RGB" else image.convert("RGB")


def pixels_of(image: Image.Image, dtype: type | None = None) -> np.ndarray:
    """Return the pixels of an image, writable: `H x W x 3` uint8 of RGB, `H x W` of other modes or with a `dtype`."""
    values = None
    for rows, band in _bands(image):  # at once, numpy and Pillow would make two more copies
        part = np.asarray(band)
        if values is None:
            values = np.empty((image.height, *part.shape[1:]), dtype or part.dtype)
        values[rows] = part
    assert values is not None
    return values


def _bands(image: Image.Image) -> Iterator[tuple[slice, Image.Image]]:
    image.load()  # before its size is asked for, see as_rgb
    rows = max(1, BAND_BYTES // (4 * image.width))
    if image.height <= rows:
        yield slice(0, image.height), image
        return
    for y in range(0, image.height, rows):
        stop = min(y + rows, image.height)
        yield slice(y, stop), image.crop((0, y, image.width, stop))


def open_reduced(path: str | Path, at_least: tuple[int, int]) -> tuple[Image.Image, tuple[int, int]]:
    """Decode as :func:`open_image` does, but a JPEG at a reduced size; return `(height, width)` at full size, too.

    It is the smallest of full, half, quarter and eighth size that is not below `at_least`, `(height, width)`. The
    pixels differ slightly from any resampling filter, which does not matter for training.
    """

    def read(image: Image.Image) -> tuple[Image.Image, tuple[int, int]]:
        full = _upright_size(image, Path(path))
        turned = full == (image.width, image.height)
        image.draft(None, at_least if turned else at_least[::-1])  # does nothing to other formats
        return _upright_rgb(image), full

    return _decode(Path(path), read)


def open_mask(path: str | Path, data: bytes | None = None) -> np.ndarray:
    """Decode an integer image (1, 8, 16 or 32 bits, or palette indices) to `H x W` int32.

    Raises
    ------
    UnreadableImage
        as :func:`open_image`; also if the image has colour channels or negative values
    """
    return _decode(Path(path), lambda image: _integers(image, Path(path), data), data, per_pixel=MASK_BYTES)


def open_object_mask(path: str | Path, data: bytes | None = None) -> np.ndarray:
    """Decode the mask of one object to `H x W` int32, 0 outside.

    Colours are numbers, `R + 256 G + 65536 B`. If only the alpha channel tells the object, its values are returned;
    UnreadableImage if both colours and alpha channel differ within the image.
    """

    def read(image: Image.Image) -> np.ndarray:
        if image.mode in _MASK_MODES and image.mode != "P":
            return _integers(image, Path(path), data)
        _check_frames(image, Path(path))
        pixels = np.array(image.convert("RGBA"))
        colors, alpha = (pixels.view("<u4")[..., 0] & 0xFFFFFF).astype(np.int32), pixels[..., 3]
        if image.format == "PNG":
            check_png(_content(Path(path), data))
        if alpha.min() == alpha.max() > 0:
            return colors
        seen = colors[alpha > 0]
        if seen.size and seen.min() < seen.max():
            raise UnreadableImage(
                f"{path}: both its colours and its alpha channel vary; store the mask of an object as a grey image"
            )
        return alpha.astype(np.int32)

    return _decode(Path(path), read, data, per_pixel=MASK_BYTES)


def has_frames(path: str | Path, data: bytes | None = None) -> bool:
    """Return whether an image has several frames or pages, as an animated GIF; not the previews in JPEGs of phones."""
    return _decode(Path(path), _has_frames, data, per_pixel=0)


def open_map(path: str | Path, data: bytes | None = None) -> np.ndarray:
    """Decode a file of numbers: a grey image of 8 or 16 bits, an RGB image of 8, or an array `*.npy`.

    Returns
    -------
    `H x W`, or `3 x H x W` of RGB; an array as it is

    Raises
    ------
    UnreadableImage
        as :func:`open_image`; also if it is a palette image, colours of 16 bits, or an array of other than numbers
    """
    path = Path(path)
    if path.suffix != ".npy":
        return _decode(path, lambda image: _stored_values(image, path), data)
    content = BytesIO(read_bytes(path, "map", IMAGE_BYTES) if data is None else data)
    try:
        values: np.ndarray = np.lib.format.read_array(content, allow_pickle=False)
    except (ValueError, MemoryError) as error:
        raise UnreadableImage(f"{path}: not an array file, or a truncated one: {one_line(error)}") from None
    if values.dtype.kind not in "biuf":
        raise UnreadableImage(f"{path}: the array is {values.dtype}, expected numbers")
    return values


def image_size(path: str | Path, data: bytes | None = None) -> tuple[int, int]:
    """Return `(height, width)` of the upright image, without decoding it where that can be avoided.

    UnreadableImage as of :func:`open_image`, except for a file that is truncated after its header.
    """
    return _decode(Path(path), lambda image: _upright_size(image, Path(path), data), data, per_pixel=0)


def pixel_count(path: str | Path) -> int:
    """Return the number of pixels by the header of an image; 0 for what cannot be read."""
    with suppress(InputError, MemoryError):
        return _decode(Path(path), lambda image: image.width * image.height, per_pixel=0)
    return 0


def _decode(
    path: Path,
    read: Callable[[Image.Image], T],
    data: bytes | None = None,
    max_pixels: int = MAX_PIXELS,
    per_pixel: float = RGB_BYTES,
) -> T:
    """Return what `read` makes of an image, with `per_pixel` bytes of memory for each pixel; 0 if it decodes none."""
    try:
        if (os.stat(path).st_size if data is None else len(data)) == 0:
            raise UnreadableImage(f"{path}: the file is empty (0 bytes)")
        with _no_pillow_limit(), open_pillow(path if data is None else BytesIO(data)) as image:
            pixels = image.width * image.height
            if pixels > max_pixels:
                raise UnreadableImage(
                    f"{path}: {image.width} x {image.height} pixels are above the limit of {max_pixels / 1e6:.3g} "
                    "megapixels"
                )
            if not per_pixel:
                return read(image)
            check_memory(path, str(image.format), image.size, memory_needed(image, per_pixel) + len(data or b""))
            result = read(image)
            return_memory(pixels)
            return result
    except (InputError, MemoryError):
        raise
    except FileNotFoundError:
        raise UnreadableImage(f"{path}: no such image") from None
    except IsADirectoryError:
        raise UnreadableImage(f"{path}: a folder, not an image") from None
    except UnidentifiedImageError:
        raise UnreadableImage(
            f"{path}: not an image, or not of a format that is read (JPEG, PNG, WebP, BMP, TIFF, GIF, PPM, AVIF)"
        ) from None
    except Exception as error:  # decoders of corrupt files raise nearly anything: struct.error, IndexError, ...
        if isinstance(error, OSError) and error.strerror:  # of the system
            raise UnreadableImage(f"{path}: cannot be read: {error.strerror}") from None
        raise UnreadableImage(f"{path}: corrupt image: {one_line(error) or type(error).__name__}") from error


_pillow_limit, _limit_before, _unlimited = threading.Lock(), Image.MAX_IMAGE_PIXELS, 0


@contextmanager
def _no_pillow_limit() -> Iterator[None]:
    # Pillow warns above 89 megapixels and refuses above 179, limits that only a module variable can change
    global _unlimited, _limit_before
    with _pillow_limit:
        if not _unlimited:
            _limit_before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        _unlimited += 1
    try:
        yield
    finally:
        with _pillow_limit:
            _unlimited -= 1
            if not _unlimited:
                Image.MAX_IMAGE_PIXELS = _limit_before


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(0x0112, 1)
    except Exception:  # a corrupt EXIF block must not prevent decoding
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _upright_size(image: Image.Image, path: Path, data: bytes | None = None) -> tuple[int, int]:
    """Return `(height, width)` of the upright image; call it before the pixels are loaded."""
    width, height = image.size
    if isinstance(image, TiffImageFile):  # Pillow 11 and later swap the sides here, and turn the pixels when they load
        width, height = image.tag_v2[IMAGEWIDTH], image.tag_v2[IMAGELENGTH]
    # for EXIF Pillow decodes a whole PNG, since the block may follow the pixels
    content = _content(path, data) if image.format == "PNG" else b"eXIf"
    may_be_turned = any(word in content for word in (b"eXIf", b"Raw profile type", b"XML:com.adobe.xmp"))
    return (width, height) if may_be_turned and _orientation(image) >= 5 else (height, width)


def _upright_rgb(image: Image.Image) -> Image.Image:
    image.load()  # a TIFF is turned here
    several = False
    with suppress(Exception):  # a GIF is read on for this
        several = _has_frames(image)
    if _orientation(image) != 1:
        ImageOps.exif_transpose(image, in_place=True)  # no second image of the size
    rgb = as_rgb(image)
    rgb.info[SEVERAL_FRAMES] = several
    return rgb


def _has_frames(image: Image.Image) -> bool:
    # MPO is a JPEG with a preview or depth of the same view
    return bool(getattr(image, "is_animated", False)) and image.format != "MPO"


def _to_8_bit(image: Image.Image) -> np.ndarray:
    narrow = np.empty((image.height, image.width), np.uint8)
    if image.mode == "F":
        scale = 255.0 if max(_finite(band).max(initial=0) for _, band in _bands(image)) <= 1 else 1.0
        for rows, band in _bands(image):
            narrow[rows] = np.clip(np.rint(_finite(band) * scale), 0, 255)
        return narrow
    # Pillow 10 opens 16-bit PNG as 32-bit integers
    deep = image.mode in _GREY_16 or image.format == "PNG"
    deep = deep or max(np.asarray(band).max(initial=0) for _, band in _bands(image)) > 255
    table = np.arange(65536)
    table = ((table * 255 + 32767) // 65535 if deep else table).astype(np.uint8)
    for rows, band in _bands(image):
        narrow[rows] = table[np.clip(np.asarray(band), 0, 65535)]
    return narrow


def _finite(image: Image.Image) -> np.ndarray:
    return np.nan_to_num(np.asarray(image, np.float32), nan=0.0, posinf=255.0, neginf=0.0)


def _stored_values(image: Image.Image, path: Path) -> np.ndarray:
    # Pillow would reduce colours of 16 bits to 8
    reduced = image.mode == "RGB" and "16" in str(getattr(image, "tile", ""))
    if reduced or image.mode not in ("L", "I", "RGB", *_GREY_16):
        raise UnreadableImage(
            f"{path}: a map must be a grey image of 8 or 16 bits or an RGB image of 8, this one has mode {image.mode}; "
            "store other maps as .npy"
        )
    values = pixels_of(image)
    return values.transpose(2, 0, 1) if image.mode == "RGB" else values


def _content(path: Path, data: bytes | None) -> bytes:
    return read_bytes(path, "image") if data is None else data


def _check_frames(image: Image.Image, path: Path) -> None:
    if getattr(image, "is_animated", False):
        raise UnreadableImage(f"{path}: has several frames; a mask is one image")


def _integers(image: Image.Image, path: Path, data: bytes | None = None) -> np.ndarray:
    _check_frames(image, path)
    if image.mode not in _MASK_MODES:
        raise UnreadableImage(
            f"{path}: a mask must be a single-channel integer image, this one has mode {image.mode} (colours?)"
        )
    values = pixels_of(image, np.int32)
    if image.mode == "I" and values.size and values.min() < 0:
        raise UnreadableImage(f"{path}: a mask must not have negative values, this one has {values.min()}")
    if image.format == "PNG":
        check_png(_content(path, data))
    return values
