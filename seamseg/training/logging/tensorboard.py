"""TensorBoard files of a training, as a callback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seamseg.config.components import register
from seamseg.config.sections import key
from seamseg.training.callbacks import Callback, Run
from seamseg.utils.errors import SeamsegError


@dataclass(frozen=True)
class TensorBoardKeys:
    """Keys of the section [callback tensorboard]."""

    enabled: bool = key("write the files", True)


@register("callback", "tensorboard", keys=TensorBoardKeys)
class TensorBoard(Callback):
    """Write TensorBoard files into the run folder; part of every training unless `enabled` is no.

    Parameters
    ----------
    keys : see :class:`TensorBoardKeys`
    """

    def __init__(self, keys: Any = TensorBoardKeys()) -> None:
        super().__init__(keys)
        self.enabled = keys.enabled
        self._writer: Any = None

    def begin(self, run: Run) -> None:
        """Open the files and write the configuration; entries of an earlier run after a resumed step are hidden."""
        try:
            # takes a second to import
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            advice = "install it with `pip install tensorboard`"
            raise SeamsegError(f"no TensorBoard files are written: {error}; {advice}") from error
        self._writer = SummaryWriter(str(run.folder), purge_step=run.step + 1 if run.resumed else None)
        indented = "\n".join("    " + line for line in run.config.splitlines())
        self._writer.add_text("config", indented, 0)

    def scalars(self, run: Run, values: Mapping[str, float]) -> None:
        """Write numbers by tag."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, run.step)

    def image(self, run: Run, tag: str, rgb: np.ndarray) -> None:
        """Write an image."""
        self._writer.add_image(tag, rgb, run.step, dataformats="HWC")

    def histogram(self, run: Run, tag: str, values: np.ndarray) -> None:
        """Write the distribution of an array."""
        self._writer.add_histogram(tag, values, run.step)

    def end(self, run: Run, status: str) -> None:
        """Flush and close the files."""
        self._writer.close()
