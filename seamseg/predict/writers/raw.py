"""The outputs of the network as a file of tensors; the only format that needs torch."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.formats.metadata import Metadata
from seamseg.inference.photo_result import PhotoResult
from seamseg.predict.sources.base import Source
from seamseg.predict.writers.base import Writer
from seamseg.predictions import ArrayPrediction
from seamseg.utils.files import write_atomically


class RawWriter(Writer[PhotoResult]):
    """The outputs of a panoptic network: `<name>.pth.tar`, a dict of tensors in pixels of its input.

    sem_pred `H x W` uint8 classes, bbx_pred `K x 4`, cls_pred `K` int64 (0 is the first thing), obj_pred `K` scores,
    msk_pred `K x 28 x 28` logits, of queries `K x 112 x 112` (docs/contract.md, section 1 "Commands"); maps of custom
    heads under their names, `H x W` or `channels x H x W`.
    """

    needs_photo = False
    member = "raw.pth"

    def __init__(self, out: Path, metadata: Metadata) -> None:
        self.out = out

    def paths(self, source: Source) -> list[Path]:
        """Return `OUT/<name>.pth.tar`."""
        return [self.out / f"{source.name}.pth.tar"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: PhotoResult) -> None:
        """Write the tensors."""
        import torch  # the other formats do without

        content = {name: None if a is None else torch.from_numpy(a) for name, a in self.content(prediction).items()}
        buffer = BytesIO()
        torch.save(content, buffer)
        write_atomically(self.paths(source)[0], buffer.getvalue())

    def content(self, prediction: ArrayPrediction) -> dict[str, Any]:
        """Return the arrays of a file by name."""
        p = prediction.copy()
        return {"sem_pred": p.semantic} | _detections(p) | dict(p.maps)


class RawDetectionsWriter(RawWriter):
    """The same of a network for detection or instance segmentation, without sem_pred; msk_pred is None without masks.

    All are None where nothing was found, as in the original's files.
    """

    def content(self, prediction: ArrayPrediction) -> dict[str, Any]:
        """Return the arrays of a file by name."""
        p = prediction.copy()
        found = _detections(p)
        return (found if len(p.scores) else dict.fromkeys(found)) | dict(p.maps)


def _detections(p: ArrayPrediction) -> dict[str, Any]:
    return {"bbx_pred": p.boxes, "cls_pred": p.classes, "obj_pred": p.scores, "msk_pred": p.mask_logits}
