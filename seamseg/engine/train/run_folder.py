"""The folder of a training run: what `--resume` and `predict` find there."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from seamseg.config import Config, config_to_string
from seamseg.data.metadata import Metadata, write_metadata
from seamseg.engine.model_file import CONFIG_NAME, METADATA_NAME
from seamseg.engine.train.logs import LOG_NAME, TextLog
from seamseg.errors import SeamsegError
from seamseg.files import write_atomically

LAST_NAME = "model_last.pth.tar"
BEST_NAME = "model_best.pth.tar"


@dataclass(frozen=True)
class RunFolder:
    """`model_last.pth.tar`, `model_best.pth.tar`, `config.ini`, `metadata.bin`, the text log and TensorBoard files."""

    path: Path

    @property
    def last(self) -> Path:
        """Snapshot of the last epoch"""
        return self.path / LAST_NAME

    @property
    def best(self) -> Path:
        """Snapshot of the best epoch"""
        return self.path / BEST_NAME

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

    def describe(self, config: Config, metadata: Metadata, log: TextLog, resumed: bool) -> None:
        """Write the configuration and the classes, so that the folder is a model."""
        if not resumed and (self.last.exists() or self.best.exists()):
            log.warning(
                f"{self.path} holds snapshots of an earlier run; this run replaces them from its first epoch on "
                "(--resume continues a run)"
            )
        write_atomically(self.path / CONFIG_NAME, config_to_string(config).encode())
        write_metadata(self.path / METADATA_NAME, metadata.without_images())
