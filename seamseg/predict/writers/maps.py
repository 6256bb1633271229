"""The output maps of custom heads as images."""

from __future__ import annotations

import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.formats.metadata import Metadata
from seamseg.idmaps.resize import resize_nearest
from seamseg.inference.photo_result import PhotoResult
from seamseg.predict.sources.base import Source
from seamseg.predict.writers.base import Writer
from seamseg.predictions import ArrayPrediction, MapFormat
from seamseg.utils.errors import InputError
from seamseg.utils.files import write_atomically


class MapWriter(Writer[PhotoResult]):
    """A map at the size of the photo: `<name>_<map>.png`, grey, 8 or 16 bits, or RGB of a map of three channels.

    Parameters
    ----------
    out, metadata : as of all formats
    name, spec : of the map

    Raises
    ------
    InputError
        if a PNG cannot hold the channels
    """

    needs_photo = False

    def __init__(self, out: Path, metadata: Metadata, name: str, spec: MapFormat) -> None:
        if spec.channels not in (1, 3) or (spec.channels == 3 and spec.bits == 16):
            raise InputError(
                f"`formats={name}`: a PNG holds one channel, or three of 8 bits, not {spec.channels} of {spec.bits}"
            )
        self.out, self.name, self.spec = out, name, spec
        self.member = f"{name}.png"

    def paths(self, source: Source) -> list[Path]:
        """Return `OUT/<name>_<map>.png`."""
        return [self.out / f"{source.name}_{self.name}.png"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: PhotoResult) -> None:
        """Resize and write the map."""
        height, width = result.size
        values = prediction.maps[self.name]
        if self.spec.resize == "nearest":
            full = resize_nearest(values, (height, width))
        else:
            planes = values.reshape(-1, *values.shape[-2:]).astype(np.float32)
            full = np.stack(
                [np.asarray(Image.fromarray(x).resize((width, height), Image.Resampling.BILINEAR)) for x in planes]
            ).reshape(*values.shape[:-2], height, width)
        most = 2**self.spec.bits - 1
        pixels = np.clip(np.rint(full * self.spec.scale), 0, most).astype(np.uint8 if most == 255 else np.uint16)
        buffer = BytesIO()
        Image.fromarray(pixels if pixels.ndim == 2 else pixels.transpose(1, 2, 0)).save(
            buffer, "PNG", compress_type=zlib.Z_RLE
        )
        write_atomically(self.paths(source)[0], buffer.getvalue())
