"""Photos on their way to the network: decoded in the background, batched only with others of their network size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seamseg.config import Config
from seamseg.data.transforms import TestTransform, bytes_of
from seamseg.engine.tiles import Tiling
from seamseg.errors import InputError

T = TypeVar("T")

MAX_ASPECT = 4
"""Pictures longer than this times their shortest side are shrunk further than to `shortest_size`, see below."""

MAX_INPUT = 1 << 28
"""Pixels of the network's input, whatever sizes are asked for: more than the largest photo has."""

WAITING_BYTES = 512 << 20
"""Photos that wait for others of their size"""


def test_transform(
    config: Config, shortest_size: int | None = None, longest_max_size: int | None = None
) -> TestTransform:
    """The transform of prediction and validation.

    The original puts no limit on the longest side, so a panorama can exhaust the memory. Here the default limit is
    :data:`MAX_ASPECT` times the shortest size or `dataloader.longest_max_size`, whichever is more: far beyond what
    ordinary photos reach, so they are seen exactly as by the original.

    Parameters
    ----------
    config : its `[dataloader]` sizes and normalisation
    shortest_size, longest_max_size : instead of the configured and the default ones

    Raises
    ------
    InputError
        if a size is not positive, the longest is below the shortest, or an input would have more than
        :data:`MAX_INPUT` pixels
    """
    options = config.dataloader
    shortest = options.shortest_size if shortest_size is None else shortest_size
    if longest_max_size is None:
        longest_max_size = max(MAX_ASPECT * shortest, options.longest_max_size)
    if shortest < 1 or longest_max_size < shortest:
        raise InputError(
            f"network size: shortest {shortest} and longest {longest_max_size} pixels; both must be positive and the "
            "longest not below the shortest"
        )
    if shortest**2 > MAX_INPUT:
        raise InputError(_too_large(shortest, shortest))
    return TestTransform(shortest, longest_max_size, options.rgb_mean, options.rgb_std)


test_transform.__test__ = False  # type: ignore[attr-defined]  # not a test case, whatever its name suggests to pytest


def network_input(image: Image.Image, transform: TestTransform, tiling: Tiling) -> Tensor:
    """What the network sees of an RGB picture: `3 x H x W` float32, or uint8 where it is to be seen in tiles.

    The tiles are normalised one by one, which saves the 12 bytes a pixel of the whole.

    Raises
    ------
    InputError
        if it would have more than :data:`MAX_INPUT` pixels
    """
    size = transform.size_of(image.size)
    if size[0] * size[1] > MAX_INPUT:
        raise InputError(_too_large(*size))
    if tiling.side_for(size) is None:
        return transform(image)
    return bytes_of(transform.scale(image))


def _too_large(width: int, height: int) -> str:
    return (
        f"the network's input would have {width} x {height} pixels or more, above the limit of {MAX_INPUT / 1e6:.0f} "
        "million: choose a smaller --shortest-size or --longest-max-size"
    )


def is_for_tiles(image: Tensor) -> bool:
    """Whether an input made by :func:`network_input` is to be seen in tiles."""
    return image.dtype == torch.uint8


@dataclass(frozen=True)
class Photo:
    """A decoded photo: its input as :func:`network_input`, own size, and RGB `h x w x 3` uint8 if kept."""

    image: Tensor
    native_size: tuple[int, int]
    rgb: Tensor | None


@dataclass(frozen=True)
class Unreadable:
    """Why a photo could not be decoded."""

    reason: str


@dataclass(frozen=True)
class PhotoTransform:
    """From an open picture to a :class:`Photo`.

    Attributes
    ----------
    transform : to the network's input
    keep_rgb : hand out the photo's own pixels too
    tiling : which photos are to be seen in tiles
    """

    transform: TestTransform
    keep_rgb: bool = False
    tiling: Tiling = Tiling("off")

    def __call__(self, image: Image.Image) -> Photo:
        """What the picture becomes."""
        # a tensor reaches the main process through shared memory, an array through a pipe
        rgb = torch.from_numpy(np.array(image)) if self.keep_rgb else None
        return Photo(network_input(image, self.transform, self.tiling), (image.height, image.width), rgb)


def as_is(item: T) -> T:
    """The `collate_fn` of loaders of single items; the default one would rebuild them."""
    return item


def equal_size_batches(
    items: Iterable[T],
    batch_size: int,
    image_of: Callable[[T], Tensor],
    bytes_of: Callable[[T], int] = lambda item: 0,
) -> Iterator[list[T]]:
    """Group items of the same network size, so that no image is ever padded and none's result depends on others.

    At most `2 * batch_size` items, and :data:`WAITING_BYTES`, wait for company; one of a rare size goes on its own, and
    so does, at once, one that is to be seen in tiles.

    Parameters
    ----------
    items : in any order
    batch_size : items a group at most
    image_of : the network input of an item
    bytes_of : memory of an item
    """
    waiting: dict[Any, list[T]] = {}
    held = 0
    for item in items:
        if is_for_tiles(image_of(item)):
            yield [item]
            continue
        size = tuple(image_of(item).shape)
        group = waiting.setdefault(size, [])
        group.append(item)
        held += bytes_of(item)
        if len(group) == batch_size:
            held -= sum(map(bytes_of, group))
            yield waiting.pop(size)
        while sum(map(len, waiting.values())) > 2 * batch_size or held > WAITING_BYTES:
            # the group that was begun first: dicts keep the order of insertion
            group = waiting.pop(next(iter(waiting)))
            held -= sum(map(bytes_of, group))
            yield group
    yield from waiting.values()
