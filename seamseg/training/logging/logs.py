"""The text log of a run folder, and the format of its entries and of tags."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from seamseg.utils.errors import SeamsegError
from seamseg.utils.output import make_printable

_logger = logging.getLogger("seamseg")


class TextLog:
    """Writes lines to the console and, with a timestamp, to a file; to neither in most processes.

    `quiet` shows only warnings on the console.
    """

    def __init__(self, path: Path | None, quiet: bool = False, console: bool = True) -> None:
        self._handlers: list[logging.Handler] = []
        if console:
            stream = logging.StreamHandler(sys.stderr)
            stream.setLevel(logging.WARNING if quiet else logging.INFO)
            self._handlers.append(make_printable(stream))
        if path is not None:
            try:
                file = logging.FileHandler(path, encoding="utf-8")
            except OSError as error:
                raise SeamsegError(f"{path}: cannot write: {error.strerror}") from error
            self._handlers.append(make_printable(file, "%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        _logger.setLevel(logging.INFO)
        _logger.propagate = False
        for handler in self._handlers:
            # a full disk is reported by the writer of snapshots; without this each log line would print a traceback
            handler.handleError = lambda record: None  # type: ignore[method-assign]
            _logger.addHandler(handler)

    @property
    def enabled(self) -> bool:
        """Whether messages are shown or written."""
        return bool(self._handlers)

    def info(self, message: str) -> None:
        """Log an informational message."""
        if self.enabled:
            _logger.info(message)

    def progress(self, message: str) -> None:
        """Show an informational message on the console only."""
        self._handle(logging.INFO, message, in_file=False)

    def warning(self, message: str) -> None:
        """Log a warning."""
        if self.enabled:
            _logger.warning(message)

    def failure(self, message: str) -> None:
        """Log an error to the file only: the command line prints errors itself."""
        self._handle(logging.ERROR, message, in_file=True)

    def _handle(self, level: int, message: str, in_file: bool) -> None:
        record = _logger.makeRecord(_logger.name, level, "", 0, message, (), None)
        for handler in self._handlers:
            if isinstance(handler, logging.FileHandler) == in_file and level >= handler.level:
                handler.handle(record)

    def close(self) -> None:
        """Close the file and discard all further messages."""
        for handler in self._handlers:
            _logger.removeHandler(handler)
            handler.close()
        self._handlers = []


def duration(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds, such as 1:02:03."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


_GROUPS = {
    "lr_norm": "lr/norm",
    "lr_other": "lr/other",
    "step_seconds": "time/step",
    "data_seconds": "time/data",
    "data_share": "time/data_share",
    "images_per_second": "time/images_per_second",
    "seconds_left": "time/seconds_left",
    "rss_peak_gib": "memory/rss_peak_gib",
    "allocated_peak_gib": "memory/allocated_peak_gib",
    "reserved_peak_gib": "memory/reserved_peak_gib",
}


def train_tag(name: str) -> str:
    """Return the TensorBoard tag of the number `name` in `metrics.jsonl`."""
    return _GROUPS.get(name, f"train/{name}")
