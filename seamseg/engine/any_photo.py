"""What people call a photo: a file, a PIL image, an array, a tensor; and many of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seamseg.data.images import as_rgb, open_image
from seamseg.engine.urls import is_url, read_url
from seamseg.errors import InputError

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
