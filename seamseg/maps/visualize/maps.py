"""Output maps of custom heads as images and arrays of any size."""

from __future__ import annotations

import zlib
from io import BytesIO

import numpy as np
from PIL import Image

from seamseg.maps.idmaps.segments import resize_nearest
from seamseg.maps.predictions import MapFormat


def encode_map(values: np.ndarray, spec: MapFormat, size: tuple[int, int]) -> bytes:
    """Return a map `H x W` or `channels x H x W` as a file of the type :attr:`MapFormat.ending`, of (height, width)."""
    buffer = BytesIO()
    if spec.ending == ".npy":
        np.save(buffer, _resized(values, spec, size, None))
    else:
        pixels = _resized(values, spec, size, 2**spec.bits - 1)
        image = Image.fromarray(pixels[0] if spec.channels == 1 else pixels.transpose(1, 2, 0))
        image.save(buffer, "PNG", compress_type=zlib.Z_RLE)
    return buffer.getvalue()


def draw_map(values: np.ndarray, spec: MapFormat, size: tuple[int, int]) -> np.ndarray:
    """Return a map for viewing, uint8 `H x W x 3`; arguments as for :func:`encode_map`.

    It shows what the PNG shows. The first three channels of others are red, green and blue, each from its smallest to
    its largest value.
    """
    if spec.ending == ".png":
        pixels = _resized(values, spec, size, 2**spec.bits - 1) >> (spec.bits - 8)
        return np.ascontiguousarray(np.broadcast_to(pixels, (3, *size)).transpose(1, 2, 0), np.uint8)
    shown = np.zeros((*size, 3), np.uint8)
    for channel, plane in enumerate(np.nan_to_num(_resized(values[:3], spec, size, None))):
        low, high = float(plane.min()), float(plane.max())
        shown[..., channel] = np.rint((plane - low) * (255 / max(high - low, 1e-12)))
    return shown


def resize_map(values: np.ndarray, size: tuple[int, int], resize: str = "bilinear") -> np.ndarray:
    """Resize an output map of a head, which is at the size of the network's input, such as to the size of the image.

    Parameters
    ----------
    values : `H x W`, or `channels x H x W`
    size : `(height, width)`
    resize : bilinear or nearest

    Returns
    -------
    `height x width` or `channels x height x width`, float32; with nearest of the type of `values`
    """
    planes = [_plane(plane, size, resize) for plane in values.reshape(-1, *values.shape[-2:])]
    return np.stack(planes) if values.ndim == 3 else planes[0]


def _plane(plane: np.ndarray, size: tuple[int, int], resize: str) -> np.ndarray:
    if resize == "nearest":
        return resize_nearest(plane, size)
    image = Image.fromarray(plane.astype(np.float32))
    return np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR))


def _resized(values: np.ndarray, spec: MapFormat, size: tuple[int, int], most: int | None) -> np.ndarray:
    """Return `channels x H x W` at a size: the pixels of a PNG whose largest value is `most`, or None for float32."""
    planes = values.reshape(-1, *values.shape[-2:])
    dtype = np.float32 if most is None else np.uint8 if most == 255 else np.uint16
    full = np.empty((len(planes), *size), dtype)
    # one by one: the floats of a large image are large
    for plane, out in zip(planes, full):
        large = _plane(plane, size, spec.resize)
        out[:] = large if most is None else np.clip(np.rint(large * spec.scale), 0, most)
    return full
