"""The run folder of a training: its files, and the snapshots that a background thread writes to it."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seamseg.checkpoints.model_path import CONFIG_NAME, METADATA_NAME, WEIGHTS_NAME
from seamseg.checkpoints.snapshot import (
    Snapshot,
    parse_snapshot,
    snapshot_content,
    write_tensors,
)
from seamseg.config import Config, config_to_string
from seamseg.maps.formats.metadata import Metadata, write_metadata
from seamseg.maps.metrics_file import METRICS_NAME
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import replacing, write_atomically

LAST_NAME = "model_last.pth.tar"
BEST_NAME = "model_best.pth.tar"
LOG_NAME = "training.log"
SNAPSHOTS = "snapshots"
AUTO = "auto"
"""The value of `resume` that selects the newest snapshot of the run folder."""
LOCK_NAME = ".lock"

_STEP_NAME = re.compile(r"step-(\d+)\.pth\.tar")


@dataclass(frozen=True)
class RunFolder:
    """`model_last.pth.tar`, `model_best.pth.tar`, `config.ini`, `metadata.bin`, logs and TensorBoard files.

    The newest snapshots are `snapshots/step-N.pth.tar`; `model_last` and `model_best` are links to two of them. Logs
    are `training.log`, or one of each process with `{rank}` in `log_name`, and `metrics.jsonl`. `content` returns what
    the file of a snapshot holds, `parse` the snapshot from the content and the name of a file.
    """

    path: Path
    last_name: str = LAST_NAME
    best_name: str = BEST_NAME
    log_name: str = LOG_NAME
    content: Callable[[Snapshot], Any] = snapshot_content
    parse: Callable[[Any, str], Snapshot] = parse_snapshot

    @property
    def last(self) -> Path:
        """The newest snapshot."""
        return self.path / self.last_name

    @property
    def best(self) -> Path:
        """The snapshot of the best epoch."""
        return self.path / self.best_name

    def step_path(self, step: int) -> Path:
        """Return the path of the snapshot after a global step."""
        return self.path / SNAPSHOTS / f"step-{step:08d}.pth.tar"

    def saved(self) -> list[tuple[int, Path]]:
        """Return step and path of the existing snapshots, newest first."""
        try:
            entries = list((self.path / SNAPSHOTS).iterdir())
        except OSError:
            return []
        named = ((_STEP_NAME.fullmatch(entry.name), entry) for entry in entries)
        return sorted(((int(match[1]), entry) for match, entry in named if match), reverse=True)

    def refuse_other(self, resume: str | Path | None, restart: bool) -> None:
        """Raise InputError if the folder holds a training that would be replaced, or a converted model or data set."""
        # a converted model, or a data set, whose metadata.bin would be replaced
        for name in (WEIGHTS_NAME, "lst"):
            if (self.path / name).exists():
                raise InputError(f"{self.path}: holds other files ({name}): choose a new folder")
        here = self.path.resolve()
        if restart or (resume is not None and (resume == AUTO or Path(resume).resolve().is_relative_to(here))):
            return
        metrics = self.path / METRICS_NAME
        held = [path for path in (self.last, self.best, *(path for _, path in self.saved()), metrics) if path.exists()]
        if held and (held[0] != metrics or metrics.stat().st_size):
            raise InputError(
                f"{self.path}: holds a training ({held[0].name}); use `restart=True` to overwrite it, or "
                f"`resume={AUTO}` to continue it"
            )

    def describe(self, config: Config, metadata: Metadata) -> None:
        """Write the configuration and the classes, which make the folder usable as a model."""
        write_atomically(self.path / CONFIG_NAME, config_to_string(config).encode())
        write_metadata(self.path / METADATA_NAME, replace(metadata, images=[]))

    def publish(self, snapshot: Path, name: Path) -> None:
        """Give a snapshot a second name: a hard link, or a copy if the file system has no links."""
        with replacing(name) as temporary:
            try:
                os.link(snapshot, temporary)
            except OSError:
                shutil.copyfile(snapshot, temporary)
                with open(temporary, "rb+") as file:
                    os.fsync(file.fileno())

    def prune(self, step: int, keep: int) -> None:
        """Keep the newest snapshots up to a step; later ones were abandoned when the run resumed at an earlier step."""
        saved = self.saved()
        kept = [path for number, path in saved if number <= step][:keep]
        for _, path in saved:
            if path not in kept:
                path.unlink(missing_ok=True)

    def newest(self) -> Path | None:
        """Return the newest snapshot; None if there is none. That of the original is `last`."""
        return next((path for _, path in self.saved()), self.last if self.last.exists() else None)


class SnapshotWriter:
    """Writes snapshots in a background thread; in a `fresh` run those of another run are then removed."""

    def __init__(self, run: RunFolder, keep: int, fresh: bool) -> None:
        self.run = run
        self.keep = keep
        self._fresh = fresh
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def save(self, snapshot: Snapshot, step: int, best: bool = False, forget_best: bool = False) -> None:
        """Start to write, after the previous snapshot; the tensors must not change afterwards."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(snapshot, step, best, forget_best), name="saver")
        self._thread.start()

    def check(self) -> None:
        """Raise the SeamsegError of a failed write, without waiting."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait for the current write; errors as :meth:`check`."""
        self.close()
        self.check()

    def close(self) -> None:
        """Wait for the current write without raising its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, snapshot: Snapshot, step: int, best: bool, forget_best: bool) -> None:
        path = self.run.step_path(step)
        try:
            write_tensors(path, self.run.content(snapshot))
            self.run.publish(path, self.run.last)
            if best:
                self.run.publish(path, self.run.best)
            elif forget_best:
                self.run.best.unlink(missing_ok=True)
            # last, so that a failure leaves the older snapshots; two, since the weights of the newest may have diverged
            self.run.prune(step, 1 if self._fresh else max(self.keep, 2))
            self._fresh = False
        except SeamsegError as error:
            self._error = error
        except Exception as error:
            self._error = SeamsegError(f"{path}: cannot be written: {error}")
