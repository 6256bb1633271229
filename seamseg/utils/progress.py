"""Progress of long work: a bar on a terminal, a plain line now and then elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_PLAIN_SECONDS = 15.0
"""Seconds between plain lines, so that a log file stays short."""

_quiet = False


class ProgressCallback(Protocol):
    """Wraps an iterable to show its progress, as :func:`progress` does."""

    def __call__(self, iterable: Iterable[Any], total: int | None = None, desc: str = "") -> Iterable[Any]:
        """Return the items of `iterable`."""


def set_quiet(quiet: bool) -> None:
    """Silence (or restore) the progress of this process."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    """Whether progress is silent in this process."""
    return _quiet


def progress(iterable: Iterable[T], total: int | None = None, desc: str = "") -> Iterator[T]:
    """Iterate over `iterable` and show how far it is, on stderr.

    Parameters
    ----------
    iterable : the work
    total : number of items, if `len(iterable)` does not say it
    desc : what is being done
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    if _quiet:
        yield from iterable
    elif sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(iterable, total=total, desc=desc, file=sys.stderr, dynamic_ncols=True)
    else:
        yield from _plain(iterable, total, desc)


def counter(desc: str = "") -> Callable[[int, int], None]:
    """Progress of work that reports `(done, total)` after each item."""
    shown: Iterator[int] | None = None

    def report(done: int, total: int) -> None:
        nonlocal shown
        if shown is None:
            shown = iter(progress(range(total - done + 1), desc=desc))
            next(shown, None)  # shows nothing yet: an item counts when the next one is asked for
        next(shown, None)

    return report


def _plain(iterable: Iterable[T], total: int | None, desc: str) -> Iterator[T]:
    start = last = time.monotonic()
    done = 0
    for item in iterable:
        yield item
        done += 1
        now = time.monotonic()
        if now - last >= _PLAIN_SECONDS or done == total:
            last = now
            print(_line(desc, done, total, now - start), file=sys.stderr, flush=True)
    if total is None and done:
        print(_line(desc, done, total, time.monotonic() - start), file=sys.stderr, flush=True)


def _line(desc: str, done: int, total: int | None, seconds: float) -> str:
    rate = done / max(seconds, 1e-9)
    left = f", {(total - done) / rate:.0f} s left" if total and done < total else ""
    return f"{desc + ': ' if desc else ''}{done}{f'/{total}' if total else ''} ({rate:.1f}/s{left})"
