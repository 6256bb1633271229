"""Writes a dataset folder from any source: in parallel, atomically and resumable.

A converter lists its images as :class:`SourceFrame` and provides a function that reads the instances of one. Images and
masks are written atomically; finished images are recorded in a journal, so that a further run converts only what has
changed or is missing. The lists, `coco/*.json` and, last, `metadata.bin` follow.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from seamseg.maps.folder import IMAGE_EXTENSIONS
from seamseg.maps.formats.metadata import ImageInfo, Metadata, read_metadata, write_metadata
from seamseg.maps.images import has_frames, open_image
from seamseg.maps.prepare.account import FURTHER_FRAMES, JOURNALS, Journal, SplitAccount, account_of
from seamseg.maps.prepare.annotations import thing_annotations, write_coco_json
from seamseg.maps.prepare.archives import File, decoded, fingerprint, read_file, size_of
from seamseg.maps.prepare.class_file import background_class
from seamseg.maps.prepare.pairs import Instances, is_image
from seamseg.utils.errors import InputError, SeamsegError, describe_error, is_of_item, one_line
from seamseg.utils.files import PARTIAL, cannot_write, join_inside, read_text, replacing, write_atomically
from seamseg.utils.limits import MASK_BYTES, check_memory
from seamseg.utils.output import echo
from seamseg.utils.parallel import parallel_map
from seamseg.utils.process import return_memory
from seamseg.utils.progress import ProgressCallback, no_progress

_JPEG = (".jpg", ".jpeg")  # most images; they have no further frames
_MOST_FAILED = 20


@dataclass(frozen=True)
class SourceFrame:
    """An image of the source data set, and the annotation files that the reader of its converter opens.

    `id` is its name in the dataset folder, `file_name` that in `coco/<split>.json`. `info` is further input of the
    reader: picklable, and equal if its `repr` is.
    """

    id: str
    image: File
    annotation: File
    file_name: str
    second: File | None = None
    info: Any = None
    others: tuple[File, ...] = ()

    @property
    def annotations(self) -> tuple[File, ...]:
        """All annotation files."""
        return (self.annotation, *([self.second] if self.second is not None else []), *self.others)


Reader = Callable[[SourceFrame], Instances]
Link = Literal["hard", "symbolic", "copy"]


class DatasetWriter:
    """Writes the splits of a dataset folder, which is created if missing; existing splits are kept.

    `workers` is a number of processes, None for one per processor; `link` how images are stored, copied where a hard
    link is not possible. InputError if `root` is a file or has a data set with other classes.
    """

    def __init__(
        self,
        root: str | Path,
        classes: Metadata,
        workers: int | None = None,
        progress: ProgressCallback = no_progress,
        link: Link = "hard",
    ) -> None:
        self.root = Path(root)
        self.classes = replace(classes, images=[])
        self._workers, self._progress, self._link = workers, progress, link
        self._images: dict[str, ImageInfo] = {}
        self.accounts: dict[str, SplitAccount] = {}
        self._failed: list[SeamsegError] = []
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"{self.root}: a file, not a folder")
        if (self.root / "metadata.bin").is_file():
            old = read_metadata(self.root / "metadata.bin")
            # colours that were chosen for the classes may be others now
            if replace(old, images=[]) != replace(self.classes, palette=old.palette):
                rest = old.categories == classes.categories[1:]
                how = "leave void (`void_background`)" if rest else "delete it to repeat it"
                raise InputError(f"{self.root}: has a data set with other classes; choose another folder, or {how}")
            self.classes = replace(old, images=[])
            self._images = {image.id: image for image in old.images}
        try:
            for name in ("img", "msk", "lst", "coco", JOURNALS):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.root, error) from error
        for name in ("img", "msk"):
            for partial_file in (self.root / name).glob(f".*{PARTIAL}"):
                partial_file.unlink(missing_ok=True)

    def is_finished(
        self, split: str, frames: Sequence[SourceFrame], read: Reader, skipped: Mapping[str, tuple[int, str]] = {}
    ) -> bool:
        """Return whether the folder has this split, complete and of the same images, annotations and options.

        A split without a journal, as of the original's converter, may have been edited: its sources are not compared.
        Of others the account is set.
        """
        names = ("metadata.bin", f"lst/{split}.txt", f"coco/{split}.json")
        if not all((self.root / name).is_file() for name in names):
            return False
        listed = set(self._listed(split))
        if listed != {frame.id for frame in frames} or not all(i in self._images and self._files(i) for i in listed):
            return False
        journal = Journal(self.root, split, self.classes)
        if not journal.exists():
            return True
        records = journal.read()
        for frame in frames:
            record = records.get(frame.id)
            if record is None or record["stamp"] != _stamp(frame, read) or _info(record) != self._images[frame.id]:
                return False
        self.accounts[split] = account_of([records[f.id] for f in frames], skipped, background_class(self.classes))
        return True

    def check_images(self, frames: Iterable[SourceFrame], lists: Iterable[str]) -> None:
        """Raise InputError if one of these lists has another image under the name of a frame."""
        for name in lists:
            listed = set(self._listed(name))
            for frame in frames:
                files = self._files(frame.id) if frame.id in listed else []
                if files and not _is_same(frame.image, self.root / files[0]):
                    raise InputError(
                        f"{frame.image}: {self.root} has another image of the name {frame.id!r}, in the list {name}; "
                        "convert both lists with one command, or choose another folder"
                    )

    def shared_images(self, split: str) -> dict[str, int]:
        """Return how many images a list shares with each other list."""
        lists = {path.stem: set(self._listed(path.stem)) for path in sorted(self.root.glob("lst/*.txt"))}
        mine = lists.pop(split)
        return {name: len(mine & other) for name, other in lists.items() if mine & other}

    def add_split(
        self, split: str, frames: Sequence[SourceFrame], read: Reader, skipped: Mapping[str, tuple[int, str]] = {}
    ) -> int:
        """Convert the images of a split, in the order of the list, that are new or changed; return their number.

        `read`, picklable, reads the instances of a frame; `skipped` is what the source has besides. An image that fails
        is left out of the list, an error of :meth:`finish`, and tried again by the next run; if all or 20 fail, this is
        an InputError. What is converted is kept.
        """
        ids = [frame.id for frame in frames]
        if len(set(ids)) != len(ids):
            twice = next(i for i, count in Counter(ids).items() if count > 1)
            photos = " and ".join(str(frame.image) for frame in frames if frame.id == twice)
            raise InputError(f"{split}: two images of the source have the name {twice!r}: {photos}")
        invalid = next((i for i in ids if not self._is_valid(i)), None)
        if invalid is not None:
            raise InputError(f"{split}: {invalid!r} is not a valid image name, a line of UTF-8")
        journal = Journal(self.root, split, self.classes)
        records = {k: r for k, r in journal.read().items() if all((self.root / f).is_file() for f in r["files"])}
        todo = [f for f in frames if f.id not in records or records[f.id]["stamp"] != _stamp(f, read)]
        # the masks will no longer fit `metadata.bin`
        (self.root / "lst" / f"{split}.txt").unlink(missing_ok=True)
        work = partial(_converted, root=self.root, read=read, classes=self.classes, link=self._link)
        results = parallel_map(work, todo, self._workers)
        desc = split if len(todo) == len(frames) else f"{split} (of {len(frames)})"
        with journal.appending(keep=[records[i] for i in ids if i in records]) as append:
            failed = 0
            for record, frame in zip(self._progress(results, len(todo), desc), todo):
                if isinstance(record, dict):
                    append(record)
                    records[frame.id] = record
                    continue
                self._failed.append(record)
                records.pop(frame.id, None)  # of an earlier version of its files
                failed += 1
                if failed == _MOST_FAILED:  # as with a wrong class list
                    break
            ids = [i for i in ids if i in records]
            if failed and (not ids or failed == _MOST_FAILED):
                raise self._failure()
            ordered = [records[i] for i in ids]
            self.accounts[split] = account_of(ordered, skipped, background_class(self.classes))
            write_coco_json(self.root / "coco" / f"{split}.json", self.classes, ordered)
            write_atomically(self.root / "lst" / f"{split}.txt", "".join(f"{i}\n" for i in ids).encode())
            self._images.update((r["id"], _info(r)) for r in ordered)
            append({"account": asdict(self.accounts[split])})
        return len(todo) - failed

    def _failure(self) -> SeamsegError:
        """Return the error of the images that fail, after a line on stderr for each of several."""
        first = self._failed[0]
        if len(self._failed) == 1:
            return first
        for error in self._failed:
            echo(f"failed {one_line(error)}", file=sys.stderr, flush=True)
        kind = InputError if all(isinstance(error, InputError) for error in self._failed) else SeamsegError
        return kind(f"{len(self._failed)} images fail, the first is {first}")

    def finish(self) -> Metadata:
        """Write `metadata.bin`, which completes the data set; call it after the last split.

        An image that failed is an InputError now; the data set has the others.
        """
        metadata = Metadata(**{**vars(self.classes), "images": list(self._images.values())})
        write_metadata(self.root / "metadata.bin", metadata)
        if self._failed:
            raise self._failure()
        return metadata

    def _is_valid(self, name: str) -> bool:
        """Return whether a name is a path below `img` and a line of a list, which is UTF-8."""
        try:
            name.encode()
            return name.splitlines() == [name.strip()] == [name] and bool(join_inside(self.root, name))
        except (UnicodeEncodeError, InputError):
            return False

    def _files(self, image_id: str) -> list[str]:
        images = [f"img/{image_id}{e}" for e in IMAGE_EXTENSIONS if (self.root / "img" / f"{image_id}{e}").is_file()]
        mask = f"msk/{image_id}.png"
        return [images[0], mask] if images and (self.root / mask).is_file() else []

    def _listed(self, split: str) -> list[str]:
        path = self.root / "lst" / f"{split}.txt"
        return read_text(path, "list of images").splitlines()


def _is_same(photo: File, stored: Path) -> bool:
    if isinstance(photo, Path) and photo.samefile(stored):
        return True
    if photo.suffix.lower() not in IMAGE_EXTENSIONS:
        return np.array_equal(np.asarray(decoded(photo, open_image)), np.asarray(open_image(stored)))
    return read_file(photo) == read_file(stored)


def _info(record: dict[str, Any]) -> ImageInfo:
    return ImageInfo(record["id"], record["cat"], (record["size"][0], record["size"][1]), record["iscrowd"])


def _stamp(frame: SourceFrame, read: Reader) -> str:
    """Return a text that changes with the sources of an image and with what reads them."""
    # a JSON file of many images has been read: `info` is its part on this one
    annotations = [f for f in frame.annotations if frame.info is None or f.suffix.lower() != ".json"]
    files = [(os.path.abspath(str(file)), *fingerprint(file)) for file in (frame.image, *annotations)]
    text = f"({files!r}, {frame.info!r}, {_text_of(read)})"
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@lru_cache(1)
def _text_of(read: Reader) -> str:
    """Return module, name and arguments of a reader, which may hold a long class list, for all of its images."""
    call = read if isinstance(read, partial) else partial(read)
    return repr((call.func.__module__, call.func.__qualname__, call.args, call.keywords))[1:-1]


def _converted(frame: SourceFrame, **options: Any) -> dict[str, Any] | SeamsegError:
    """Write image and mask of a frame, in a worker process; return its record for the journal, or the error."""
    try:
        size = size_of(frame.image)
        pixels = size[0] * size[1]
        check_memory(frame.image, "an image with its mask", size[::-1], MASK_BYTES * pixels)
        record = _write_frame(frame, size, **options)
        return_memory(pixels)
        return record
    except Exception as error:
        if not is_of_item(error):
            raise
        if isinstance(error, SeamsegError):
            return type(error)(str(error))  # without its traceback, which keeps arrays alive
        return SeamsegError(f"{frame.image}: cannot be converted ({describe_error(error)})")


def _write_frame(
    frame: SourceFrame, size: tuple[int, int], root: Path, read: Reader, classes: Metadata, link: Link
) -> dict[str, Any]:
    for file in frame.annotations:
        # by their headers, before a small file of a large image is decoded
        if is_image(file.name):
            check_size(file, size_of(file), frame.image, size)
    instances = read(frame)
    extension = frame.image.suffix.lower()
    several = extension not in _JPEG and decoded(frame.image, has_frames)
    further = ((FURTHER_FRAMES, str(frame.image)),) if several else ()
    layers = instances.ids[None] if instances.ids.ndim == 2 else instances.ids
    # a list of annotations may name maps without such an ending
    check_size(frame.annotation, layers.shape[1:], frame.image, size)
    photo = Path("img", frame.id + (extension if extension in IMAGE_EXTENSIONS else ".png"))
    store_image(frame.image, root / photo, link)
    masks = [Path("msk", f"{frame.id}.png" + (f".{k}" if k else "")) for k in range(len(layers))]
    depth = np.uint8 if len(instances.cat) <= 256 else np.uint16
    for path, layer in zip(masks, layers):
        with replacing(root / path) as temporary:
            # id maps consist of runs: half the time of the default search of zlib, and smaller files
            Image.fromarray(layer.astype(depth, copy=False)).save(temporary, format="PNG", compress_type=zlib.Z_RLE)
    # what an earlier conversion wrote, in another format or in further layers
    for other in {*IMAGE_EXTENSIONS} - {photo.suffix}:
        (root / photo).with_suffix(other).unlink(missing_ok=True)
    for number in itertools.count(len(masks)):
        further_layer = root / f"{masks[0]}.{number}"
        if not further_layer.is_file():
            break
        further_layer.unlink()
    return {
        "id": frame.id,
        "file_name": frame.file_name,
        "size": list(size),
        "cat": instances.cat,
        "iscrowd": instances.iscrowd,
        "void": int((~layers.any(axis=0)).sum()),
        "annotations": thing_annotations(layers, instances.cat, instances.iscrowd, classes),
        "skipped": instances.skipped + further,
        "files": [str(photo), *map(str, masks)],
        "stamp": _stamp(frame, read),  # of an image that is linked now
    }


def check_size(file: File, found: tuple[int, ...], photo: File, size: tuple[int, int]) -> None:
    """Raise InputError if the `(height, width)` of a map is not that of its image."""
    if found != size:
        raise InputError(
            f"{file}: {found[1]} x {found[0]} pixels (width x height), but the image {photo} has {size[1]} x {size[0]}"
        )


def check_stated_size(where: str, stated: tuple[Any, Any], photo: File, size: tuple[int, int]) -> None:
    """Compare an image of `(height, width)` with the width and height that its annotations state.

    Null and 0 are not compared. `where` names the annotations in the error.
    """
    if any(value and str(value) not in (f"{true}", f"{true}.0") for value, true in zip(stated, size[::-1])):
        raise InputError(
            f"{where}: is of an image of {stated[0]!s:.20} x {stated[1]!s:.20} pixels (width x height), but {photo} "
            f"has {size[1]} x {size[0]}; scale one of them to the other"
        )


def store_image(source: File, target: Path, link: Link) -> None:
    """Link or copy an image atomically; one that is not PNG or JPEG is stored as PNG."""
    with replacing(target) as temporary:
        if source.suffix.lower() not in IMAGE_EXTENSIONS:
            decoded(source, open_image).save(temporary, format="PNG")
        elif not isinstance(source, Path):
            temporary.write_bytes(source.read_bytes())
        elif link == "symbolic":
            temporary.symlink_to(source.resolve())
        elif link == "copy":
            shutil.copyfile(source, temporary)
        else:
            try:
                os.link(source.resolve(), temporary)
            except OSError:  # another disk, a file system without links, a file of another user
                shutil.copyfile(source, temporary)
