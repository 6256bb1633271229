"""`predictions.jsonl`, the manifest: a line for each image that is done, by which an interrupted run is resumed.

The first line names the model and the settings. Each process appends to a file of its own, `predictions.rank<k>.jsonl`;
the main process merges them, in the order of the names, at the end of a run and at the start of the next. A line is
written in one piece when the outputs of its image are in place. So a kill can tear only the last line, which is then
ignored.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import cannot_write, replacing
from seamseg.utils.limits import LINE_BYTES, open_file, parse_json

MANIFEST = "predictions.jsonl"
_NAME = re.compile(r"predictions(?:\.rank\d+)?\.jsonl")
_FORMAT = 1
_SYNC_SECONDS = 2.0
"""Time between two fsyncs: the work that a power failure may cost; a kill costs nothing."""

Line = dict[str, Any]


@dataclass(frozen=True)
class Done:
    """An image that is done: its path relative to the input, and the stamp of its file."""

    relative: str
    stamp: str


def header(model: str, digest: str, settings: Mapping[str, Any]) -> Line:
    """Return the first line of a manifest: name and checksum of the model, and all settings that change the outputs."""
    return {"seamseg_predictions": _FORMAT, "model": model, "sha256": digest, "settings": dict(settings)}


def differences(old: Line, new: Line) -> list[str]:
    """Describe the differences of two headers; empty if a run may continue the other."""
    if old.get("seamseg_predictions") != new["seamseg_predictions"]:
        return [f"manifest format {old.get('seamseg_predictions')} (now {new['seamseg_predictions']})"]
    found = []
    if old.get("sha256") != new["sha256"]:
        same = " before it changed" if old.get("model") == new["model"] else f" (now {new['model']})"
        found.append(f"the model {old.get('model')}{same}")
    # through JSON, which makes lists of tuples
    before = old["settings"] if isinstance(old.get("settings"), dict) else {}
    now = json.loads(json.dumps(new["settings"]))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            found.append(f"{key} {before.get(key)} (now {now.get(key)})")
    return found


class ManifestWriter:
    """Appends lines to the file of a process; safe to use from several threads.

    Attributes
    ----------
    names : names of the images with a line by this writer; True for those that are done
    """

    def __init__(self, path: Path, head: Line) -> None:
        self.path = path
        self.names: dict[str, bool] = {}
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        except OSError as error:
            raise cannot_write(path, error) from error
        self._length = 0
        self._synced = time.monotonic()
        self._append(head)

    def add(self, line: Line) -> None:
        """Append a line with at least `name` and `status`.

        Raises
        ------
        SeamsegError
            if it cannot be written
        """
        with self._lock:
            self._append(line)
            self.names[line["name"]] = line["status"] == "ok"

    def _append(self, line: Line) -> None:
        data = (json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n").encode()
        try:
            written = os.write(self._file, data)
            if written < len(data):  # the disk is full: the next attempt raises the error
                written += os.write(self._file, data[written:])
            if written < len(data):
                raise OSError(28, "No space left on device")
            self._length += written
            if time.monotonic() - self._synced > _SYNC_SECONDS:
                os.fsync(self._file)
                self._synced = time.monotonic()
        except OSError as error:
            # further lines must not follow half a line
            os.ftruncate(self._file, self._length)
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Close the file after an fsync."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            os.close(self._file)


class ManifestFolder:
    """The manifests in the folder of the outputs, as the main process handles them.

    Parameters
    ----------
    out : folder of the outputs
    head : first line of the manifests of this run, see :func:`header`
    """

    def __init__(self, out: Path, head: Line) -> None:
        self.out = out
        self.head = head
        self.path = out / MANIFEST

    def rank_path(self, rank: int) -> Path:
        """Return the file of a process."""
        return self.out / f"predictions.rank{rank}.jsonl"

    def open_writer(self, rank: int) -> ManifestWriter:
        """Begin the file of a process."""
        return ManifestWriter(self.rank_path(rank), self.head)

    def exists(self) -> bool:
        """Return whether there is a manifest."""
        return bool(self._found())

    def begin(self, restart: bool = False) -> dict[str, Done]:
        """Merge the files of earlier runs.

        Parameters
        ----------
        restart : remove them instead

        Returns
        -------
        done : images whose outputs exist, by name

        Raises
        ------
        InputError
            if they are of another model or other settings
        SeamsegError
            if they cannot be read or written
        """
        paths = self._found()
        if restart:
            for path in paths:
                _unlink(path)
            return {}
        paths = [path for path in paths if self._belongs(path)]
        if paths and paths != [self.path]:
            self.merge()
        complete = (line for line in self.lines() if line["status"] == "ok" and self._is_complete(line))
        return {line["name"]: Done(line["relative"], line["stamp"]) for line in complete}

    def merge(self) -> None:
        """Merge the files of all processes, in the order of the names; the last line of an image counts."""
        paths = self._found()
        places: dict[str, tuple[int, int]] = {}
        with ExitStack() as stack:
            files = [stack.enter_context(open_file(path)) for path in paths]
            for number, path in enumerate(paths):
                for offset, line in _read(path, files[number]):
                    places[line["name"]] = number, offset
            with replacing(self.path) as temporary, open(temporary, "wb") as merged:
                merged.write((json.dumps(self.head, allow_nan=False) + "\n").encode())
                for name in sorted(places):
                    number, offset = places[name]
                    files[number].seek(offset)
                    merged.write(files[number].readline())
                merged.flush()
                os.fsync(merged.fileno())
        for path in paths:
            if path != self.path:
                _unlink(path)

    def lines(self) -> Iterator[Line]:
        """Iterate over the lines of the merged file."""
        if self.path.exists():
            with open_file(self.path) as file:
                for _, line in _read(self.path, file):
                    yield line

    def records(self, position: int) -> Callable[[], Iterator[Any]]:
        """Return an iterator factory over the records of the format at a position, see `writers.base.Records`."""

        def read() -> Iterator[Any]:
            for line in self.lines():
                if line["status"] == "ok" and (record := line["records"][position]) is not None:
                    yield record

        return read

    def _found(self) -> list[Path]:
        """Return existing files in the order in which their lines replace each other: the merged file first."""
        paths = [path for path in self.out.glob("predictions.*") if _NAME.fullmatch(path.name)]
        other = next((path for path in paths if not path.is_file()), None)
        if other is not None:
            raise InputError(f"{other}: not a file; remove it, or choose another folder")
        return sorted(paths, key=lambda path: (path != self.path, path.name))

    def _belongs(self, path: Path) -> bool:
        """Return whether a file has lines to keep; InputError if it is of another run."""
        with open_file(path) as file:
            first = file.readline(LINE_BYTES)
        head = _parsed(first)
        if head is None:
            if path.name == MANIFEST and first:
                raise InputError(f"{path}: not a manifest of `seamseg predict`; `restart=True` replaces it")
            # the process was killed before it had written the first line
            _unlink(path)
            return False
        if found := differences(head, self.head):
            raise InputError(
                f"{self.out}: holds predictions of another run: {', '.join(found)}; choose another folder, or start "
                "over with `restart=True`"
            )
        return True

    def _is_complete(self, line: Line) -> bool:
        try:
            sizes = {output: os.stat(self.out / output).st_size for output in line["outputs"]}
        except (OSError, ValueError):  # no file can have some names of another hand
            return False
        # a power failure can leave an empty file
        return all(size > 0 or output in line.get("empty", ()) for output, size in sizes.items())


def _read(path: Path, file: Any) -> Iterator[tuple[int, Line]]:
    """Iterate over offset and content of each line after the first, without a torn last one."""
    offset = len(file.readline(LINE_BYTES))
    while data := file.readline(LINE_BYTES):
        line = _parsed(data)
        if line is None or not _is_whole(line):
            if not data.endswith(b"\n") and len(data) < LINE_BYTES:
                return
            raise InputError(f"{path}: damaged at byte {offset}; `restart=True` starts over")
        yield offset, line
        offset += len(data)


def _is_whole(line: Line) -> bool:
    """Return whether a line, which may be of another hand, has all that a run reads of it, of the right types."""
    done = line.get("status") == "ok"
    outputs, empty = line.get("outputs", []), line.get("empty", [])
    return (
        (done or line.get("status") == "unreadable")
        and all(isinstance(line.get(key), str) for key in ("name", "relative", *(["stamp"] if done else [])))
        and all(isinstance(files, list) and all(isinstance(f, str) for f in files) for files in (outputs, empty))
        and (not done or ("outputs" in line and isinstance(line.get("records"), list)))
    )


def _parsed(data: bytes) -> Line | None:
    """Parse a line of a manifest; None if it is torn or not a line of a manifest."""
    if not data.endswith(b"\n"):
        return None
    try:
        content = parse_json(data)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise SeamsegError(f"{path}: cannot be removed: {error.strerror or error}") from error
