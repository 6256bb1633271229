"""What a format of `predict` must be able to do."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from seamseg.engine.distributed import World
from seamseg.engine.sources import Source
from seamseg.structures import PanopticResult, Prediction


class Writer(Protocol):
    """One format. Its methods may be called from several threads at a time."""

    needs_photo: bool
    """Whether :meth:`write` looks at the pixels of the photo"""

    def paths(self, source: Source) -> list[Path]:
        """The files that a photo gets, as far as they are known beforehand."""

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult) -> None:
        """Write those files, each whole or not at all."""

    def finish(self, world: World) -> None:
        """Called once after the last photo, by all processes together."""
