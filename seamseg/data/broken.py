"""Training images that cannot be read: said, counted, and too many of them are an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from seamseg.errors import InputError


class BrokenSamples:
    """Counts the images of an epoch that others had to replace.

    Parameters
    ----------
    limit : part of the images of an epoch that may be broken
    images : of an epoch, in this process
    warn : is told of each file, once
    """

    def __init__(self, limit: float, images: int, warn: Callable[[str], None]) -> None:
        self.limit = limit
        self._warn = warn
        self._images = images
        self._known: set[str] = set()
        self._of_epoch: dict[str, str] = {}

    @property
    def count(self) -> int:
        """Broken images of the epoch so far"""
        return len(self._of_epoch)

    def begin_epoch(self) -> None:
        """Count anew."""
        self._of_epoch = {}

    def add(self, broken: Iterable[tuple[str, str]]) -> None:
        """Take in what a batch says, `(id, what was wrong)` each (:attr:`seamseg.structures.Batch.broken`).

        Raises
        ------
        InputError
            if more images of the epoch are broken than the limit allows
        """
        self._of_epoch.update(broken)
        if self.count > self.limit * self._images:
            first = list(self._of_epoch.values())[:3]
            more = f"; and {self.count - len(first)} more" if self.count > len(first) else ""
            raise InputError(
                f"{self.count} of the {self._images} training images of this epoch cannot be read, which is more than "
                f"[dataloader] broken_limit = {self.limit:g} allows: {'; '.join(first)}{more}"
            )
        for image, reason in self._of_epoch.items():
            if image not in self._known:
                self._known.add(image)
                self._warn(f"{reason}; another image takes its place")
