"""From a decoded photo and its mask to tensors: scale, crop, flip, normalise (SPEC section 4 "Test input")."""

from __future__ import annotations

import random as global_random
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seamseg.data.pixels import Normalise, finish_image
from seamseg.idmaps.resize import nearest_index
from seamseg.ops.labels import extract_boxes
from seamseg.structures import DeferredTransform
from seamseg.utils.errors import InputError


class _Source(Protocol):
    def random(self) -> float: ...
    def uniform(self, a: float, b: float) -> float: ...
    def choice(self, seq: Sequence[float]) -> float: ...
    def randint(self, a: int, b: int) -> int: ...


def scaled_size(size: tuple[int, int], shortest: int, longest: int | None) -> tuple[int, int]:
    """The size at which the network sees a picture.

    The shortest side becomes `shortest`, unless the longest side would then exceed `longest`, which it becomes
    instead; both sides are cut to whole pixels, `int(side * scale)`, and are at least 1.

    Parameters
    ----------
    size : `(height, width)` or `(width, height)`; the result has the same order
    shortest, longest : in pixels; no limit on the longest side if it is None
    """
    scale = shortest / min(size)
    if longest is not None and int(max(size) * scale) > longest:
        scale = longest / max(size)
    return max(int(size[0] * scale), 1), max(int(size[1] * scale), 1)


def compact_ids(
    ids: np.ndarray, cat: Sequence[int], iscrowd: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Renumber instance ids so that those without a pixel leave no gap; id 0 stays.

    Parameters
    ----------
    ids : integer array, every value below `len(cat)`
    cat, iscrowd : class and crowd flag by id

    Returns
    -------
    ids of the same type, cat int64, iscrowd uint8
    """
    counts = torch.bincount(torch.from_numpy(np.ascontiguousarray(ids)).flatten(), minlength=len(cat)).numpy()
    present = counts > 0
    present[0] = True
    if not present.all():
        new_id = (np.cumsum(present) - 1).astype(ids.dtype)
        ids = new_id.take(ids)
    return ids, np.asarray(cat, np.int64)[present], np.asarray(iscrowd, np.uint8)[present]


def bytes_of(image: Image.Image) -> Tensor:
    """`3 x H x W` uint8, the channels of a pixel beside each other, of an RGB picture."""
    return torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)


class TestTransform:
    """Photo → network input.

    Parameters
    ----------
    shortest_size : length of the shortest side in pixels; None keeps the photo's own size
    longest_max_size : limit of the longest side; None for no limit, as the original
    rgb_mean, rgb_std : normalisation of values in 0..1; None to leave one out
    """

    __test__ = False  # not a test case, whatever its name suggests to pytest

    def __init__(
        self,
        shortest_size: int | None,
        longest_max_size: int | None = None,
        rgb_mean: Sequence[float] | None = None,
        rgb_std: Sequence[float] | None = None,
    ) -> None:
        self.shortest_size = shortest_size
        self.longest_max_size = longest_max_size
        self._normalise = Normalise(rgb_mean, rgb_std)

    def halve(self) -> None:
        """Make pictures half as large from now on."""
        if self.shortest_size is not None:
            self.shortest_size = max(1, self.shortest_size // 2)
        if self.longest_max_size is not None:
            self.longest_max_size = max(1, self.longest_max_size // 2)

    def __call__(self, image: Image.Image) -> Tensor:
        """`3 x H x W` float32 from an RGB picture."""
        return self.normalise(bytes_of(self.scale(image)))

    def size_of(self, size: tuple[int, int]) -> tuple[int, int]:
        """The size at which the network sees a picture of a size, both `(height, width)` or `(width, height)`."""
        return size if self.shortest_size is None else scaled_size(size, self.shortest_size, self.longest_max_size)

    def scale(self, image: Image.Image) -> Image.Image:
        """The picture at the size of the network's input."""
        size = self.size_of(image.size)
        return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)

    def normalise(self, pixels: Tensor) -> Tensor:
        """`3 x H x W` float32 from uint8, of the scaled picture or a part of it."""
        return self._normalise(pixels)


@dataclass(frozen=True)
class Draw:
    """What chance decided for one image.

    Attributes
    ----------
    size : `(height, width)` that the image is scaled to
    window : `(y0, x0, height, width)` of the crop of the scaled image, before the flip; the whole of it without a crop
    deferred : flip and colours
    """

    size: tuple[int, int]
    window: tuple[int, int, int, int]
    deferred: DeferredTransform


