"""From a decoded photo and its mask to tensors: scale, flip, normalise (SPEC section 4 "Test input")."""

from __future__ import annotations

import random as global_random
from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seamseg.errors import InputError
from seamseg.ops.extract_boxes import extract_boxes
from seamseg.ops.resize import resize_nearest


class _Source(Protocol):
    def random(self) -> float: ...
    def uniform(self, a: float, b: float) -> float: ...
    def choice(self, seq: Sequence[float]) -> float: ...


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
    ids int64, cat int64, iscrowd uint8
    """
    present = np.zeros(len(cat), dtype=bool)
    present[ids.ravel()] = True
    present[0] = True
    new_id = np.cumsum(present, dtype=np.int64) - 1
    return new_id[ids], np.asarray(cat, np.int64)[present], np.asarray(iscrowd, np.uint8)[present]


class _Normalise:
    def __init__(self, rgb_mean: Sequence[float] | None, rgb_std: Sequence[float] | None) -> None:
        for name, values in (("rgb_mean", rgb_mean), ("rgb_std", rgb_std)):
            if values is not None and len(values) != 3:
                raise InputError(f"{name} must be 3 numbers, got {tuple(values)}")
        if rgb_std is not None and min(rgb_std) <= 0:
            raise InputError(f"rgb_std must be positive, got {tuple(rgb_std)}")
        self._mean = None if rgb_mean is None else torch.tensor(list(rgb_mean), dtype=torch.float32)[:, None, None]
        self._std = None if rgb_std is None else torch.tensor(list(rgb_std), dtype=torch.float32)[:, None, None]

    def __call__(self, image: Image.Image) -> Tensor:
        pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
        tensor = pixels.permute(2, 0, 1).to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        if self._mean is not None:
            tensor.sub_(self._mean)
        if self._std is not None:
            tensor.div_(self._std)
        return tensor


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
        self._normalise = _Normalise(rgb_mean, rgb_std)

    def __call__(self, image: Image.Image) -> Tensor:
        """`3 x H x W` float32 from an RGB picture."""
        if self.shortest_size is not None:
            size = scaled_size(image.size, self.shortest_size, self.longest_max_size)
            if size != image.size:
                image = image.resize(size, Image.Resampling.BILINEAR)
        return self._normalise(image)


class TrainTransform:
    """Photo and mask → network input and targets, with random flip and scale.

    Parameters
    ----------
    shortest_size, longest_max_size : as :func:`scaled_size`; the limit holds after random scaling
    rgb_mean, rgb_std : normalisation of values in 0..1
    random_flip : mirror left-right half of the time
    random_scale : factor of `shortest_size`, drawn evenly between two values or among more
    """

    def __init__(
        self,
        shortest_size: int,
        longest_max_size: int | None,
        rgb_mean: Sequence[float] | None = None,
        rgb_std: Sequence[float] | None = None,
        random_flip: bool = False,
        random_scale: Sequence[float] | None = None,
    ) -> None:
        if random_scale is not None and (not random_scale or min(random_scale) <= 0):
            raise InputError(f"random_scale must be positive numbers, got {tuple(random_scale)}")
        self.shortest_size = shortest_size
        self.longest_max_size = longest_max_size
        self.random_flip = random_flip
        self.random_scale = None if random_scale is None else tuple(random_scale)
        self._normalise = _Normalise(rgb_mean, rgb_std)

    def _shortest(self, rng: _Source) -> int:
        if self.random_scale is None:
            return self.shortest_size
        if len(self.random_scale) == 2:
            factor = rng.uniform(*self.random_scale)
        else:
            factor = rng.choice(self.random_scale)
        return max(int(self.shortest_size * factor), 1)

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
        image : RGB
        mask : `L x H x W` instance ids, 0 void
        cat, iscrowd : class and crowd flag by id
        rng : source of chance; Python's global one if None

        Returns
        -------
        dict of `img` `3 x H x W` float32, `msk` `L x H x W` int64, `cat` `n` int64, `iscrowd` `n` uint8, `bbx` `n x 4`
        float32 (`(y0, x0, y1, x1)`, row 0 is the box of the void pixels)
        """
        source: Any = global_random if rng is None else rng
        flip = self.random_flip and source.random() < 0.5
        width, height = scaled_size(image.size, self._shortest(source), self.longest_max_size)
        if flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            mask = mask[..., ::-1]
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        ids, classes, crowds = compact_ids(resize_nearest(mask, (height, width)), cat, iscrowd)
        msk = torch.from_numpy(np.ascontiguousarray(ids))
        return {
            "img": self._normalise(image),
            "msk": msk,
            "cat": torch.from_numpy(classes),
            "iscrowd": torch.from_numpy(crowds),
            "bbx": extract_boxes(msk, len(classes)),
        }
