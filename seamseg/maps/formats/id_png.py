"""PNGs with segment ids as colours: R + 256 G + 65536 B, 0 void.

8-bit RGB without interlacing is read by a compiled decoder that is fast for maps of long runs; all other kinds, or all
files without compiled kernels, by Pillow. The checksums of all chunks are verified.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np
from PIL import Image
from zlib_ng import zlib_ng

from seamseg.maps.idmaps import id_runs
from seamseg.maps.idmaps.id_runs import IdRuns, decode_id_runs, has_kernel, id_runs_of
from seamseg.maps.idmaps.segments import png_rows
from seamseg.utils.errors import InputError
from seamseg.utils.files import replacing
from seamseg.utils.limits import (
    IMAGE_BYTES,
    MASK_BYTES,
    check_memory,
    memory_needed,
    open_pillow,
    read_limited,
    reading_image,
)

MAX_ID = (1 << 24) - 1
"""Largest id of three 8-bit channels."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_FAST_HEADER = bytes((8, 2, 0, 0, 0))
"""End of the header of files for the compiled decoder: 8 bits, RGB, compression 0, filter method 0, no interlacing."""


def read_id_png(path: str | Path, data: bytes | None = None) -> np.ndarray:
    """Read the segment ids of a panoptic PNG, `H x W` uint32; of its content, if `data` is given.

    A missing or broken file, or one of more than 8 bits a channel, is an InputError.
    """
    ids = _read(path, data)
    return ids.dense() if isinstance(ids, IdRuns) else ids


def read_id_runs(path: str | Path) -> IdRuns:
    """Read the segment ids of a panoptic PNG as runs; raises like :func:`read_id_png`."""
    ids = _read(path)
    return ids if isinstance(ids, IdRuns) else id_runs_of(ids)


def write_id_png(path: str | Path, ids: np.ndarray, values: Sequence[tuple[int, int]] | None = None) -> None:
    """Write segment ids, `H x W` in `0 .. 2^24-1`, as a panoptic PNG, atomically and in bands of rows.

    With `values`, `(id, value)` of each segment, these are written in place of the ids; those of other ids are 0. A map
    without pixels, and an id or value out of range, are a ValueError.
    """
    parts = _parts(ids, values)
    with replacing(Path(path)) as temporary, open(temporary, "wb") as file:
        file.writelines(parts)


def encode_id_png(ids: np.ndarray, values: Sequence[tuple[int, int]] | None = None) -> bytes:
    """Return the content of the file of :func:`write_id_png`."""
    return b"".join(_parts(ids, values))


def _parts(ids: np.ndarray, values: Sequence[tuple[int, int]] | None) -> Iterator[bytes]:
    _check_range(ids if values is None else np.array([value for _, value in values], np.int64))
    if ids.ndim != 2 or not ids.size:
        raise ValueError(f"panoptic PNG: a map is H x W pixels, got {ids.shape}")
    header = struct.pack(">II", ids.shape[1], ids.shape[0]) + _FAST_HEADER
    rows = (png_chunk(b"IDAT", data) for data in _compressed(ids, values))
    return chain([_SIGNATURE, png_chunk(b"IHDR", header)], rows, [png_chunk(b"IEND", b"")])


