"""`predictions.jsonl`, the manifest: a line for each image that is done, by which an interrupted run is resumed.

The first line names the model and the settings. Each process appends to a file of its own, `predictions.rank<k>.jsonl`;
the main process merges them, in the order of the names, at the end of a run and at the start of the next. A line is
written in one piece when the outputs of its image are in place. So a kill can tear only the last line, which is then
ignored.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seamseg.utils.errors import InputError
from seamseg.utils.files import cannot_write
from seamseg.utils.limits import LINE_BYTES, parse_json

MANIFEST = "predictions.jsonl"
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
    """Appends lines to the file of a process; several threads may use it.

    `names` has the images with a line by this writer; True if it is done.
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
        """Append a line with at least `name` and `status`; SeamsegError if it cannot be written."""
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


def read_lines(path: Path, file: Any) -> Iterator[tuple[int, Line]]:
    """Iterate over offset and content of each line after the first, without a torn last one."""
    offset = len(file.readline(LINE_BYTES))
    while data := file.readline(LINE_BYTES):
        line = parse_line(data)
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


def parse_line(data: bytes) -> Line | None:
    """Parse a line of a manifest; None if it is torn or no line of a manifest."""
    if not data.endswith(b"\n"):
        return None
    try:
        content = parse_json(data)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
