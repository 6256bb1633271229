"""What a format of `predict` must be able to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from seamseg.panoptic_map import PanopticResult
from seamseg.predict.sources.base import Source
from seamseg.structures import Prediction

Record = dict[str, Any]
"""What a format must know of a photo when all are done, as JSON: it is kept in the manifest"""

Records = Callable[[], Iterator[Record]]
"""Gives the records of all photos in the order of their names; may be called several times"""


class Writer(Protocol):
    """One format. Its methods may be called from several threads at a time."""

    needs_photo: bool
    """Whether :meth:`write` looks at the pixels of the photo"""

    @property
    def member(self) -> str | None:
        """What its one file is called behind the key of a photo in a tar shard; None for layouts that need folders."""

    def paths(self, source: Source) -> list[Path]:
        """The files that a photo gets, as far as they are known beforehand."""

    def write(
        self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult
    ) -> Record | None:
        """Write those files, each whole or not at all; what :meth:`finish` must know of them, if anything."""

    def finals(self) -> list[Path]:
        """The files that :meth:`finish` writes."""

    def finish(self, records: Records) -> None:
        """Called after the last photo, by the main process; `records` has what :meth:`write` returned of all photos.

        Photos that other processes, or earlier ones, have written are among them.
        """
