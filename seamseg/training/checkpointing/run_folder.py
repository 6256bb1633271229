"""The folder of a training run: what `--resume` and `predict` find there."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from seamseg.checkpoints.bundle import CONFIG_NAME, METADATA_NAME
from seamseg.checkpoints.snapshot import fsync_folder, verify_snapshot
from seamseg.config import Config, config_to_string
from seamseg.formats.metadata import Metadata, write_metadata
from seamseg.training.logging.logs import LOG_NAME, TextLog
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import PARTIAL, replacing, write_atomically

LAST_NAME = "model_last.pth.tar"
BEST_NAME = "model_best.pth.tar"
SNAPSHOTS = "snapshots"
DUMPS = "dump-step-*.pth.tar"

_STEP_NAME = re.compile(r"step-(\d+)\.pth\.tar")


@dataclass(frozen=True)
class RunFolder:
    """`model_last.pth.tar`, `model_best.pth.tar`, `config.ini`, `metadata.bin`, logs and dumps.

    The newest snapshots are in `snapshots/step-N.pth.tar`; the first two are other names of two of them. Logs are
    `training.log`, `metrics.jsonl` and TensorBoard files; a step that went wrong leaves `dump-step-N.pth.tar`. It stays
    until somebody deletes it: it holds all that is needed to look into it, whatever became of the run.
    """

    path: Path

    @property
    def last(self) -> Path:
        """The newest snapshot"""
        return self.path / LAST_NAME

    @property
    def best(self) -> Path:
        """Snapshot of the best epoch"""
        return self.path / BEST_NAME

    def step_path(self, step: int) -> Path:
        """Snapshot after a global step"""
        return self.path / SNAPSHOTS / f"step-{step:08d}.pth.tar"

    def saved(self) -> list[tuple[int, Path]]:
        """Step and path of the snapshots there are, newest first."""
        try:
            entries = list((self.path / SNAPSHOTS).iterdir())
        except OSError:
            return []
        named = ((_STEP_NAME.fullmatch(entry.name), entry) for entry in entries)
        return sorted(((int(match[1]), entry) for match, entry in named if match), reverse=True)

    def make(self) -> None:
        """Make the folder; SeamsegError if it cannot be made."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SeamsegError(f"{self.path}: cannot make the run folder: {error.strerror}") from error

    def discard(self) -> None:
        """Remove the folder of a run that was refused before it began: it holds a log at most."""
        with suppress(OSError):
            if all(entry.name == LOG_NAME for entry in self.path.iterdir()):
                (self.path / LOG_NAME).unlink(missing_ok=True)
                self.path.rmdir()

    def remove_partial(self) -> None:
        """Remove what killed processes were writing here."""
        for folder in (self.path, self.path / SNAPSHOTS):
            for stale in folder.glob(f".*{PARTIAL}"):
                with suppress(OSError):
                    stale.unlink()

    def describe(self, config: Config, metadata: Metadata, log: TextLog, resumed: bool) -> None:
        """Write the configuration and the classes, so that the folder is a model."""
        if not resumed and (self.last.exists() or self.best.exists() or self.saved()):
            log.warning(
                f"{self.path} holds snapshots of an earlier run; this run replaces them with its first one "
                "(--resume continues a run)"
            )
        dumps = len(list(self.path.glob(DUMPS)))
        if dumps:
            log.info(f"{self.path} holds {dumps} {DUMPS} of earlier trainings; they stay until you delete them")
        write_atomically(self.path / CONFIG_NAME, config_to_string(config).encode())
        write_metadata(self.path / METADATA_NAME, metadata.without_images())

    def publish(self, snapshot: Path, name: Path) -> None:
        """Give a snapshot another name as well: a hard link, a copy where the file system has none.

        Raises
        ------
        SeamsegError
            if it cannot be written
        """
        with replacing(name) as temporary:
            try:
                os.link(snapshot, temporary)
            except OSError:
                shutil.copyfile(snapshot, temporary)
                with open(temporary, "rb+") as file:
                    os.fsync(file.fileno())
        fsync_folder(name.parent)

    def prune(self, step: int, keep: int) -> None:
        """Keep the newest snapshots up to a step; later ones were abandoned when the run went on from an earlier."""
        saved = self.saved()
        kept = [path for number, path in saved if number <= step][:keep]
        for _, path in saved:
            if path not in kept:
                path.unlink(missing_ok=True)

    def newest_good(self, warn: Callable[[str], None]) -> Path | None:
        """The newest snapshot without damage; a line to `warn` for each that has some. None if there is no snapshot.

        Raises
        ------
        InputError
            if all are damaged
        """
        candidates = [path for _, path in self.saved()]
        if self.last.exists() and not any(path.samefile(self.last) for path in candidates):
            # of an earlier release, or a copy
            candidates.append(self.last)
        for path in candidates:
            try:
                verify_snapshot(path)
                return path
            except InputError as error:
                warn(f"left out: {error}")
        if candidates:
            raise InputError(
                f"{self.path}: all {len(candidates)} snapshots are damaged; name another one with --resume F, "
                "or start anew without --resume"
            )
        return None
