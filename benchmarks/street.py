"""Synthetic training images for the scripts of this folder: bands of stuff with rectangles of things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.maps.panoptic_map import VOID
from seamseg.ops.labels import extract_boxes
from seamseg.structures import Batch, PackedSequence


@dataclass(frozen=True)
class Scene:
    """What is on a street.

    Attributes
    ----------
    num_stuff, num_thing : classes; every stuff class is a band, things take turns
    rows, columns : the grid on which things stand, one each
    side : height and width of thing `i` on an image of `(height, width)`
    """

    num_stuff: int
    num_thing: int
    rows: int
    columns: int
    side: Callable[[int, int, int], tuple[int, int]]


CITYSCAPES = Scene(11, 8, 5, 4, lambda i, height, width: (height // 8 + 4 * i, width // 10 + 3 * i))
"""20 things, the later ones larger."""
VISTAS = Scene(28, 37, 6, 10, lambda i, height, width: (height // (8 + i % 5), width // (12 + i % 7)))
"""60 things of about a size."""


def street(images: list[Tensor], scene: Scene) -> Batch:
    """Make a batch of images `3 x H x W` of one size, which all show the scene."""
    height, width = images[0].shape[-2:]
    masks = torch.zeros(1, height, width, dtype=torch.long)
    categories = [VOID]
    for stuff in range(scene.num_stuff):
        masks[0, height * stuff // scene.num_stuff :] = len(categories)
        categories.append(stuff)
    for i in range(scene.rows * scene.columns):
        y, x = height * (i % scene.rows) // scene.rows, width * (i // scene.rows) // scene.columns
        high, wide = scene.side(i, height, width)
        masks[0, y : y + high, x : x + wide] = len(categories)
        categories.append(scene.num_stuff + i % scene.num_thing)
    return Batch(
        images=PackedSequence(images),
        masks=PackedSequence([masks for _ in images]),
        categories=PackedSequence([torch.tensor(categories) for _ in images]),
        iscrowd=PackedSequence([torch.zeros(len(categories), dtype=torch.uint8) for _ in images]),
        boxes=PackedSequence([extract_boxes(masks, len(categories)) for _ in images]),
        ids=[str(i) for i in range(len(images))],
        original_sizes=[(height, width) for _ in images],
    )


def noise(height: int, width: int) -> list[Tensor]:
    """Make an image of noise, always the same."""
    return [torch.randn(3, height, width, generator=torch.Generator().manual_seed(0))]


def smooth(height: int, width: int, cells: tuple[int, int]) -> Tensor:
    """Make an image of soft colours: enlarged noise, from the global generator of torch."""
    return functional.interpolate(torch.randn(1, 3, *cells), size=(height, width), mode="bicubic")[0]
