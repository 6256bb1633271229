"""The text log and the TensorBoard files of a run folder, and the format of their entries."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from seamseg.training.checkpointing.run_folder import LOG_NAME
from seamseg.utils.errors import SeamsegError

_logger = logging.getLogger("seamseg")


class TextLog:
    """Writes lines to the console and, with a timestamp, to `training.log` in the run folder.

    Only the main process enables it; on the others it does nothing.

    Parameters
    ----------
    folder : existing run folder; None for no file
    quiet : show only warnings on the console
    enabled : False for a log that does nothing
    name : of the file
    console : write to the console
    """

    def __init__(
        self, folder: Path | None, quiet: bool = False, enabled: bool = True, name: str = LOG_NAME, console: bool = True
    ) -> None:
        self._handlers: list[logging.Handler] = []
        self.enabled = enabled
        if not enabled:
            return
        if console:
            stream = logging.StreamHandler(sys.stderr)
            stream.setLevel(logging.WARNING if quiet else logging.INFO)
            stream.setFormatter(logging.Formatter("%(message)s"))
            self._handlers.append(stream)
        if folder is not None:
            try:
                file = logging.FileHandler(folder / name, encoding="utf-8")
            except OSError as error:
                raise SeamsegError(f"{folder / name}: cannot write: {error.strerror}") from error
            file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
            self._handlers.append(file)
        _logger.setLevel(logging.INFO)
        _logger.propagate = False
        for handler in self._handlers:
            # a full disk is reported by the writer of snapshots; without this each log line would print a traceback
            handler.handleError = lambda record: None  # type: ignore[method-assign]
            _logger.addHandler(handler)

    def info(self, message: str) -> None:
        """Log an informational message."""
        if self.enabled:
            _logger.info(message)

    def warning(self, message: str) -> None:
        """Log a warning."""
        if self.enabled:
            _logger.warning(message)

    def failure(self, message: str) -> None:
        """Log an error to the file only: the command line prints errors itself."""
        record = _logger.makeRecord(_logger.name, logging.ERROR, "", 0, message, (), None)
        for handler in self._handlers:
            if isinstance(handler, logging.FileHandler):
                handler.handle(record)

    def close(self) -> None:
        """Close the file and discard all further messages."""
        for handler in self._handlers:
            _logger.removeHandler(handler)
            handler.close()
        self._handlers = []
        self.enabled = False


class TensorBoardWriter:
    """Writes TensorBoard files in the main process; without TensorBoard, or on other processes, it does nothing.

    Parameters
    ----------
    folder : run folder; None for no files
    purge_step : for a resumed run: hide the entries of an earlier run from this step on
    log : for a warning if TensorBoard is not installed
    """

    def __init__(self, folder: Path | None, purge_step: int | None = None, log: TextLog | None = None) -> None:
        self._writer: Any = None
        if folder is None:
            return
        try:
            # takes a second to import
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            if log is not None:
                log.warning(f"no TensorBoard files are written: {error}; install it with `pip install tensorboard`")
            return
        self._writer = SummaryWriter(str(folder), purge_step=purge_step)

    @property
    def active(self) -> bool:
        """Whether entries are written."""
        return self._writer is not None

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers by tag."""
        if self._writer is not None:
            for tag, value in values.items():
                self._writer.add_scalar(tag, value, step)

    def image(self, tag: str, rgb: np.ndarray, step: int) -> None:
        """Write an `H x W x 3` uint8 image."""
        if self._writer is not None:
            self._writer.add_image(tag, rgb, step, dataformats="HWC")

    def histograms(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Write the distribution of the values of tensors by tag."""
        if self._writer is not None:
            for tag, tensor in tensors.items():
                self._writer.add_histogram(tag, tensor.detach().float().cpu(), step)

    def text(self, tag: str, text: str) -> None:
        """Write preformatted text."""
        if self._writer is not None:
            indented = "\n".join("    " + line for line in text.splitlines())
            self._writer.add_text(tag, indented, 0)

    def close(self) -> None:
        """Flush and close the files."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def duration(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds, such as 1:02:03."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def remaining(seconds: float, now: float | None = None) -> str:
    """Format a remaining time, with the expected end if that is more than an hour away.

    Parameters
    ----------
    seconds : remaining time
    now : current time in seconds since 1970; None for the clock
    """
    if seconds <= 3600:
        return duration(seconds)
    end = time.localtime((time.time() if now is None else now) + seconds)
    return f"{duration(seconds)} (until {time.strftime('%d %b %H:%M', end)})"


_GROUPS = {
    "lr_norm": "lr/norm",
    "lr_other": "lr/other",
    "step_seconds": "time/step",
    "data_seconds": "time/data",
    "data_share": "time/data_share",
    "images_per_second": "time/images_per_second",
    "rss_peak_gib": "memory/rss_peak_gib",
    "allocated_peak_gib": "memory/allocated_peak_gib",
    "reserved_peak_gib": "memory/reserved_peak_gib",
}


def train_tag(name: str) -> str:
    """Return the TensorBoard tag of the number `name` in `metrics.jsonl`."""
    return _GROUPS.get(name, f"train/{name}")
