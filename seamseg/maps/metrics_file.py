"""`metrics.jsonl` of a run folder: every number of a training, one JSON object per line.

A line has `kind` (train or validation), `step`, `epoch` (from 0), `time` (seconds since 1970) and numbers; null where a
number is not finite. Each line is written at once, so that a killed run leaves at most one incomplete line.
"""

from __future__ import annotations

import json
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from seamseg.utils.errors import InputError
from seamseg.utils.files import cannot_write, write_atomically

METRICS_NAME = "metrics.jsonl"


class MetricsFile:
    """Writes the lines of a run; without a folder it does nothing. SeamsegError if the file cannot be written.

    A new run starts a new file. A run resumed after `(step, epoch)`, its last step and last finished epoch, keeps the
    lines up to there and atomically removes later ones, so that no step occurs twice.
    """

    def __init__(self, folder: Path | None, resumed: tuple[int, int] | None = None) -> None:
        self._file: IO[bytes] | None = None
        if folder is None:
            return
        path = folder / METRICS_NAME
        kept = []
        if resumed is not None and path.exists():
            step, epoch = resumed
            # the validation of an unfinished epoch is repeated, at the same step
            kept = [
                m
                for m in read_metrics(path)
                if m["step"] <= step and (m["kind"] != "validation" or m["epoch"] <= epoch)
            ]
        write_atomically(path, b"".join(json.dumps(m).encode() + b"\n" for m in kept))
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise cannot_write(path, error) from error

    def write(self, kind: str, step: int, epoch: int, values: dict[str, Any]) -> None:
        """Append a line. A full disk loses lines here; it stops the training when a snapshot is written."""
        if self._file is None:
            return
        content = {"kind": kind, "step": step, "epoch": epoch, "time": round(time.time(), 3), **values}
        with suppress(OSError):
            self._file.write(json.dumps(_finite(content), allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        """Close the file and discard all further lines."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Read the complete lines of a `metrics.jsonl`, or of the one in a run folder; InputError if there is none."""
    path = Path(path)
    path = path / METRICS_NAME if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"{path}: no such file (metrics of a training)")
    metrics: list[dict[str, Any]] = []
    # text after the last line break is incomplete, even if it happens to be valid JSON
    for line in path.read_bytes().split(b"\n")[:-1]:
        with suppress(ValueError):  # written in part: the disk was full
            metrics.append(json.loads(line))
    return metrics


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
