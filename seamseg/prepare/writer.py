"""Writes a dataset folder from any source: in parallel, atomically and resumable.

A converter lists its images as :class:`SourceFrame` and provides a function that reads the instances of one. Images and
masks are written atomically; finished images are recorded in a journal (`.prepare/<split>.jsonl`), so that a restart
skips them. The lists, `coco/*.json` and, last, `metadata.bin` follow.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from seamseg.data.folder import IMAGE_EXTENSIONS, DatasetFolder
from seamseg.formats.metadata import ImageInfo, Metadata, pack_metadata, read_metadata, write_metadata
from seamseg.prepare.account import AccountOf, SplitAccount, account_of, read_accounts, write_accounts
from seamseg.prepare.annotations import thing_annotations, write_coco_json
from seamseg.prepare.archives import File, fingerprint, photo_size, read_file, read_photo
from seamseg.prepare.pairs import is_photo
from seamseg.utils.errors import InputError
from seamseg.utils.files import PARTIAL, cannot_write, join_inside, replacing, write_atomically
from seamseg.utils.limits import parse_json
from seamseg.utils.parallel import parallel_map
from seamseg.utils.progress import ProgressCallback

_JOURNALS = ".prepare"


@dataclass(frozen=True)
class SourceFrame:
    """An image of the source data set.

    Attributes
    ----------
    id : name of the image in the dataset folder
    photo : the image file to link or copy; one that is not PNG or JPEG is stored as PNG
    annotation : the file that the reader of the converter opens
    file_name : file name of the image in `coco/<split>.json`
    second : a second annotation file, if the source has one
    info : further input of the reader; picklable, and equal if its `repr` is
    others : further annotation files, of any number
    """

    id: str
    photo: File
    annotation: File
    file_name: str
    second: File | None = None
    info: Any = None
    others: tuple[File, ...] = ()

    @property
    def annotations(self) -> tuple[File, ...]:
        """All annotation files."""
        return (self.annotation, *([self.second] if self.second is not None else []), *self.others)


@dataclass(frozen=True)
class Instances:
    """The instances of an image.

    Attributes
    ----------
    ids : `H x W` or `L x H x W`, 0 void
    cat, iscrowd : class and crowd flag by id; entry 0 is void: 255, 0
    skipped : reason and name of each object that could not be used, for the account of the conversion
    """

    ids: np.ndarray
    cat: list[int]
    iscrowd: list[int]
    skipped: tuple[tuple[str, str], ...] = ()


Reader = Callable[[SourceFrame], Instances]
Link = Literal["hard", "symbolic", "copy"]


def no_progress(iterable: Iterable[Any], total: int | None = None, desc: str = "") -> Iterable[Any]:
    """Return the iterable; shows no progress."""
    return iterable


class DatasetWriter:
    """Writes the splits of a dataset folder.

    Parameters
    ----------
    root : dataset folder, created if missing; existing splits are kept
    classes : classes of the data set; its images are ignored
    workers : number of processes, None for one per processor
    progress : wraps the finished images
    link : how images are stored; copied where a hard link is not possible

    Raises
    ------
    InputError
        if `root` is a file or has a data set with other classes
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
        self.classes = classes.without_images()
        self._workers, self._progress, self._link = workers, progress, link
        self._images: dict[str, ImageInfo] = {}
        self.accounts: dict[str, SplitAccount] = {}
        if self.root.exists() and not self.root.is_dir():
            raise InputError(f"{self.root}: a file, not a folder")
        if (self.root / "metadata.bin").is_file():
            old = read_metadata(self.root / "metadata.bin")
            # colours that were chosen for the classes may be others now
            if old.without_images() != replace(self.classes, palette=old.palette):
                raise InputError(f"{self.root}: has a data set with other classes; choose another folder")
            self.classes = old.without_images()
            self._images = {image.id: image for image in old.images}
            self.accounts = read_accounts(self.root)
        try:
            for name in ("img", "msk", "lst", "coco", _JOURNALS):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.root, error) from error
        for name in ("img", "msk"):
            for partial_file in (self.root / name).glob(f".*{PARTIAL}"):
                partial_file.unlink(missing_ok=True)

    def is_finished(self, split: str, frames: Sequence[SourceFrame]) -> bool:
        """Return whether the folder has this split, complete and with the same images."""
        if not all((self.root / part).is_file() for part in (f"lst/{split}.txt", f"coco/{split}.json")):
            return False
        if not (self.root / "metadata.bin").is_file():
            return False
        folder = DatasetFolder(self.root)
        wanted = {frame.id for frame in frames}
        listed = set((self.root / "lst" / f"{split}.txt").read_text(encoding="utf-8").splitlines())
        return (
            listed == wanted <= {image.id for image in folder.metadata.images}
            and all((self.root / "msk" / f"{i}.png").is_file() for i in wanted)
            and all(any((self.root / "img" / f"{i}{e}").is_file() for e in IMAGE_EXTENSIONS) for i in wanted)
        )

    def shared_images(self, split: str) -> dict[str, int]:
        """Return the number of images that a list shares with each other list of the folder."""
        lists = {path.stem: set(path.read_text(encoding="utf-8").splitlines()) for path in self.root.glob("lst/*.txt")}
        mine = lists.pop(split)
        return {name: len(mine & other) for name, other in sorted(lists.items()) if mine & other}

    def add_split(
        self, split: str, frames: Sequence[SourceFrame], read: Reader, account: AccountOf = account_of
    ) -> None:
        """Convert the images of a split that have not been converted yet.

        Parameters
        ----------
        split : name of the list
        frames : frames in the order of the list
        read : reads the instances of a frame; picklable
        account : returns the account of the split from its records, and may refuse them

        Raises
        ------
        InputError
            naming the file, if one is invalid; finished images are kept, so fix the file and run again
        """
        ids = [frame.id for frame in frames]
        if len(set(ids)) != len(ids):
            twice = next(i for k, i in enumerate(ids) if i in ids[:k])
            raise InputError(f"{split}: two images of the source have the name {twice!r}")
        invalid = next((i for i in ids if not self._is_valid(i)), None)
        if invalid is not None:
            raise InputError(f"{split}: {invalid!r} is not a valid image name, a line of UTF-8")
        journal = _Journal(self.root / _JOURNALS / f"{split}.jsonl", self.classes)
        records = {k: r for k, r in journal.read().items() if self._is_on_disk(r)}
        todo = [f for f in frames if f.id not in records or records[f.id]["stamp"] != _fingerprint(f)]
        work = partial(_convert, root=self.root, read=read, classes=self.classes, link=self._link)
        results = parallel_map(work, todo, self._workers)
        desc = split if len(todo) == len(frames) else f"{split} (of {len(frames)})"
        with journal.appending(keep=[records[i] for i in ids if i in records]) as append:
            for record in self._progress(results, len(todo), desc):
                append(record)
                records[record["id"]] = record
        ordered = [records[i] for i in ids]
        self.accounts[split] = account(ordered)
        write_coco_json(self.root / "coco" / f"{split}.json", self.classes, ordered)
        write_atomically(self.root / "lst" / f"{split}.txt", "".join(f"{i}\n" for i in ids).encode())
        for r in ordered:
            self._images[r["id"]] = ImageInfo(r["id"], r["cat"], (r["size"][0], r["size"][1]), r["iscrowd"])

    def finish(self) -> Metadata:
        """Write `metadata.bin`, which completes the data set; call it after the last split."""
        metadata = Metadata(**{**vars(self.classes), "images": list(self._images.values())})
        write_metadata(self.root / "metadata.bin", metadata)
        write_accounts(self.root, self.accounts)
        shutil.rmtree(self.root / _JOURNALS, ignore_errors=True)
        return metadata

    def _is_valid(self, name: str) -> bool:
        """Return whether a name is a path below `img` and a line of a list, which is UTF-8."""
        try:
            lines = name.encode().decode().splitlines()
        except UnicodeEncodeError:
            return False
        return [line.strip() for line in lines] == [name] and join_inside(self.root, name) is not None

    def _is_on_disk(self, record: dict[str, Any]) -> bool:
        return all((self.root / name).is_file() for name in record["files"])


