"""Crops around instances of uniform scale (arXiv 2012.07717), see docs/how-to/recipes.md."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import numpy as np

from seamseg.components import Crop, CropContext, CropImage, CropParams, crop, key
from seamseg.panoptic_map import VOID
from seamseg.utils.errors import InputError


@dataclass(frozen=True)
class InstanceScaleKeys:
    """Keys of the crops around instances."""

    lengths: tuple[float, float] = key(
        "smallest and largest length of the longest side of the thing around which an image is cropped, in pixels of "
        "the network input",
        (16.0, 1024.0),
        above=0,
        maximum=32_768,
    )


class Focus(NamedTuple):
    """What a crop is to contain, in pixels of the image before scaling.

    Attributes
    ----------
    box : `(y0, x0, y1, x1)`
    pixel : `(y, x)` in the box; the crop contains it where it cannot contain the box
    scale : factor by which to scale the image, within the limits of the random scale; None for a random scale
    """

    box: tuple[int, int, int, int]
    pixel: tuple[int, int]
    scale: float | None


@crop("instance_scale", keys=InstanceScaleKeys)
class InstanceScaleCrop(Crop):
    """Crops around instances: a class of the image and one of its segments are drawn uniformly, and their length."""

    def __init__(self, keys: InstanceScaleKeys, context: CropContext) -> None:
        super().__init__(keys, context)
        self._shortest, self._longest = keys.lengths
        if self._shortest > self._longest:
            raise InputError(f"[crop instance_scale] lengths {keys.lengths} must be (smallest, largest)")
        if context.crop_size is None:
            raise InputError("[crop instance_scale] needs [dataloader] crop_size, the size of the crops")
        if context.random_scale is None or len(context.random_scale) != 2:
            raise InputError(
                "[crop instance_scale] needs [dataloader] random_scale of two values, the limits of the scale"
            )

    def draw(self, image: CropImage, rng: Random) -> CropParams:
        """Draw a segment, then flip, scale and a place where the crop contains the segment, or is within it."""
        context, focus = self.context, self.focus(image, rng)
        flip = context.draw_flip(rng)
        if focus is None or focus.scale is None:
            size = context.draw_size(image.size, rng)
        else:
            size = context.scaled(image.size, self._shortest_side(focus.scale, image.size))
        if focus is None:
            return CropParams(size, context.draw_window(size, rng), flip)
        h, w = context.window_size(size)
        y = _offset(focus.box[::2], focus.pixel[0], (image.size[0], size[0], h), rng)
        x = _offset(focus.box[1::2], focus.pixel[1], (image.size[1], size[1], w), rng)
        return CropParams(size, (y, x, h, w), flip)

    def focus(self, image: CropImage, rng: Random) -> Focus | None:
        """Draw what a crop is to contain: a class of the image uniformly, then one of its segments uniformly.

        This is the sampling by instance scales of arXiv 2012.07717. The longest side of the box of a thing gets a
        length that is uniform in octaves, as the levels of a feature pyramid are. Stuff has no length of its own; only
        a random pixel of it is in the crop. Crowds and void are not drawn.

        Returns
        -------
        None if there is nothing to draw
        """
        ids: dict[int, list[int]] = {}
        for i, (c, crowd) in enumerate(zip(image.cat, image.iscrowd)):
            if c != VOID and not crowd:
                ids.setdefault(int(c), []).append(i)
        if not ids:
            return None
        category = image.category
        if category is None or category not in ids:
            category = rng.choice(sorted(ids))
        inside = (image.ids == rng.choice(ids[category])).any(0)
        pixels = np.flatnonzero(inside)
        if len(pixels) == 0:  # metadata may list ids that another layer hides
            return None
        y, x = divmod(int(pixels[rng.randrange(len(pixels))]), image.size[1])
        if category < image.num_stuff:
            return Focus((y, x, y + 1, x + 1), (y, x), None)
        rows, columns = (np.flatnonzero(inside.any(axis)) for axis in (1, 0))
        box = int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1
        length = math.exp(rng.uniform(math.log(self._shortest), math.log(self._longest)))
        return Focus(box, (y, x), length / max(box[2] - box[0], box[3] - box[1]))

    def _shortest_side(self, scale: float, size: tuple[int, int]) -> int:
        """Return the shortest side of the scaled image, within the limits of the random scale."""
        shortest, limits = self.context.shortest_size, self.context.random_scale
        assert limits is not None
        factor = min(max(scale * min(size) / shortest, min(limits)), max(limits))
        return max(round(shortest * factor), 1)


def _offset(box: tuple[int, ...], pixel: int, sides: tuple[int, int, int], rng: Random) -> int:
    """Draw where a crop begins along an axis.

    It contains the box, if that fits into the crop; otherwise it is within the box and contains the pixel.

    Parameters
    ----------
    box : first row or column, and the end
    pixel : row or column
    sides : length of the image, of the scaled image and of the crop
    """
    length, scaled, window = sides
    factor = scaled / length
    pixel = min(int((pixel + 0.5) * factor), scaled - 1)
    low = min(int(box[0] * factor), pixel)
    high = max(min(math.ceil(box[1] * factor), scaled), pixel + 1)
    if high - low <= window:
        first, last = high - window, low
    else:
        first, last = max(low, pixel - window + 1), min(high - window, pixel)
    return rng.randint(max(first, 0), min(last, scaled - window))
