"""Progress of long work on stderr: a bar on a terminal, plain lines elsewhere, nothing if quiet."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from threading import RLock
from typing import Any, TypeVar

from tqdm import tqdm

from seamseg.utils.errors import one_line
from seamseg.utils.output import console, echo

T = TypeVar("T")

LINE_SECONDS = 15.0
"""Seconds between plain lines, so that a log file stays short."""

ProgressCallback = Callable[[Iterable[Any], int | None, str], Iterable[Any]]
"""Wraps an iterable, with its length and a description, as :func:`progress` does."""


def no_progress(iterable: Iterable[Any], total: int | None = None, desc: str = "") -> Iterable[Any]:
    """Return the iterable; shows no progress."""
    return iterable


def progress(iterable: Iterable[T], total: int | None = None, desc: str = "") -> Iterator[T]:
    """Iterate over `iterable` and show the progress on stderr; `total` is the number of items, default its length."""
    return iter(iterable if console.quiet else bar(iterable, total, desc))


def counter(desc: str = "") -> Callable[[int, int], None]:
    """Return a function that shows the progress of work which reports `(done, total)` after each item."""
    shown: tqdm | None = None

    def report(done: int, total: int) -> None:
        nonlocal shown
        if console.quiet:
            return
        if shown is None:
            shown = bar(None, total, desc, initial=done - 1)
        shown.update(done - shown.n)
        if done >= total:
            shown.close()

    return report


class _Lines(tqdm):
    """A bar that is printed as a line of its own each time, and once more at the end."""

    monitor_interval = 0  # no thread: with miniters=1 the time is compared after each item
    _shown = 0

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Print a line."""
        self._shown = self.n
        rate = (self.n - self.initial) / max(self.format_dict["elapsed"], 1e-9)
        is_partial = bool(self.total and rate) and self.n < self.total
        left = f", {(self.total - self.n) / rate:.0f} s left" if is_partial else ""
        label, total = f"{self.desc}: " if self.desc else "", f"/{self.total}" if self.total else ""
        echo(f"{label}{self.n}{total} ({rate:.1f}/s{left})", file=self.fp, flush=True)
        return True

    def close(self) -> None:
        """Print the last line of work that was finished."""
        if not self.disable:
            if self.n > self._shown and self.total in (None, self.n):
                self.display()
            self.last_print_t = self.start_t  # as if nothing had been displayed that must be cleared
        super().close()


_Lines.set_lock(RLock())  # the default is a semaphore shared between processes


def bar(iterable: Iterable[Any] | None, total: int | None, desc: str, initial: int = 0) -> tqdm:
    """Return a context manager that shows progress on stderr; threads call its `update()` under its `get_lock()`."""
    options: dict[str, Any] = {"total": total, "desc": one_line(desc), "initial": initial, "file": sys.stderr}
    if sys.stderr.isatty():
        return tqdm(iterable, dynamic_ncols=True, **options)
    return _Lines(iterable, mininterval=LINE_SECONDS, miniters=1, delay=LINE_SECONDS, **options)
