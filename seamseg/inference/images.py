"""Preparation of images for the network, and batching of those with equal network size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seamseg.config import Config
from seamseg.data.images import as_rgb, open_image
from seamseg.data.transforms import TestTransform, pil_to_tensor
from seamseg.inference.tiling.tiles import Tiling
from seamseg.utils.errors import InputError, option
from seamseg.utils.urls import is_url, read_url

T = TypeVar("T")

MAX_ASPECT = 4
"""Images longer than this times their shortest side are shrunk below `shortest_size`, see :func:`test_transform`."""

MAX_INPUT = 1 << 28
"""Largest network input in pixels, whatever sizes are configured: more than the largest photo has."""

WAITING_BYTES = 512 << 20
"""Limit of the images that wait for others of their size."""


def test_transform(
    config: Config,
    shortest_size: int | None = None,
    longest_max_size: int | None = None,
    longest_size: int | None = None,
) -> TestTransform:
    """Return the transform of prediction and validation.

    The original does not limit the longest side, so a panorama can exhaust the memory. Here the default limit is
    :data:`MAX_ASPECT` times the shortest size or `dataloader.longest_max_size`, whichever is larger. Ordinary photos
    stay far below it, and have the same size as in the original.

    Parameters
    ----------
    config : its `[dataloader]` sizes and normalisation
    shortest_size, longest_max_size : replace the configured and the default size
    longest_size : exact length of the longest side instead of these; None for `dataloader.longest_size`, unless one of
        the others is given

    Raises
    ------
    InputError
        if a size is not positive, the longest is below the shortest, or inputs would have more than :data:`MAX_INPUT`
        pixels
    """
    options = config.dataloader
    if longest_size is None and shortest_size is None and longest_max_size is None:
        longest_size = options.longest_size
    if longest_size is not None:
        if longest_size < 1:
            raise InputError(f"{option('size')} must be positive, not {longest_size}")
        if longest_size**2 > MAX_INPUT:
            raise InputError(_too_large(longest_size, longest_size))
        return TestTransform(None, None, options.rgb_mean, options.rgb_std, longest_size)
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


test_transform.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it as a test


@dataclass(frozen=True)
class PreparedImage:
    """An image ready for the network.

    Attributes
    ----------
    pixels : network input, see :func:`network_input`
    size : `(height, width)` of the image itself
    rgb : the image itself, `h x w x 3` uint8, if it is kept
    source_image : path or copy of the image that a result refers to, if any
    """

    pixels: Tensor
    size: tuple[int, int]
    rgb: Tensor | None = None
    source_image: Path | Image.Image | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the network input and the pixels."""
        return self.pixels.nbytes + (0 if self.rgb is None else self.rgb.nbytes)


@dataclass(frozen=True)
class ImagePreparation:
    """Prepares images for the network, for the Python API and the command line alike.

    Attributes
    ----------
    transform : to the network's size
    tiling : which images are processed in tiles
    keep_rgb : keep the pixels, in a tensor, which worker processes pass on through shared memory
    keep_source : keep the path or a copy of the image
    """

    transform: TestTransform
    tiling: Tiling = Tiling("off")
    keep_rgb: bool = False
    keep_source: bool = False

    def __call__(self, photo: ImageInput) -> PreparedImage:
        """Prepare an image; errors as of :func:`as_image` and :func:`network_input`."""
        # the decoded image is not kept: it may be larger than everything else
        image = as_image(photo)
        return PreparedImage(
            network_input(image, self.transform, self.tiling),
            (image.height, image.width),
            torch.from_numpy(np.array(image)) if self.keep_rgb else None,
            source_image(photo, image) if self.keep_source else None,
        )


