"""The folder of the outputs of `predict`, and its manifest, by which an interrupted run is resumed.

`predictions.jsonl` has a line for each image that is done. The first line names the model and the settings. All
processes append to the file; a line is written in one piece when the outputs of its image are in place. So a kill or a
full disk can tear only the last line of a process, which is no line then: its image is processed again. At the end of a
run the lines are sorted by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from seamseg.maps.predictions import MANIFEST
from seamseg.predicting.options import LABELS
from seamseg.predicting.source import Source, Video
from seamseg.predicting.writers.base import OutputFormat, errors_of
from seamseg.utils.errors import InputError, describe_error
from seamseg.utils.files import cannot_write, lock_file, make_folder, replacing, write_atomically

LOCK_NAME = ".predictions.lock"

Line = dict[str, Any]

Done = dict[str, tuple[str, str]]
"""The images that are done, by name: the path relative to the input, and the stamp of the file."""


def differences(old: Line, new: Line) -> list[str]:
    """Describe the differences of two headers; empty if a run may continue the other."""

    def shown(value: Any) -> Any:
        # overrides as their texts
        return value if not isinstance(value, list) else " ".join(map(str, value)).replace(LABELS, "--labels") or None

    found = []
    if old["sha256"] != new["sha256"]:
        same = " before it changed" if old["model"] == new["model"] else f" (now {new['model']})"
        found.append(f"the model {old['model']}{same}")
    # through JSON, which makes lists of tuples
    before, now = old["settings"], json.loads(json.dumps(new["settings"]))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            found.append(f"{key} {shown(before.get(key))} (now {shown(now.get(key))})")
    return found


def read_lines(path: Path) -> Iterator[tuple[int, Line]]:
    """Iterate over offset and content of each line of a manifest after the first; torn ones are left out."""
    with open(path, "rb") as file:
        offset = len(file.readline())
        for data in file:
            with suppress(ValueError):
                yield offset, json.loads(data)
            offset += len(data)


class OutputFolder:
    """The folder, the formats that write there, and the manifest; `head` is its first line.

    `names` has the images with a line by this process; True if it is done.
    """

    def __init__(self, out: Path, writers: Sequence[OutputFormat[Any]], head: Line) -> None:
        self.out = out
        self.writers = writers
        self.head = head
        self.manifest = out / MANIFEST
        self.names: dict[str, bool] = {}
        self._first_line = (json.dumps(head, allow_nan=False) + "\n").encode()

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
        real = lru_cache(4096)(os.path.realpath)  # fast for a million files in few folders
        images = [source for source in sources if isinstance(source, Source)]
        inputs = {(real(source.path.parent), source.path.name) for source in images}
        for writer in self.writers:
            owners: dict[Path, Source] = {}
            for source in images:
                for path in writer.paths(source):
                    if (real(path.parent), path.name) in inputs:
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
                # how many frames it has is not known, but their names start with its folder
                a, b = (writer.paths(Source(Path("x"), f"{folder}/x", "x")) for folder in "ab")
                if a and a == b:
                    raise InputError(
                        f"{video.name}: frames of several videos could share {a[0]}, since this format has no "
                        "sub-folders; predict each into an output folder of its own"
                    )

    def begin(self, sources: Sequence[Source | Video], restart: bool = False) -> Done:
        """Begin the manifest, or continue one: return the images whose outputs exist, by name.

        InputError if it is of another model or other settings, or a file that no manifest lists would be overwritten.
        """
        # a new folder needs no look-up of a million file names
        if not restart and any(name != LOCK_NAME for name in os.listdir(self.out)):
            if self.manifest.exists():
                try:
                    return self._continued()
                except (LookupError, TypeError, ValueError, AttributeError) as error:
                    raise InputError(
                        f"{self.manifest}: damaged, or not a manifest of `seamseg predict` ({describe_error(error)}); "
                        "`restart=True` replaces it"
                    ) from error
            images = [source for source in sources if isinstance(source, Source)]
            for writer in self.writers:
                for path in (*writer.finals(), *(path for source in images for path in writer.paths(source))):
                    if os.path.exists(path):
                        raise InputError(
                            f"{path}: exists already, and no {MANIFEST} lists it as an output of `seamseg predict`; "
                            "choose another folder for the outputs, or overwrite it with `restart=True`"
                        )
        write_atomically(self.manifest, self._first_line)
        return {}

    def _continued(self) -> Done:
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
        for _, line in read_lines(self.manifest):
            done.pop(line["name"], None)
            if line["status"] == "ok" and all((self.out / output).is_file() for output in line["outputs"]):
                done[line["name"]] = line["relative"], line["stamp"]
        return done

    def add(self, line: Line) -> None:
        """Append a line with at least `name` and `status`, in any thread; SeamsegError if it cannot be written."""
        data = (json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n").encode()
        try:
            with open(self.manifest, "ab", buffering=0) as file:
                if (written := file.write(data)) < len(data):
                    file.write(data[written:])  # the disk is full: this raises the error
        except OSError as error:
            raise cannot_write(self.manifest, error) from error
        self.names[line["name"]] = line["status"] == "ok"

    def finish(self) -> None:
        """Sort the manifest, and write the files about all images; called by the main process at the end."""
        # the last line of an image counts
        places = {line["name"]: offset for offset, line in read_lines(self.manifest)}
        with open(self.manifest, "rb") as file, replacing(self.manifest) as temporary, open(temporary, "wb") as target:
            target.write(self._first_line)
            for name in sorted(places):
                file.seek(places[name])
                target.write(file.readline())
        for position, writer in enumerate(self.writers):
            try:
                with errors_of(writer):
                    writer.finish(partial(self._records, position))
            except OSError as error:
                raise cannot_write(error.filename or "output", error) from error

    def _records(self, position: int) -> Iterator[Any]:
        for _, line in read_lines(self.manifest):
            if line["status"] == "ok" and (record := line["records"][position]) is not None:
                yield record
