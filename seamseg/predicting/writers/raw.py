"""The outputs of the network: as a file of tensors, the only format that needs torch, and maps of custom heads."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.config.components import register
from seamseg.inference.results.base import ImageResult
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.panoptic_map import PanopticResult
from seamseg.maps.predictions import ArrayPrediction, MapFormat
from seamseg.maps.visualize.maps import encode_map
from seamseg.predicting.source import Source
from seamseg.predicting.writers.base import OutputFormat
from seamseg.utils.files import write_atomically


@register("format", "raw")
class RawWriter(OutputFormat[ImageResult]):
    """The outputs of the network: `<name>.pth.tar`, a dict of tensors in pixels of its input.

    sem_pred `H x W` uint8 classes, bbx_pred `K x 4`, cls_pred `K` int64 (0 is the first thing), obj_pred `K` scores,
    msk_pred `K x 28 x 28` logits, of queries `K x 112 x 112` (docs/contract.md, section 1 "Commands"); maps of custom
    heads under their names, `H x W` or `channels x H x W`. For detection and instance segmentation without sem_pred;
    msk_pred is None without masks, and all are None where nothing was found, as in the original's files.
    """

    kinds = ("panoptic", "instance_seg", "detection")
    all_classes = True

    def paths(self, source: Source) -> list[Path]:
        """Return `OUT/<name>.pth.tar`."""
        return [self.out / f"{source.name}.pth.tar"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: ImageResult) -> None:
        """Write the tensors."""
        import torch  # the other formats do without

        p = prediction.copy()
        arrays: dict[str, Any] = {"bbx_pred": p.boxes, "cls_pred": p.classes, "obj_pred": p.scores}
        arrays["msk_pred"] = p.mask_logits
        if isinstance(result, PanopticResult):
            arrays = {"sem_pred": p.semantic} | arrays
        elif not len(p.scores):
            arrays = dict.fromkeys(arrays)
        arrays |= p.maps
        content = {name: None if a is None else torch.from_numpy(a) for name, a in arrays.items()}
        buffer = BytesIO()
        torch.save(content, buffer)
        write_atomically(self.paths(source)[0], buffer.getvalue())


class MapWriter(OutputFormat[ImageResult]):
    """A map at the size of the image: `<name>_<map>.png`, grey, 8 or 16 bits, or RGB of a map of three channels.

    A map that a PNG cannot hold is `<name>_<map>.npy`, the values as float32 `channels x H x W`.
    """

    def __init__(self, out: Path, metadata: Metadata, name: str, spec: MapFormat) -> None:
        super().__init__(out, metadata)
        self.name, self.spec = name, spec

    def paths(self, source: Source) -> list[Path]:
        """Return `OUT/<name>_<map>.png`, or `.npy`."""
        return [self.out / f"{source.name}_{self.name}{self.spec.ending}"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: ImageResult) -> None:
        """Resize and write the map."""
        content = encode_map(prediction.maps[self.name], self.spec, result.size)
        write_atomically(self.paths(source)[0], content)
