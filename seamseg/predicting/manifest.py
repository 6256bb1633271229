"""`predictions.jsonl`, the manifest: a line for each image that is done, by which an interrupted run is resumed.

The first line names the model and the settings. All processes append to the file; a line is written in one piece when
the outputs of its image are in place. So a kill or a full disk can tear only the last line of a process, which is no
line then: its image is processed again. At the end of a run the lines are sorted by name.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seamseg.utils.files import cannot_write
from seamseg.utils.limits import LINE_BYTES, open_file, parse_json

MANIFEST = "predictions.jsonl"
_FORMAT = 1
_SYNC_SECONDS = 2.0
"""Time between two fsyncs: the work that a power failure may cost; a kill costs nothing."""

Line = dict[str, Any]


Done = dict[str, tuple[str, str]]
"""The images that are done, by name: the path relative to the input, and the stamp of the file."""


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
    """Appends lines to the manifest, which exists; several threads and processes may do so at a time.

    `names` has the images with a line by this writer; True if it is done.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._synced = time.monotonic()

    def add(self, line: Line) -> None:
        """Append a line with at least `name` and `status`; SeamsegError if it cannot be written."""
        data = (json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n").encode()
        try:
            with self._lock:
                if (written := os.write(self._file, data)) < len(data):
                    os.write(self._file, data[written:])  # the disk is full: this raises the error
                self.names[line["name"]] = line["status"] == "ok"
                if time.monotonic() - self._synced > _SYNC_SECONDS:
                    os.fsync(self._file)
                    self._synced = time.monotonic()
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Close the file after an fsync."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            os.close(self._file)


def read_lines(path: Path) -> Iterator[tuple[int, Line]]:
    """Iterate over offset and content of each line after the first; torn and damaged ones are left out."""
    with open_file(path) as file:
        offset = len(file.readline(LINE_BYTES))
        while data := file.readline(LINE_BYTES):
            line = parse_line(data)
            if line is not None and _is_whole(line):
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
