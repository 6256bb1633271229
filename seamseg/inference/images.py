"""Photos on their way to the network: decoded in the background, batched only with others of their network size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seamseg.config import Config
from seamseg.data.images import as_rgb, open_image
from seamseg.data.transforms import TestTransform, pil_to_tensor
from seamseg.inference.tiling.tiles import Tiling
from seamseg.utils.errors import InputError
from seamseg.utils.urls import is_url, read_url

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
    return pil_to_tensor(transform.scale(image))


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


AnyPhoto: TypeAlias = str | Path | Image.Image | np.ndarray | Tensor
"""A file or URL, a PIL image, an `H x W x 3` uint8 RGB array, or a `3 x H x W` tensor, uint8 or float from 0 to 1."""


def is_one(photo: AnyPhoto | Iterable[AnyPhoto]) -> bool:
    """Whether this is a photo rather than several of them."""
    return isinstance(photo, (str, Path, Image.Image, np.ndarray, Tensor))


def as_image(photo: AnyPhoto) -> Image.Image:
    """A photo as an RGB picture, which may share the memory of what was handed in.

    Raises
    ------
    UnreadableImage
        if the file is missing, broken or no image
    InputError
        if an array or tensor has another shape or type, or values that are no colours
    """
    if isinstance(photo, Image.Image):
        return as_rgb(photo)
    if isinstance(photo, np.ndarray):
        return Image.fromarray(_checked_array(photo))
    if isinstance(photo, Tensor):
        return Image.fromarray(_array_of(photo))
    if _is_file(photo):
        return open_image(photo)
    if isinstance(photo, str):
        return open_image(photo, read_url(photo))
    raise InputError(f"a photo is a path, PIL image, array or tensor, not {type(photo).__name__}")


def keepsake(photo: AnyPhoto, image: Image.Image) -> Path | Image.Image:
    """What a result remembers of its photo: the path of a file, else a copy of the pixels, which may change later."""
    return Path(photo) if _is_file(photo) else image.copy()


def _is_file(photo: object) -> TypeGuard[str | Path]:
    return isinstance(photo, Path) or (isinstance(photo, str) and not is_url(photo))


class Opened(NamedTuple):
    """A photo on its way: what the result will remember of it, its `(height, width)`, and its network input."""

    kept: Path | Image.Image | None
    size: tuple[int, int]
    pixels: Tensor


def runs_of_one_size(photos: Iterable[Opened], batch_size: int) -> Iterator[list[Opened]]:
    """Neighbours whose network inputs have one size, at most `batch_size` together; in order."""
    group: list[Opened] = []
    for photo in photos:
        if group and group[0].pixels.shape != photo.pixels.shape:
            yield group
            group = []
        group.append(photo)
        if len(group) == batch_size:
            yield group
            group = []
    if group:
        yield group


def _checked_array(photo: np.ndarray) -> np.ndarray:
    if photo.dtype == np.uint8 and photo.ndim == 3 and photo.shape[2] == 3 and 0 not in photo.shape:
        return photo
    hint = ""
    if photo.ndim == 4:
        hint = "; of several hand in a list"
    elif photo.ndim == 3 and photo.shape[0] == 3 and photo.shape[2] != 3:
        hint = "; the channels come last, see numpy.moveaxis"
    elif photo.ndim == 2:
        hint = "; of grey ones use PIL: Image.fromarray(photo).convert('RGB')"
    elif photo.dtype != np.uint8:
        hint = "; values are 0 to 255, whole numbers"
    raise InputError(f"a photo as an array must be H x W x 3 uint8 RGB, this one is {photo.shape} {photo.dtype}{hint}")


def _array_of(photo: Tensor) -> np.ndarray:
    shape = tuple(photo.shape)
    if photo.dim() != 3 or shape[0] != 3 or 0 in shape or not (photo.is_floating_point() or photo.dtype == torch.uint8):
        hint = "; of several hand in list(tensor)" if photo.dim() == 4 else ""
        raise InputError(
            f"a photo as a tensor must be 3 x H x W RGB, uint8 or float from 0 to 1, this one is {shape} "
            f"{photo.dtype}{hint}"
        )
    photo = photo.detach().cpu()
    if photo.is_floating_point():
        photo = photo.float()
        low, high = float(photo.min()), float(photo.max())
        # NaN is in no range; resizing overshoots by a rounding
        if not (low >= -1e-3 and high <= 1 + 1e-3):
            raise InputError(
                f"a photo as a floating tensor must hold 0 to 1, this one holds {low:g} to {high:g}; it must not be "
                "normalised either"
            )
        photo = (photo * 255).round().clamp(0, 255).to(torch.uint8)
    return np.ascontiguousarray(photo.permute(1, 2, 0).numpy())
