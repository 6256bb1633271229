"""The folder of the outputs of `predict`, and its manifest, by which an interrupted run is resumed.

`predictions.jsonl` has a line for each image that is done. The first line names the model and the settings. All
processes append to the file; a line is written in one piece when the outputs of its image are in place. So a kill or a
full disk can tear only the last line of a process, which is no line then: its image is processed again. At the end of a
run the lines are sorted by name.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from seamseg.maps.images import PHOTO_ENDINGS
from seamseg.maps.predictions import MANIFEST
from seamseg.predicting.options import LABELS
from seamseg.predicting.source import Source, Video
from seamseg.predicting.writers import OutputFormat, errors_of
from seamseg.utils.errors import InputError, describe_error
from seamseg.utils.files import cannot_write, lock_file, make_folder, refuse_url, replacing, write_atomically

LOCK_NAME = ".predictions.lock"

Line = dict[str, Any]


Done = dict[str, tuple[str, str]]
"""The images that are done, by name: the path relative to the input, and the stamp of the file."""


def differences(old: Line, new: Line) -> list[str]:
    """Describe the differences of two headers; empty if a run may continue the other."""
    found = []
    if old["sha256"] != new["sha256"]:
        same = " before it changed" if old["model"] == new["model"] else f" (now {new['model']})"
        found.append(f"the model {old['model']}{same}")
    # through JSON, which makes lists of tuples
    before, now = old["settings"], json.loads(json.dumps(new["settings"]))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            found.append(f"{key} {_shown(before.get(key))} (now {_shown(now.get(key))})")
    return found


def _shown(value: Any) -> Any:
    """Return a setting as a user gives it: overrides as their texts."""
    return value if not isinstance(value, list) else " ".join(map(str, value)).replace(LABELS, "--labels") or None


class ManifestWriter:
    """Appends lines to the manifest, which exists; several threads and processes may do so at a time.

    `names` has the images with a line by this writer; True if it is done.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def add(self, line: Line) -> None:
        """Append a line with at least `name` and `status`; SeamsegError if it cannot be written."""
        data = (json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n").encode()
        try:
            with self._lock:
                if (written := os.write(self._file, data)) < len(data):
                    os.write(self._file, data[written:])  # the disk is full: this raises the error
                self.names[line["name"]] = line["status"] == "ok"
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_lines(path: Path) -> Iterator[tuple[int, Line]]:
    """Iterate over offset and content of each line after the first; torn ones are left out."""
    with open(path, "rb") as file:
        offset = len(file.readline())
        for data in file:
            with suppress(ValueError):
                yield offset, json.loads(data)
            offset += len(data)


def output_path(out: str) -> Path:
    """Return the folder of OUT; InputError if it is a URL, a file, empty, or looks like an image."""
    if not out.strip():
        raise InputError("OUT is empty, is a variable not set? `.` is the working folder")
    path = Path(out)
    if not path.is_dir():
        refuse_url(out)
        if path.exists() or out.lower().endswith(PHOTO_ENDINGS):
            raise InputError(f"{out}: the output must be a folder, this is a file or image; OUT is the last argument")
    return path


class OutputFolder:
    """The folder, the formats that write there, and the manifest; `head` is its first line."""

    def __init__(self, out: Path, writers: Sequence[OutputFormat[Any]], head: Line) -> None:
        self.out = out
        self.writers = writers
        self.head = head
        self._first_line = (json.dumps(head, allow_nan=False) + "\n").encode()
        self.manifest = out / MANIFEST

    def lock(self) -> AbstractContextManager[None]:
        """Keep other runs out of the folder for a `with` block; InputError if one is in it."""
        make_folder(self.out)
        return lock_file(
            self.out / LOCK_NAME,
            "another `seamseg predict` is writing to this folder: wait until it ends, or choose another folder (for "
            "more processes in one run use torchrun)",
        )

    def check_names(self, sources: Sequence[Source | Video]) -> None:
        """Raise InputError if an output would overwrite an input, or two images would have one output."""
        images = [source for source in sources if isinstance(source, Source)]
        inputs = {_real(source.path) for source in images}
        for writer in self.writers:
            owners: dict[Path, Source] = {}
            for source in images:
                for path in writer.paths(source):
                    if _real(path) in inputs:
                        raise InputError(
                            f"{path}: this output would overwrite an input image; choose another output folder"
                        )
                    if (owner := owners.setdefault(path, source)) is not source:
                        raise InputError(
                            f"{owner} and {source} would both be written to {path}: this format has no sub-folders; "
                            "give them different names or predict each folder into an output folder of its own"
                        )
            video = next((source for source in sources if isinstance(source, Video)), None)
            if video is not None and len(sources) > 1:
                # the names of their frames are not known yet, but start with different folders
                a, b = (writer.paths(Source(Path("x"), f"{folder}/x", "x")) for folder in "ab")
                if a and a == b:
                    raise InputError(
                        f"{video.name}: frames of several videos could share {a[0]}, since this format has no "
                        "sub-folders; predict each into an output folder of its own"
                    )

    def begin(self, sources: Sequence[Source | Video], restart: bool = False) -> Done:
        """Begin the manifest, or continue one: return the images whose outputs exist, by name.

        For the main process, in the locked folder. With `restart` the manifest is replaced. InputError if it is of
        another model or other settings, or a file that no manifest lists would be overwritten.
        """
        # a new folder needs no look-up of a million file names
        if not restart and any(name != LOCK_NAME for name in os.listdir(self.out)):
            if self.manifest.exists():
                with self._readable_manifest():
                    return self._continued()
            for path in self._planned(sources):
                if os.path.exists(path):
                    raise InputError(
                        f"{path}: exists already, and no {MANIFEST} lists it as an output of `seamseg predict`; choose "
                        "another folder for the outputs, or overwrite it with `restart=True`"
                    )
        write_atomically(self.manifest, self._first_line)
        return {}

    @contextmanager
    def _readable_manifest(self) -> Iterator[None]:
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{self.manifest}: damaged, or not a manifest of `seamseg predict` ({describe_error(error)}); "
                "`restart=True` replaces it"
            ) from error

    def _continued(self) -> Done:
        """Return the images of the manifest whose outputs exist; InputError if it is of another run."""
        with open(self.manifest, "rb+") as file:
            if found := differences(json.loads(file.readline()), self.head):
                raise InputError(
                    f"{self.out}: holds predictions of another run: {', '.join(found)}; choose another folder, or "
                    "start over with `restart=True`"
                )
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a torn line: the next one starts after it
                file.write(b"\n")
        done: Done = {}
        for line in self.lines():
            done.pop(line["name"], None)
            if line["status"] == "ok" and all((self.out / output).is_file() for output in line["outputs"]):
                done[line["name"]] = line["relative"], line["stamp"]
        return done

    def _planned(self, sources: Sequence[Source | Video]) -> Iterator[Path]:
        """Iterate over the files that will be written, as far as they are known in advance."""
        for writer in self.writers:
            yield from writer.finals()
            for source in sources:
                if isinstance(source, Source):
                    yield from writer.paths(source)

    def lines(self) -> Iterator[Line]:
        """Iterate over the lines of the manifest."""
        return (line for _, line in read_lines(self.manifest))

    def finish(self) -> None:
        """Sort the manifest, and write the files about all images; called by the main process at the end."""
        with self._readable_manifest():
            self._sort()
            for position, writer in enumerate(self.writers):
                try:
                    with errors_of(writer):
                        writer.finish(partial(self._records, position))
                except OSError as error:
                    raise cannot_write(error.filename or "output", error) from error

    def _sort(self) -> None:
        """Sort the manifest by the names of the images; the last line of an image counts."""
        places = {line["name"]: offset for offset, line in read_lines(self.manifest)}
        with open(self.manifest, "rb") as file, replacing(self.manifest) as temporary, open(temporary, "wb") as target:
            target.write(self._first_line)
            for name in sorted(places):
                file.seek(places[name])
                target.write(file.readline())

    def _records(self, position: int) -> Iterator[Any]:
        """Iterate over the records of the format at a position."""
        for line in self.lines():
            if line["status"] == "ok" and (record := line["records"][position]) is not None:
                yield record


_real_folder = lru_cache(4096)(os.path.realpath)


def _real(path: Path) -> str:
    """Resolve the links of the folder; fast for a million files in few folders."""
    return os.path.join(_real_folder(path.parent), path.name)
