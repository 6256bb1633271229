"""The outputs of the network before the fusion."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import torch

from seamseg.formats.metadata import Metadata
from seamseg.panoptic_map import PanopticResult
from seamseg.predict.sources.base import Source
from seamseg.predict.writers.base import Records
from seamseg.structures import Prediction
from seamseg.utils.files import write_atomically


class RawWriter:
    """What the network says before the fusion: `<name>.pth.tar`, a dict of tensors in pixels of the network's input.

    sem_pred `H x W` uint8 classes, bbx_pred `K x 4`, cls_pred `K` int64 (0 is the first thing), obj_pred `K` scores,
    msk_pred `K x 28 x 28` logits (SPEC section 1 "Commands").
    """

    needs_photo = False
    member = "raw.pth"

    def __init__(self, out: Path, metadata: Metadata) -> None:
        self.out = out

    def paths(self, source: Source) -> list[Path]:
        """`OUT/<name>.pth.tar`"""
        return [self.out / f"{source.name}.pth.tar"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: Prediction, result: PanopticResult) -> None:
        """Write it."""
        content = {
            "sem_pred": None if prediction.semantic is None else prediction.semantic.to(torch.uint8),
            "bbx_pred": prediction.boxes,
            "cls_pred": prediction.classes,
            "obj_pred": prediction.scores,
            "msk_pred": prediction.mask_logits,
        }
        # slices of a batch would be saved with the whole batch behind them
        content = {name: None if value is None else value.clone() for name, value in content.items()}
        buffer = BytesIO()
        torch.save(content, buffer)
        write_atomically(self.paths(source)[0], buffer.getvalue())

    def finals(self) -> list[Path]:
        """None"""
        return []

    def finish(self, records: Records) -> None:
        """Nothing is left to do."""
