"""Check that the sizes stated in a snapshot, of either format of `torch.save`, fit the file before torch reads it."""

from __future__ import annotations

import os
import struct
import zipfile
from typing import IO, Any

from seamseg.checkpoints.pickle_check import PICKLE_BYTES, LimitedStream, RefusedPickle, check_pickle
from seamseg.utils.limits import format_bytes

_MAGIC = 0x1950A86A20F9469CFC6C
"""The first pickle in files of torch before 1.6."""
_END, _LOCATOR, _END64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")


def check_snapshot(file: IO[bytes]) -> None:
    """Check a file of `torch.save`, read from its beginning.

    Raises
    ------
    CodeInPickle, RefusedPickle
        see :func:`seamseg.checkpoints.pickle_check.check_pickle`; also if records are compressed, overlap, or are
        shorter than their storages
    Exception
        of any type, if it is damaged or another kind of file
    """
    zipped = file.read(4) == b"PK\x03\x04"
    file.seek(0)
    if zipped:
        _check_zip(file)
    else:
        _check_old(file)


def is_plain(entry: zipfile.ZipInfo) -> bool:
    """Return whether a record is stored uncompressed, as `torch.save` does."""
    # torch reads an entry with the folder bit (0x10), which Python's reader ignores, as one without data
    stored = entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
    return stored and not entry.external_attr & 0x10


def _check_zip(file: IO[bytes]) -> None:
    size = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        for entry in entries:
            if not is_plain(entry):
                raise RefusedPickle(
                    f"its record {entry.filename} is compressed, {format_bytes(entry.compress_size)} for "
                    f"{format_bytes(entry.file_size)}; torch.save stores records uncompressed"
                )
        names = {entry.filename.lower() for entry in entries}
        exact = all(entry.orig_filename == entry.filename and entry.filename.isascii() for entry in entries)
        if len(names) < len(entries) or not exact or not _is_only_directory(file, size, archive.start_dir):
            raise zipfile.BadZipFile("zip readers would disagree about its records")
        if sum(entry.file_size for entry in entries) > size:
            raise RefusedPickle("its records overlap: together they are larger than the file")
        root = entries[0].filename.partition("/")[0]
        sizes = {entry.filename: entry.file_size for entry in entries}
        if sizes[f"{root}/data.pkl"] > PICKLE_BYTES:
            limit = format_bytes(PICKLE_BYTES)
            raise RefusedPickle(f"its pickle is larger than {limit}, the limit without the tensors")

        def storage(key: Any, count: int) -> None:
            held = sizes[f"{root}/data/{key}"]
            if count > held:
                raise RefusedPickle(f"its storage {key!r} of {count} bytes has {held} bytes of data")

        with archive.open(f"{root}/data.pkl") as pickled:
            check_pickle(pickled, storage)


def _is_only_directory(file: IO[bytes], size: int, start: int) -> bool:
    """Return whether the directory at `start`, which Python reads, is the only one that any reader can find.

    Then there is no data before the first record or after the last header, which readers treat differently.
    """
    file.seek(size - _END.size)
    signature, *_, offset, comment = _END.unpack(file.read(_END.size))
    if signature != b"PK\x05\x06" or comment:
        return False
    locator_at = size - _END.size - _LOCATOR.size
    file.seek(max(locator_at, 0))
    signature, _, end_at, _ = _LOCATOR.unpack(file.read(_LOCATOR.size))
    if signature != b"PK\x06\x07":
        return bool(offset == start)
    file.seek(end_at)
    signature, *_, offset = _END64.unpack(file.read(_END64.size))
    return bool(end_at == locator_at - _END64.size and signature == b"PK\x06\x06" and offset == start)


def _check_old(file: IO[bytes]) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if check_pickle(LimitedStream(file), _no_storage) != _MAGIC:
        raise ValueError("not written by torch.save")
    for _ in ("version of the format", "sizes of numbers"):
        check_pickle(LimitedStream(file), _no_storage)
    sizes: dict[Any, int] = {}

    def storage(key: Any, count: int) -> None:
        if sizes.setdefault(key, count) != count or count > size:
            raise RefusedPickle(f"its storage {key!r} of {count} bytes has {min(size, sizes[key])} bytes of data")

    check_pickle(LimitedStream(file), storage)
    if (stated := sum(sizes.values())) > size:
        raise RefusedPickle(f"its storages take {stated} bytes, the file has {size}")
    check_pickle(LimitedStream(file), _no_storage)


def _no_storage(key: Any, count: int) -> None:
    raise RefusedPickle("its pickle loads storages where none are expected")
