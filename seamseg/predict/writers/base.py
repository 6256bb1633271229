"""The interface of an output format of `predict`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from seamseg.inference.photo_result import PhotoResult
from seamseg.predict.sources.base import Source
from seamseg.predictions import ArrayPrediction

Record = dict[str, Any]
"""What a format stores in the manifest for a photo, as JSON."""

Records = Callable[[], Iterator[Record]]
"""Iterates over the records of all photos in the order of their names; may be called several times."""


R = TypeVar("R", bound=PhotoResult, contravariant=True)


class Writer(Protocol[R]):
    """An output format for results of type `R`. Its methods may be called from several threads at a time.

    Attributes
    ----------
    needs_photo : whether :meth:`write` needs the pixels of the photo
    kinds : kinds of networks whose results a custom format holds
    member : ending of its file in a tar shard, after the key of the photo; None for formats with several folders, ""
        for those without a file of each photo
    """

    needs_photo: bool
    member: str | None
    kinds: tuple[str, ...] = ()

    def paths(self, source: Source) -> list[Path]:
        """Return the files of a photo, as far as they are known in advance."""

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: R) -> Record | None:
        """Write the files of a photo, each atomically, and return what :meth:`finish` needs of it, if anything."""

    def finals(self) -> list[Path]:
        """Return the files that :meth:`finish` writes."""
        return []

    def finish(self, records: Records) -> None:
        """Write files about all photos; called by the main process after the last one.

        Parameters
        ----------
        records : what :meth:`write` returned for each photo, in this run or an earlier one, in any process
        """
        return
