"""Crops of training images: which part of an image a training uses, and at which scale; no torch.

`[dataloader] crop` chooses one: the random one of this module, or a component (docs/how-to/extend_data.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from seamseg.config.components import register
from seamseg.data.input_size import scaled_size
from seamseg.utils.component_errors import instance_of, named_errors
from seamseg.utils.errors import InputError, SeamsegError

if TYPE_CHECKING:
    from seamseg.config import Config


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view of an array that cannot be written to."""
    view: np.ndarray = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True)
class CropImage:
    """An image for which a crop is drawn, before scaling.

    Attributes
    ----------
    size : `(height, width)`
    cat, iscrowd : class, 255 for void, and crowd flag by id
    num_stuff : stuff classes, which come before the things
    category : class for which class-uniform sampling drew the image; None if it was not drawn for one
    read : reads the ids, see :attr:`ids`
    """

    size: tuple[int, int]
    cat: Sequence[int]
    iscrowd: Sequence[int]
    num_stuff: int
    category: int | None
    read: Callable[[], np.ndarray]

    @cached_property
    def masks(self) -> np.ndarray:
        """The instance ids, for what follows the crop."""
        return self.read()

    @property
    def ids(self) -> np.ndarray:
        """The instance ids, `L x H x W` int32, 0 void, read-only; with `fast_decode` they are read before the image."""
        return read_only(self.masks)


@dataclass(frozen=True)
class CropParams:
    """The part of an image that a training uses.

    Attributes
    ----------
    size : `(height, width)` that the image is scaled to
    window : `(y0, x0, height, width)` of the crop of the scaled image, before the flip
    flip : whether the crop is mirrored
    """

    size: tuple[int, int]
    window: tuple[int, int, int, int]
    flip: bool


@dataclass(frozen=True)
class CropContext:
    """The options of `[dataloader]` that concern crops.

    Attributes
    ----------
    shortest_size, longest_max_size : see :func:`scaled_size`; the limit applies after random scaling
    random_flip, random_scale, crop_size : see :class:`seamseg.data.transforms.AugmentationOptions`
    """

    shortest_size: int
    longest_max_size: int | None
    random_flip: bool = False
    random_scale: Sequence[float] | None = None
    crop_size: tuple[int, int] | None = None

    def scaled(self, size: tuple[int, int], shortest: int | None = None) -> tuple[int, int]:
        """Return the size of an image whose shortest side becomes `shortest`; `shortest_size` if it is None."""
        return scaled_size(size, self.shortest_size if shortest is None else shortest, self.longest_max_size)

    def draw_flip(self, rng: Random) -> bool:
        """Draw whether an image is mirrored."""
        return self.random_flip and rng.random() < 0.5

    def draw_size(self, size: tuple[int, int], rng: Random) -> tuple[int, int]:
        """Draw the size that an image is scaled to by `random_scale`."""
        if self.random_scale is None:
            return self.scaled(size)
        factor = rng.uniform(*self.random_scale) if len(self.random_scale) == 2 else rng.choice(self.random_scale)
        return self.scaled(size, max(int(self.shortest_size * factor), 1))

    def window_size(self, scaled: tuple[int, int]) -> tuple[int, int]:
        """Return `(height, width)` of a crop of `crop_size`, which is smaller where the scaled image is."""
        height, width = self.crop_size or scaled
        return min(scaled[0], height), min(scaled[1], width)

    def draw_window(self, scaled: tuple[int, int], rng: Random) -> tuple[int, int, int, int]:
        """Draw a window of `crop_size` at a random place of a scaled image; all of it without a crop size."""
        h, w = self.window_size(scaled)
        if self.crop_size is None:
            return 0, 0, h, w
        return rng.randint(0, scaled[0] - h), rng.randint(0, scaled[1] - w), h, w


class Crop(ABC):
    """Draws crops; derive from it, and register the class with :func:`seamseg.components.crop`.

    Parameters
    ----------
    keys : values of the section `[crop NAME]`
    context : options of `[dataloader]`; raise InputError in `__init__` if they do not suit the crop
    """

    name = "custom"

    def __init__(self, keys: Any, context: CropContext) -> None:
        self.keys = keys
        self.context = context

    @abstractmethod
    def draw(self, image: CropImage, rng: Random) -> CropParams:
        """Draw scale, window and flip of an image, with random numbers of `rng` only."""


@register("crop", "random")
class RandomCrop(Crop):
    """A random scale, and a crop of that at a random place."""

    def draw(self, image: CropImage, rng: Random) -> CropParams:
        """Draw flip, scale and place, in this order."""
        flip, size = self.context.draw_flip(rng), self.context.draw_size(image.size, rng)
        return CropParams(size, self.context.draw_window(size, rng), flip)


def make_crop(config: Config, context: CropContext) -> Crop:
    """Make the crop that `[dataloader] crop` chooses.

    Raises
    ------
    InputError
        if it is not loaded, fails, or does not suit the context
    """
    component, keys = config.component("crop")
    crop = instance_of(Crop, component.build(keys, context), component.section)  # type: ignore[type-abstract]
    crop.name = component.name
    return crop


def draw_crop(crop: Crop, image: CropImage, rng: Random) -> CropParams:
    """Draw a crop of an image.

    Raises
    ------
    SeamsegError
        naming the crop, if it fails or its window is not within the scaled image
    """
    with named_errors(f"crop {crop.name}", type(crop).__module__):
        try:
            found = crop.draw(image, rng)
        except InputError as error:
            image.masks  # noqa: B018  # if they cannot be read, this is the error
            raise SeamsegError(f"crop {crop.name}: {error}") from error
        if not isinstance(found, CropParams):
            raise TypeError(f"draw() must return CropParams, returned {type(found).__name__}")
        height, width = map(index, found.size)
        y, x, h, w = map(index, found.window)
        if not (0 <= y < y + h <= height and 0 <= x < x + w <= width):
            raise ValueError(
                f"the window {(y, x, h, w)} (y, x, height, width) is not within the scaled image of {(height, width)}"
            )
    return CropParams((height, width), (y, x, h, w), bool(found.flip))