class TrainTransform:
    """Photo and mask → network input and targets, with random scale, crop, colours and flip.

    Parameters
    ----------
    shortest_size, longest_max_size : as :func:`scaled_size`; the limit holds after random scaling
    rgb_mean, rgb_std : normalisation of values in 0..1
    random_flip : mirror left-right half of the time
    random_scale : factor of `shortest_size`, drawn evenly between two values or among more
    crop_size : `(height, width)` cut out of the scaled image where it is larger; None for all of it
    color_jitter : largest change of brightness, contrast and saturation (factors `1 - x` to `1 + x`) and hue (turns)
    on_device : leave colours, flip and normalisation to :func:`seamseg.data.pixels.finish_image` on the device
    """

    def __init__(
        self,
        shortest_size: int,
        longest_max_size: int | None,
        rgb_mean: Sequence[float] | None = None,
        rgb_std: Sequence[float] | None = None,
        random_flip: bool = False,
        random_scale: Sequence[float] | None = None,
        crop_size: tuple[int, int] | None = None,
        color_jitter: tuple[float, float, float, float] | None = None,
        on_device: bool = False,
    ) -> None:
        if random_scale is not None and (not random_scale or min(random_scale) <= 0):
            raise InputError(f"random_scale must be positive numbers, got {tuple(random_scale)}")
        if crop_size is not None and min(crop_size) < 1:
            raise InputError(f"crop_size must be positive, got {tuple(crop_size)}")
        if color_jitter is not None and (min(color_jitter) < 0 or color_jitter[3] > 0.5):
            raise InputError(f"color_jitter must not be negative, its hue at most 0.5, got {tuple(color_jitter)}")
        self.shortest_size = shortest_size
        self.longest_max_size = longest_max_size
        self.random_flip = random_flip
        self.random_scale = None if random_scale is None else tuple(random_scale)
        self.crop_size = crop_size
        self.color_jitter = color_jitter
        self.on_device = on_device
        self._normalise = Normalise(rgb_mean, rgb_std)

    def draw(self, size: tuple[int, int], rng: _Source) -> Draw:
        """Let chance decide for an image of a size `(height, width)`."""
        flip = self.random_flip and rng.random() < 0.5
        height, width = scaled_size(size, self._shortest(rng), self.longest_max_size)
        window = (0, 0, height, width)
        if self.crop_size is not None:
            h, w = min(height, self.crop_size[0]), min(width, self.crop_size[1])
            window = (rng.randint(0, height - h), rng.randint(0, width - w), h, w)
        return Draw((height, width), window, DeferredTransform(flip, self._jitter(rng)))

    def _shortest(self, rng: _Source) -> int:
        if self.random_scale is None:
            return self.shortest_size
        if len(self.random_scale) == 2:
            factor = rng.uniform(*self.random_scale)
        else:
            factor = rng.choice(self.random_scale)
        return max(int(self.shortest_size * factor), 1)

    def _jitter(self, rng: _Source) -> tuple[float, float, float, float] | None:
        if self.color_jitter is None:
            return None
        brightness, contrast, saturation = (rng.uniform(max(0.0, 1 - x), 1 + x) for x in self.color_jitter[:3])
        return brightness, contrast, saturation, rng.uniform(-self.color_jitter[3], self.color_jitter[3])

    def __call__(
        self,
        image: Image.Image,
        mask: np.ndarray,
        cat: Sequence[int],
        iscrowd: Sequence[int],
        rng: Random | None = None,
    ) -> dict[str, Any]:
        """Targets of one image.

        Parameters
        ----------
        image : RGB, of the size of the mask or reduced
        mask : `L x H x W` instance ids, 0 void
        cat, iscrowd : class and crowd flag by id
        rng : source of chance; Python's global one if None

        Returns
        -------
        dict of `img` `3 x H x W` float32, `msk` `L x H x W` int64, `cat` `n` int64, `iscrowd` `n` uint8, `bbx` `n x 4`
        float32 (`(y0, x0, y1, x1)`, row 0 is the box of the void pixels). With `on_device` not flipped, `img` uint8,
        `msk` uint8 or int32, and `deferred` in addition.
        """
        source: Any = global_random if rng is None else rng
        draw = self.draw((mask.shape[-2], mask.shape[-1]), source)
        deferred = draw.deferred
        ids, classes, crowds = compact_ids(_cut_mask(mask, draw, not self.on_device, len(cat)), cat, iscrowd)
        narrow = torch.from_numpy(ids)
        item = {
            "msk": narrow if self.on_device else narrow.long(),
            "cat": torch.from_numpy(classes),
            "iscrowd": torch.from_numpy(crowds),
            "bbx": extract_boxes(narrow, len(classes)),
        }
        pixels = bytes_of(_cut_image(image, draw))
        if self.on_device:
            return {"img": pixels.contiguous(), **item, "deferred": deferred}
        return {"img": finish_image(pixels, deferred, self._normalise), **item}


def _cut_image(image: Image.Image, draw: Draw) -> Image.Image:
    (height, width), (y, x, h, w) = draw.size, draw.window
    if (h, w) == draw.size:
        return image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BILINEAR)
    # only what stays is resized; Pillow looks beyond the edges of the box, so it has no seams
    down, right = image.height / height, image.width / width
    box = (x * right, y * down, min((x + w) * right, image.width), min((y + h) * down, image.height))
    return image.resize((w, h), Image.Resampling.BILINEAR, box=box)


def _cut_mask(mask: np.ndarray, draw: Draw, flip: bool, count: int) -> np.ndarray:
    """The scaled and cropped ids in the narrowest type, `L x h x w`; `flip` mirrors them if that was drawn."""
    y, x, h, w = draw.window
    rows, columns = (nearest_index(have, wanted) for have, wanted in zip(mask.shape[-2:], draw.size))
    if draw.deferred.flip:
        # the original mirrors before it scales, which decides where a centre falls between two pixels
        columns = mask.shape[-1] - 1 - columns[::-1]
    columns = columns[x : x + w]
    if draw.deferred.flip and flip:
        columns = columns[::-1]
    narrow = mask.astype(np.uint8 if count <= 256 else np.int32, copy=False)
    return narrow.take(rows[y : y + h], axis=-2).take(columns, axis=-1)
