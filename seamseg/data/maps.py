"""Ground truth that custom heads read, from the stored values to the augmented image.

Pixels without ground truth are NaN until the end, see :class:`seamseg.maps.folder.ReadMap`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seamseg.data.input_size import value_factor
from seamseg.maps.folder import ReadMap
from seamseg.maps.idmaps.segments import nearest_index
from seamseg.utils.errors import InputError

if TYPE_CHECKING:
    from seamseg.config import Config


class MapValues(NamedTuple):
    """A map of an image: values `channels x H x W` float32, NaN where there are none, and its declaration."""

    values: np.ndarray
    spec: ReadMap

    def mirrored(self) -> MapValues:
        """Return the map of the mirrored image."""
        flipped = self.values[..., ::-1]
        if self.spec.mirror is not None:
            flipped = flipped * np.array(self.spec.mirror, np.float32)[:, None, None]
        return self._replace(values=flipped)

    def filled(self) -> np.ndarray:
        """Return a copy of the values, contiguous, with `fill` where there are none."""
        values = np.array(self.values, order="C")
        values[np.isnan(values)] = self.spec.fill
        return values


def declared_maps(config: Config, *kinds: str) -> dict[str, ReadMap]:
    """Return the ground truth that the components of some kinds read, by name."""
    found: dict[str, ReadMap] = {}
    for component, _ in (pair for kind in kinds for pair in config.components(kind)):
        for name, spec in getattr(component.make, "reads", {}).items():
            where = f"{component.section} ({component.file}): reads[{name!r}]"
            if not isinstance(spec, ReadMap):
                raise InputError(f"{where} must be a seamseg.components.ReadMap")
            if found.setdefault(name, spec) != spec:
                raise InputError(f"{where} differs from that of another {component.kind}: rename it")
    return found


def map_values(stored: np.ndarray | None, spec: ReadMap, size: tuple[int, int], name: str) -> MapValues:
    """Convert numbers `H x W` or `channels x H x W` that a reader has read; None for an image without a file."""
    shape = (spec.channels, *size)
    if stored is None:
        if not spec.optional:
            raise InputError(f"{name}: no such map (.png, .npy); ReadMap(optional=True) allows that")
        return MapValues(np.full(shape, np.nan, np.float32), spec)
    if stored.ndim == 2:
        stored = stored[None]
    if stored.shape != shape or stored.dtype.kind not in "biuf":
        want = " x ".join(map(str, shape))
        have = f"{stored.dtype} of {' x '.join(map(str, stored.shape))}"
        raise InputError(f"{name}: the map is {have}, expected numbers of {want} (channels x height x width)")
    values = stored.astype(np.float32)
    absent = ~np.isfinite(values)
    if spec.void is not None:
        absent |= stored == spec.void
    values *= np.float32(spec.factor)
    values += np.float32(spec.offset)
    values[absent] = np.nan
    return MapValues(values, spec)


def scale_and_crop(
    source: MapValues, size: tuple[int, int], window: tuple[int, int, int, int], flip: bool, scale: float
) -> MapValues:
    """Scale and crop a map of the whole image.

    The image is scaled to `size`, `(height, width)`, cropped to the `window`, `(y0, x0, height, width)`, and, with
    `flip`, mirrored afterwards. For `scale` see :class:`seamseg.data.transforms.AugmentationParams`.
    """
    values, spec = source
    factor = value_factor(spec.scale, size[1] / values.shape[-1], scale)
    if spec.resize == "nearest":
        rows, columns = nearest_pixels(values.shape[-2:], size, window, flip)
        values = values.take(rows, axis=-2).take(columns, axis=-1)
    else:
        for axis, (start, length) in enumerate(((window[0], window[2]), (window[1], window[3]))):
            # linear interpolation between the centres of pixels
            have = values.shape[axis + 1]
            where = np.clip((np.arange(start, start + length) + 0.5) * (have / size[axis]) - 0.5, 0, have - 1)
            first = where.astype(np.intp)
            weight = (where - first).astype(np.float32)
            weight = weight[:, None] if axis == 0 else weight
            low, high = values.take(first, axis + 1), values.take(np.minimum(first + 1, have - 1), axis + 1)
            # a neighbour without weight may be NaN
            values = np.where(weight == 0, low, low + (high - low) * weight)
    return MapValues(values if factor == 1 else values * np.float32(factor), spec)


def nearest_pixels(
    old: tuple[int, ...], size: tuple[int, int], window: tuple[int, int, int, int], flip: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of an image of size `old` that make the crop; the flip itself is not applied."""
    y, x, h, w = window
    rows, columns = (nearest_index(have, wanted) for have, wanted in zip(old, size))
    if flip:
        # the original mirrors before it scales, which decides the rounding of centres between two pixels
        columns = old[-1] - 1 - columns[::-1]
    return rows[y : y + h], columns[x : x + w]