def _compressed(ids: np.ndarray, values: Sequence[tuple[int, int]] | None) -> Iterator[bytes]:
    # maps of large flat regions stay small: higher levels save little and take several times as long
    compressor = zlib_ng.compressobj(3)
    table = None
    if values is not None:
        table = np.zeros(max((identity for identity, _ in values), default=0) + 1, np.uint32)
        for identity, value in values:
            table[identity] = value
    above, rows = None, max(1, id_runs.BAND_BYTES // (3 * ids.shape[1] + 1))
    for first in range(0, ids.shape[0], rows):
        band = ids[first : first + rows]
        if band.dtype != np.int32:
            band = (band if table is None else np.minimum(band, len(table))).astype(np.int32)
        data = compressor.compress(png_rows(band, above, table))
        if data:
            yield data
        above = band[-1]
    yield compressor.flush()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """Return a chunk of a PNG, with its length and checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(content, zlib.crc32(kind)))


def id_image(ids: np.ndarray) -> Image.Image:
    """Convert segment ids, `H x W` in `0 .. 2^24-1`, to an RGB image."""
    _check_range(ids)
    rgb = np.empty((*ids.shape, 3), np.uint8)
    for channel in range(3):
        rgb[..., channel] = (ids >> (8 * channel)) & 255
    return Image.fromarray(rgb)


def _check_range(ids: np.ndarray) -> None:
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) > MAX_ID):
        raise ValueError(f"panoptic PNG: ids must be 0 to {MAX_ID}, got {int(ids.min())} to {int(ids.max())}")


def _read(path: str | Path, data: bytes | None = None) -> IdRuns | np.ndarray:
    with reading_image(path, "no such panoptic PNG", "not a readable PNG"):
        if data is None:
            with open(path, "rb") as file:
                data = read_limited(file, IMAGE_BYTES, str(path), "panoptic PNG", os.fstat(file.fileno()).st_size)
        fast = _fast_stream(data, path) if data.startswith(_SIGNATURE) else None
        if fast is not None and has_kernel():
            _, height, width = fast
            check_memory(path, "PNG", (width, height), MASK_BYTES * height * width + 2 * len(data))
            with suppress(ValueError):  # rare: Pillow then reads the file or raises
                return decode_id_runs(*fast)
        with open_pillow(io.BytesIO(data)) as image:
            check_memory(path, str(image.format), image.size, memory_needed(image, MASK_BYTES))
            if image.mode not in ("RGB", "RGBA", "P", "L", "1"):
                raise InputError(
                    f"{path}: a panoptic PNG has three channels of 8 bits, this one is of mode {image.mode}"
                )
            rgb = image if image.mode == "RGB" else image.convert("RGB")
            words = np.frombuffer(bytearray(rgb.tobytes("raw", "RGBX")), "<u4")
            words &= MAX_ID
            if data.startswith(_SIGNATURE):
                check_png(data)
            return words.reshape(image.height, image.width)


def _fast_stream(data: bytes, path: str | Path) -> tuple[bytes, int, int] | None:
    """Return compressed rows, height and width of a PNG for the compiled decoder; ValueError for broken files."""
    header, parts, animated = b"", list[memoryview](), False
    for kind, content in _chunks(data):
        if kind == b"IHDR":
            if header:
                raise ValueError("it has two headers")
            header = bytes(content)
        elif kind == b"IDAT":
            parts.append(content)
        elif kind == b"acTL":
            animated = True
    if len(header) != 13:
        raise ValueError("it has no header")
    width, height, bits = struct.unpack_from(">IIB", header)
    if bits > 8:
        raise InputError(f"{path}: a panoptic PNG has three channels of 8 bits, this one has {bits} bits a channel")
    if animated or header[8:] != _FAST_HEADER or not 0 < width * height < 1 << 30:
        return None
    return b"".join(parts), height, width


def check_png(data: bytes) -> None:
    """Check what Pillow does not, the checksums of a PNG; ValueError if one is wrong."""
    for _ in _chunks(data):
        pass


def _chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Iterate over kind and content of the chunks; ValueError for wrong checksums and truncated files."""
    view, at = memoryview(data), len(_SIGNATURE)
    kind = b""
    while kind != b"IEND":
        if at + 12 > len(data):
            raise ValueError("it is truncated")
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 8 + length
        if end + 4 > len(data):
            raise ValueError("it is truncated")
        if zlib.crc32(view[at + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            raise ValueError(f"the checksum of its {kind.decode('latin-1')} chunk at byte {at} is wrong")
        yield kind, view[at + 8 : end]
        at = end + 4