class _Journal:
    """Records of finished images, one per line; a journal with other classes is ignored."""

    def __init__(self, path: Path, classes: Metadata) -> None:
        self._path = path
        self._header = {"journal": 2, "classes": pack_metadata(classes).hex()}

    def read(self) -> dict[str, dict[str, Any]]:
        if not self._path.is_file():
            return {}
        values = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                values.append(parse_json(line))
            except ValueError:  # the line that was being written when the process was killed
                break
        if not values or values[0] != self._header:
            return {}
        return {record["id"]: record for record in values[1:]}

    @contextmanager
    def appending(self, keep: list[dict[str, Any]]) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Rewrite the journal with the records to keep, and yield a function that appends one."""
        lines = [json.dumps(line) + "\n" for line in (self._header, *keep)]
        write_atomically(self._path, "".join(lines).encode())
        # without a buffer, which would fail again when the file is closed
        with self._path.open("ab", buffering=0) as file:

            def append(record: dict[str, Any]) -> None:
                line = (json.dumps(record) + "\n").encode()
                try:
                    if file.write(line) < len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                except OSError as error:
                    raise cannot_write(self._path, error) from error

            yield append


def _fingerprint(frame: SourceFrame) -> list[int]:
    known = [zlib.crc32(repr(frame.info).encode())] if frame.info is not None else []
    return [value for file in (frame.photo, *frame.annotations) for value in fingerprint(file)] + known


def _convert(frame: SourceFrame, root: Path, read: Reader, classes: Metadata, link: Link) -> dict[str, Any]:
    """Write image and mask of one frame, in a worker process; return its record for the journal."""
    source = _fingerprint(frame)
    size = photo_size(frame.photo)
    for file in frame.annotations:
        # by their headers, before a small file of a large image is decoded
        if is_photo(file.name):
            _check_size(file, photo_size(file), frame.photo, size)
    instances = read(frame)
    layers = instances.ids[None] if instances.ids.ndim == 2 else instances.ids
    # a list of annotations may name maps without such an ending
    _check_size(frame.annotation, layers.shape[1:], frame.photo, size)
    extension = frame.photo.suffix.lower()
    photo = Path("img", frame.id + (extension if extension in IMAGE_EXTENSIONS else ".png"))
    store_photo(frame.photo, root / photo, link)
    masks = [Path("msk", f"{frame.id}.png" + (f".{k}" if k else "")) for k in range(len(layers))]
    depth = np.uint8 if len(instances.cat) <= 256 else np.uint16
    for path, layer in zip(masks, layers):
        with replacing(root / path) as temporary:
            # id maps consist of runs: half the time of the default search of zlib, and smaller files
            Image.fromarray(layer.astype(depth, copy=False)).save(temporary, format="PNG", compress_type=zlib.Z_RLE)
    return {
        "id": frame.id,
        "file_name": frame.file_name,
        "size": list(size),
        "cat": instances.cat,
        "iscrowd": instances.iscrowd,
        "annotations": thing_annotations(layers, instances.cat, instances.iscrowd, classes),
        "skipped": instances.skipped,
        "files": [str(photo), *map(str, masks)],
        "stamp": source,
    }


def _check_size(file: File, found: tuple[int, ...], photo: File, size: tuple[int, int]) -> None:
    if found != size:
        raise InputError(
            f"{file}: {found[1]} x {found[0]} pixels (width x height), but the image {photo} has {size[1]} x {size[0]}"
        )


def store_photo(source: File, target: Path, link: Link) -> None:
    """Link or copy an image atomically; one that is not PNG or JPEG is stored as PNG."""
    with replacing(target) as temporary:
        if source.suffix.lower() not in IMAGE_EXTENSIONS:
            read_photo(source).save(temporary, format="PNG")
        elif not isinstance(source, Path):
            temporary.write_bytes(read_file(source))
        elif link == "symbolic":
            temporary.symlink_to(source.resolve())
        elif link == "copy" or not _hard_link(source, temporary):
            shutil.copyfile(source, temporary)


def _hard_link(source: Path, target: Path) -> bool:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another disk, a file system without links, a file of another user
        return False
    return True
