"""`metadata.bin`: the classes of a data set and the instances of its masks (docs/contract.md, section 1)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import umsgpack

from seamseg.maps.panoptic_map import VOID, ClassInfo
from seamseg.utils.errors import InputError
from seamseg.utils.files import read_bytes, write_atomically
from seamseg.utils.limits import KIB, TEXT_BYTES, format_bytes, whole_number

_OBJECT_BYTES = 256 * KIB


@dataclass(frozen=True)
class ImageInfo:
    """The instances of the mask of one image.

    Attributes
    ----------
    id : file name of the image without its ending
    cat : class of each instance id of the mask; entry 0 is void (255)
    size : `(height, width)`
    iscrowd : 1 for each instance id that is a crowd, a group of things
    """

    id: str
    cat: list[int]
    size: tuple[int, int]
    iscrowd: list[int]


@dataclass(frozen=True)
class Metadata:
    """The classes of a data set, stuff first, and its images.

    Attributes
    ----------
    num_stuff, num_thing : number of classes of each kind
    categories : `num_stuff + num_thing` names
    palette : one `(r, g, b)` per class
    original_ids : ids of the classes in the original data set
    images : empty in model files, which only need the classes
    """

    num_stuff: int
    num_thing: int
    categories: list[str]
    palette: list[tuple[int, int, int]]
    original_ids: list[int]
    images: list[ImageInfo] = field(default_factory=list)

    @property
    def num_classes(self) -> int:
        """Number of stuff and thing classes."""
        return self.num_stuff + self.num_thing

    def is_thing(self, category: int) -> bool:
        """Whether `category` is a thing class (void is not)."""
        return self.num_stuff <= category < self.num_classes


def category_ids(metadata: Metadata) -> list[int]:
    """Return the `category_id` of each class in COCO files: the original id, or index + 1 if these are not unique."""
    original = [int(i) for i in metadata.original_ids]
    count = metadata.num_stuff + metadata.num_thing
    if len(original) == count and len(set(original)) == count:
        return original
    return list(range(1, count + 1))


def class_infos(metadata: Metadata) -> list[ClassInfo]:
    """Return name, id and kind of each class of a data set."""
    return [
        ClassInfo(name, identity, index >= metadata.num_stuff)
        for index, (name, identity) in enumerate(zip(metadata.categories, category_ids(metadata)))
    ]


def read_metadata(path: str | Path, limit: int = TEXT_BYTES) -> Metadata:
    """Read `metadata.bin`, of at most `limit` bytes; InputError if it is missing, invalid or inconsistent."""
    return parse_metadata(read_bytes(Path(path), "metadata file", limit), str(path))


def parse_metadata(data: bytes, source: str = "metadata.bin") -> Metadata:
    """Parse the bytes of `metadata.bin`; `source` names them in the InputError of invalid ones."""
    stream, content = _LimitedReader(data), {}
    try:
        # image by image, since one byte can expand to an object of a hundred bytes
        for _ in range(_length(stream, 0x80, 0xDE, "map")):
            key = stream.unpack()
            if key == "images":
                count = _length(stream, 0x90, 0xDC, "list")
                content[key] = [_image(stream.unpack()) for _ in range(count)]
            else:
                content[key] = stream.unpack()
    except KeyError as error:
        raise InputError(f"{source}: not a metadata file: the key {error} is missing") from error
    except (_Malformed, TypeError, AttributeError) as error:
        raise InputError(f"{source}: not a metadata file: {error}") from error
    except (umsgpack.UnpackException, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise InputError(f"{source}: not a metadata file, or a truncated one ({type(error).__name__})") from error
    if "meta" not in content:
        raise InputError(f"{source}: not a metadata file: the key 'meta' is missing")
    return metadata_of(content["meta"], source, content.get("images", []))


def metadata_of(meta: Any, source: str, images: Sequence[ImageInfo] = ()) -> Metadata:
    """Create metadata from the content of `meta` in `metadata.bin`; `source` names it in errors.

    Colours after those of the classes are left out: the original takes palettes that are padded to 256 entries.
    """
    try:
        names, num_stuff, num_thing = list(meta["categories"]), int(meta["num_stuff"]), int(meta["num_thing"])
        classes = num_stuff + num_thing
        # the string of nested lists could be of any length
        if wrong := [name for name in names if not isinstance(name, (str, bytes, int, float))]:
            raise TypeError(f"a category is a {type(wrong[0]).__name__}, expected text")
        metadata = Metadata(
            num_stuff=num_stuff,
            num_thing=num_thing,
            categories=list(map(str, names)),
            palette=[parse_colour(rgb) for rgb in meta["palette"][: max(classes, 0)]],
            original_ids=[whole_number(int(i)) for i in meta["original_ids"]],
            images=list(images),
        )
    except KeyError as error:
        raise InputError(f"{source}: not a metadata file: the key {error} is missing") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{source}: not a metadata file: {error}") from error
    if num_stuff < 0 or num_thing < 0 or not 0 < classes <= VOID:
        raise InputError(f"{source}: {num_stuff} stuff and {num_thing} thing classes; the sum must be 1 to {VOID}")
    for name in ("categories", "palette", "original_ids"):
        length = len(getattr(metadata, name))
        if length != classes:
            raise InputError(f"{source}: {length} entries in `{name}`, but num_stuff + num_thing = {classes}")
    for image in metadata.images:
        known = all(0 <= c < classes or c == VOID for c in image.cat) and image.cat[:1] == [VOID]
        if not known or len(image.cat) != len(image.iscrowd) or min(image.size) < 1:
            raise InputError(
                f"{source}: image {image.id!r} has the size {image.size}, {len(image.iscrowd)} entries in `iscrowd`, "
                f"and {len(image.cat)} in `cat`, of which the first must be {VOID}, others {VOID} or 0 to {classes - 1}"
            )
    return metadata


def metadata_header(metadata: Metadata) -> dict[str, Any]:
    """Return the classes as plain data, the inverse of :func:`metadata_of`."""
    return {
        "num_stuff": metadata.num_stuff,
        "num_thing": metadata.num_thing,
        "categories": list(metadata.categories),
        "palette": [list(rgb) for rgb in metadata.palette],
        "original_ids": list(metadata.original_ids),
    }


def write_metadata(path: str | Path, metadata: Metadata) -> None:
    """Write `metadata.bin` atomically."""
    write_atomically(Path(path), pack_metadata(metadata))


def pack_metadata(metadata: Metadata) -> bytes:
    """Encode the content of `metadata.bin`, the inverse of :func:`parse_metadata`."""
    images = [
        {"id": i.id, "cat": list(i.cat), "size": list(i.size), "iscrowd": list(i.iscrowd)} for i in metadata.images
    ]
    content: bytes = umsgpack.packb({"meta": metadata_header(metadata), "images": images})
    return content


class _Malformed(ValueError):
    """Invalid content of a metadata file."""


class _LimitedReader(BytesIO):
    end = 0

    def unpack(self) -> Any:
        """Read one object, of at most `_OBJECT_BYTES`."""
        self.end = self.tell() + _OBJECT_BYTES
        return umsgpack.unpack(self)

    def read(self, count: int | None = -1) -> bytes:
        if count is None or self.tell() + count > self.end:
            raise _Malformed(f"an entry is larger than {format_bytes(_OBJECT_BYTES)}")
        return super().read(count)


def _length(stream: BytesIO, short: int, long: int, what: str) -> int:
    """Read the length of a map or list; `short`, `long`: msgpack codes for up to 15 entries and for more."""
    first = stream.read1(1)
    if not first:
        raise _Malformed(f"it ends where a {what} should start")
    code = first[0]
    if short <= code < short + 16:
        return code - short
    if code not in (long, long + 1):
        raise _Malformed(f"byte {code:#04x} instead of the start of a {what}")
    return int.from_bytes(stream.read1(2 if code == long else 4), "big")


def parse_colour(rgb: Sequence[Any]) -> tuple[int, int, int]:
    """Return the colour of a class; ValueError if it is not three numbers from 0 to 255."""
    with suppress(TypeError, ValueError):
        red, green, blue = (whole_number(int(channel)) for channel in rgb)
        if 0 <= min(red, green, blue) <= max(red, green, blue) <= 255:
            return red, green, blue
    raise ValueError(f"a colour must be three numbers from 0 to 255, not {rgb!r:.80}")


def _image(entry: dict[str, Any]) -> ImageInfo:
    height, width = map(whole_number, entry["size"])
    cat, iscrowd = [int(c) for c in entry["cat"]], [int(bool(c)) for c in entry["iscrowd"]]
    return ImageInfo(str(entry["id"]), cat, (height, width), iscrowd)