def network_input(image: Image.Image, transform: TestTransform, tiling: Tiling) -> Tensor:
    """Return the network input of an RGB image: `3 x H x W` float32, or uint8 if it is to be processed in tiles.

    Tiles are normalised one by one, which saves 12 bytes a pixel.

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
        f"million: choose a smaller {option('shortest_size')} or {option('longest_max_size')}"
    )


def is_for_tiles(pixels: Tensor) -> bool:
    """Return whether a network input from :func:`network_input` is to be processed in tiles."""
    return pixels.dtype == torch.uint8


def equal_size_batches(
    items: Iterable[T],
    batch_size: int,
    pixels_of: Callable[[T], Tensor],
    nbytes_of: Callable[[T], int] = lambda item: 0,
    in_order: bool = False,
) -> Iterator[list[T]]:
    """Group items of equal network size, so that no image is padded and no result depends on other images.

    At most `2 * batch_size` items, and :data:`WAITING_BYTES`, wait for others of their size. An item that is to be
    processed in tiles is a batch of its own, at once.

    Parameters
    ----------
    items : in any order
    batch_size : items of a group at most
    pixels_of : returns the network input of an item
    nbytes_of : returns the memory of an item
    in_order : group only neighbours, so that the order is kept
    """
    waiting: dict[Any, list[T]] = {}
    held = 0
    for item in items:
        pixels = pixels_of(item)
        size = tuple(pixels.shape)
        if in_order and waiting and (size not in waiting or is_for_tiles(pixels)):
            yield from waiting.values()
            waiting, held = {}, 0
        if is_for_tiles(pixels):
            yield [item]
            continue
        group = waiting.setdefault(size, [])
        group.append(item)
        held += nbytes_of(item)
        if len(group) == batch_size:
            held -= sum(map(nbytes_of, group))
            yield waiting.pop(size)
        while sum(map(len, waiting.values())) > 2 * batch_size or held > WAITING_BYTES:
            # the oldest group: dicts keep the order of insertion
            group = waiting.pop(next(iter(waiting)))
            held -= sum(map(nbytes_of, group))
            yield group
    yield from waiting.values()


ImageInput: TypeAlias = str | Path | Image.Image | np.ndarray | Tensor
"""A file or URL, a PIL image, an `H x W x 3` uint8 RGB array, or a `3 x H x W` tensor, uint8 or float from 0 to 1."""


def is_single_image(photo: ImageInput | Iterable[ImageInput]) -> bool:
    """Return whether this is one image rather than several."""
    return isinstance(photo, (str, Path, Image.Image, np.ndarray, Tensor))


def as_image(photo: ImageInput) -> Image.Image:
    """Return an RGB image, which may share memory with the input.

    Raises
    ------
    UnreadableImage
        if the file is missing, broken or not an image
    InputError
        if an array or tensor has another shape, type or range of values
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
    raise InputError(f"a photo must be a path, PIL image, array or tensor, not {type(photo).__name__}")


def source_image(photo: ImageInput, image: Image.Image) -> Path | Image.Image:
    """Return the path of a file, else a copy of the image, whose buffer the caller may reuse."""
    return Path(photo) if _is_file(photo) else image.copy()


def _is_file(photo: object) -> TypeGuard[str | Path]:
    return isinstance(photo, Path) or (isinstance(photo, str) and not is_url(photo))


def _checked_array(photo: np.ndarray) -> np.ndarray:
    if photo.dtype == np.uint8 and photo.ndim == 3 and photo.shape[2] == 3 and 0 not in photo.shape:
        return photo
    hint = ""
    if photo.ndim == 4:
        hint = "; pass several images in a list"
    elif photo.ndim == 3 and photo.shape[0] == 3 and photo.shape[2] != 3:
        hint = "; the channels must come last, see numpy.moveaxis"
    elif photo.ndim == 2:
        hint = "; convert grey images with PIL: Image.fromarray(photo).convert('RGB')"
    elif photo.dtype != np.uint8:
        hint = "; values must be integers from 0 to 255"
    raise InputError(f"a photo as an array must be H x W x 3 uint8 RGB, this one is {photo.shape} {photo.dtype}{hint}")


def _array_of(photo: Tensor) -> np.ndarray:
    shape = tuple(photo.shape)
    if photo.dim() != 3 or shape[0] != 3 or 0 in shape or not (photo.is_floating_point() or photo.dtype == torch.uint8):
        hint = "; pass several images as list(tensor)" if photo.dim() == 4 else ""
        raise InputError(
            f"a photo as a tensor must be 3 x H x W RGB, uint8 or float from 0 to 1, this one is {shape} "
            f"{photo.dtype}{hint}"
        )
    photo = photo.detach().cpu()
    if photo.is_floating_point():
        photo = photo.float()
        low, high = float(photo.min()), float(photo.max())
        # false for NaN; resizing may exceed the range by a rounding error
        if not (low >= -1e-3 and high <= 1 + 1e-3):
            raise InputError(
                "a photo as a floating-point tensor must have values from 0 to 1, not normalised, this one has "
                f"{low:g} to {high:g}"
            )
        photo = (photo * 255).round().clamp(0, 255).to(torch.uint8)
    return np.ascontiguousarray(photo.permute(1, 2, 0).numpy())
