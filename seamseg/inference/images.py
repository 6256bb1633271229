"""Preparation of images for the network, and batching of those with equal network size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from PIL import Image

from seamseg.data.input_size import InputSize
from seamseg.inference.options import Tiling
from seamseg.maps.idmaps.histogram import is_tensor
from seamseg.maps.images import SEVERAL_FRAMES, as_rgb, open_image, pixels_of
from seamseg.utils.errors import InputError
from seamseg.utils.files import refuse_url
from seamseg.utils.limits import ALONE_PIXELS

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

MAX_INPUT = 1 << 28
"""Largest network input in pixels, whatever sizes are configured: more than the largest image has."""

WAITING_BYTES = 512 << 20
"""Limit of the images that wait for others of their size."""


@dataclass
class PreparedImage:
    """An image ready for the network.

    `pixels` is its input, `H x W x 3` uint8, see :func:`network_input`; `size` is `(height, width)` of the image
    itself, and `rgb`, `h x w x 3` uint8, the image if it is kept; one array if both are equal. `source_image` is the
    path or copy that a result refers to, if any; `several_frames` whether this is the first of several frames or pages
    of a file.
    """

    pixels: np.ndarray
    size: tuple[int, int]
    rgb: np.ndarray | None = None
    source_image: Path | Image.Image | None = None
    several_frames: bool = False

    @property
    def nbytes(self) -> int:
        """Memory of both arrays in bytes; that of one array counts once."""
        return self.pixels.nbytes + (0 if self.rgb is None or self.rgb is self.pixels else self.rgb.nbytes)


def prepare_image(
    given: ImageInput, input_size: InputSize, keep_rgb: bool = False, keep_source: bool = False
) -> PreparedImage:
    """Prepare an image for a network of an input size; errors as of :func:`as_image` and :func:`network_input`.

    Keep the pixels of the image itself (`keep_rgb`), and its path or a copy (`keep_source`).
    """
    # the decoded image is not kept: it may be larger than everything else
    image = as_image(given)
    source: Path | Image.Image | None = None
    if keep_source:
        # the caller may reuse the buffer of an image
        source = Path(given) if isinstance(given, (str, Path)) else image.copy()
    pixels = network_input(image, input_size)
    rgb = None
    if keep_rgb:
        is_input = input_size.crop is None and pixels.shape[:2] == (image.height, image.width)
        rgb = pixels if is_input else pixels_of(image)
    return PreparedImage(pixels, (image.height, image.width), rgb, source, image.info.get(SEVERAL_FRAMES, False))


def network_input(image: Image.Image, size: InputSize) -> np.ndarray:
    """Return an RGB image at the size of the network's input, `H x W x 3` uint8; the network normalises it.

    InputError if it would have more than :data:`MAX_INPUT` pixels, of a classifier before the crop.
    """
    height, width = size.scaled((image.height, image.width))
    if height * width > MAX_INPUT:
        raise InputError(
            f"the network's input would have {width} x {height} pixels, above the limit of {MAX_INPUT / 1e6:.0f} "
            f"million: choose a smaller {'`size`' if size.longest_size is not None else '`shortest_size`'}"
        )
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    if size.crop is not None:
        # torchvision rounds half to even where it cuts, and down where it pads
        top, left = (
            round((have - want) / 2) if have >= want else -((want - have) // 2)
            for have, want in zip((height, width), size.crop)
        )
        image = image.crop((left, top, left + size.crop[1], top + size.crop[0]))
    return pixels_of(image)


def equal_size_batches(
    items: Iterable[T],
    batch_size: int,
    size_of: Callable[[T], tuple[int, ...]],
    nbytes_of: Callable[[T], int] = lambda item: 0,
    in_order: bool = False,
    tiling: Tiling | None = None,
) -> Iterator[list[T]]:
    """Group items of equal network size, so that no image is padded and no result depends on other images.

    At most `2 * batch_size` items, and :data:`WAITING_BYTES`, wait for others of their size. An item that is large, or
    to be processed in tiles, is a batch of its own, at once. `in_order` groups only neighbours.
    """
    waiting: dict[Any, list[T]] = {}
    held = 0
    for item in items:
        size = size_of(item)
        alone = tiling is not None and tiling.side_for(size) is not None
        alone = alone or nbytes_of(item) > 3 * ALONE_PIXELS
        if in_order and waiting and (size not in waiting or alone):
            yield from waiting.values()
            waiting, held = {}, 0
        if alone:
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


ImageInput: TypeAlias = "str | Path | Image.Image | np.ndarray | Tensor"
"""A file, a PIL image, an `H x W x 3` uint8 RGB array, or a `3 x H x W` tensor, uint8 or float from 0 to 1."""


def as_image(image: ImageInput) -> Image.Image:
    """Return an RGB image, which may share memory with the input.

    UnreadableImage if the file is missing, broken or not an image; InputError if an array or tensor has another shape,
    type or range of values.
    """
    if isinstance(image, Image.Image):
        return as_rgb(image)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise InputError(
                f"an image as an array must be H x W x 3 uint8 RGB, this one is {image.shape} {image.dtype}"
            )
        return Image.fromarray(image)
    if isinstance(image, (str, Path)):
        refuse_url(image)
        return open_image(image)
    if not is_tensor(image):
        raise InputError(f"an image must be a path, PIL image, array or tensor, not {type(image).__name__}")
    shape = tuple(image.shape)
    known = image.is_floating_point() or str(image.dtype) == "torch.uint8"
    if image.dim() != 3 or shape[0] != 3 or 0 in shape or not known:
        raise InputError(
            f"an image as a tensor must be 3 x H x W RGB, uint8 or float from 0 to 1, this one is {shape} {image.dtype}"
        )
    image = image.detach().cpu()
    if image.is_floating_point():
        image = image.float()
        low, high = float(image.min()), float(image.max())
        # false for NaN; resizing may exceed the range by a rounding error
        if not (low >= -1e-3 and high <= 1 + 1e-3):
            raise InputError(
                "an image as a floating-point tensor must have values from 0 to 1, not normalised, this one has "
                f"{low:g} to {high:g}"
            )
        image = (image * 255).round().clamp(0, 255).byte()
    return Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
