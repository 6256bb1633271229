"""What must be hidden in a photo so that nothing of some classes can be recognised."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch.nn import functional

from seamseg.evaluation.detections import paste_detections
from seamseg.idmaps.resize import resize_nearest
from seamseg.panoptic_map import PanopticResult
from seamseg.structures import Prediction
from seamseg.utils.errors import InputError

Style = Literal["blur", "pixels"]


@dataclass(frozen=True)
class Region:
    """Pixels to hide.

    Attributes
    ----------
    mask : bool `h x w`
    corner : `(y, x)` of its first pixel in the photo
    part : may be but a part of an object, as a face alone: it is made coarser
    """

    mask: np.ndarray
    corner: tuple[int, int] = (0, 0)
    part: bool = False


def hide(
    photo: np.ndarray,
    out: np.ndarray,
    region: Region,
    box: tuple[int, int, int, int],
    style: Style,
    cell: int,
    margin: float,
) -> None:
    (y0, x0, y1, x1), (height, width) = box, photo.shape[:2]
    longest = max(y1 - y0, x1 - x0)
    reach = 2 + math.ceil(margin * longest)
    fade = max(1, reach // 2)
    wide = reach + 2 * fade
    top, left, bottom, right = max(0, y0 - wide), max(0, x0 - wide), min(height, y1 + wide), min(width, x1 + wide)

    mask = torch.zeros((bottom - top, right - left))
    inside = region.mask[y0 - region.corner[0] : y1 - region.corner[0], x0 - region.corner[1] : x1 - region.corner[1]]
    mask[y0 - top : y1 - top, x0 - left : x1 - left] = torch.from_numpy(np.ascontiguousarray(inside, np.float32))
    # a mean of radius `fade` over what was widened by reach + fade is exactly 1 within reach: nothing shines through
    solid = _widen(mask, reach)
    alpha = _mean(_widen(mask, reach + fade), fade)
    alpha[solid > 0] = 1.0

    # torch warns of arrays that may not be written to, as those of pictures
    pixels = torch.from_numpy(photo[top:bottom, left:right].astype(np.float32)).permute(2, 0, 1)
    hidden = _coarse(pixels, solid, cell, style)
    behind = torch.from_numpy(np.ascontiguousarray(out[top:bottom, left:right])).permute(2, 0, 1).float()
    mixed = torch.where(solid > 0, hidden, behind + alpha * (hidden - behind))
    out[top:bottom, left:right] = mixed.add_(0.5).clamp_(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()


def _coarse(pixels: torch.Tensor, mask: torch.Tensor, cell: int, style: Style) -> torch.Tensor:
    """The averages over cells of what lies in the mask, drawn at the size of the pixels, `3 x h x w`."""
    height, width = mask.shape
    rows, columns = -(-height // cell), -(-width // cell)
    padding = (0, columns * cell - width, 0, rows * cell - height)
    weighted = functional.pad(torch.cat((pixels * mask, mask[None])), padding)
    sums = weighted.view(4, rows, cell, columns, cell).sum((2, 4))
    # an average over few pixels at the rim would show them: each takes in its neighbours by their number of pixels
    kernel = torch.tensor([1.0, 2.0, 1.0])
    kernel = (kernel[:, None] * kernel).expand(4, 1, 3, 3)
    mixed = functional.conv2d(sums[None], kernel, padding=1, groups=4)[0]
    # cells that see nothing of the mask lie in the fading rim: they take the colour nearest by
    while not bool((mixed[3] > 0).all()):
        wider = functional.conv2d(mixed[None], kernel, padding=1, groups=4)[0]
        mixed = torch.where(mixed[3] > 0, mixed, wider)
    colours = mixed[:3] / mixed[3]
    size = [rows * cell, columns * cell]
    if style == "pixels":
        full = functional.interpolate(colours[None], size, mode="nearest")[0]
    else:
        full = functional.interpolate(colours[None], size, mode="bilinear", align_corners=False)[0]
    return full[:, :height, :width]


def _widen(mask: torch.Tensor, radius: int) -> torch.Tensor:
    """1 where a 1 is not farther than `radius` along both axes."""
    return (_window_sums(mask, radius) > 0.5).float()


def _mean(mask: torch.Tensor, radius: int) -> torch.Tensor:
    """Mean over squares, the border repeated outwards."""
    full = functional.pad(mask[None, None], (radius,) * 4, mode="replicate")[0, 0]
    side = 2 * radius + 1
    return (_window_sums(full, radius)[radius:-radius, radius:-radius] / side**2).float()


def _window_sums(values: torch.Tensor, radius: int) -> torch.Tensor:
    """Sums over squares of `2 * radius + 1`, by running sums (float64, exact for whole numbers)."""
    height, width = values.shape
    sums = functional.pad(values.double(), (radius + 1, radius) * 2).cumsum(0).cumsum(1)
    side = 2 * radius + 1
    bottom, top = sums[side:], sums[:-side]
    return (bottom[:, side:] - bottom[:, :-side] - top[:, side:] + top[:, :-side])[:height, :width]


CELLS = 8
"""Averages along the longer side of a region: of a person who stands, less than one for each way across the face."""
LEAST_CELL = 8
"""Side of the smallest averages in pixels, or :data:`LEAST_PART` of the photo's longer side if that is more."""
LEAST_PART = 1 / 128
MARGIN = 0.05
"""What is hidden around a region, as part of its size; one cell of a mask of 28 x 28 is 0.036."""


def anonymize(
    photo: np.ndarray, regions: Iterable[Region], style: Style = "blur", cells: int = CELLS, margin: float = MARGIN
) -> np.ndarray:
    """Hide regions of a photo.

    Each region with a margin around it becomes a coarse grid of averages, at most `cells` along its longer side, each
    of them mixed with its neighbours. Nothing else of its pixels is left, so there is no filter to turn round, whatever
    the size of the region. Where regions overlap the coarser one counts. Beyond the margin the picture fades back into
    the photo.

    Parameters
    ----------
    photo : uint8 `H x W x 3`; is not changed
    regions : of any shape; they may overlap and reach beyond the photo. Each is coarse by its own size: hand in one
        region a person, and what is no whole object by :func:`clusters`
    style : "blur" (the averages flow into one another) or "pixels" (squares)
    cells : averages along the longer side, at least 1
    margin : part of the region's size, at least 0; two pixels are always added

    Returns
    -------
    uint8 `H x W x 3`

    Raises
    ------
    ValueError
        if an argument is out of range
    """
    if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3:
        raise ValueError(f"anonymize: the photo must be H x W x 3 uint8, it is {photo.shape} {photo.dtype}")
    if cells < 1 or not margin >= 0 or style not in ("blur", "pixels"):
        raise ValueError(f'anonymize: cells {cells}, margin {margin}, style {style}; see "Parameters"')
    pass

    out = photo.copy()
    boxed = [(region, _box(region, (photo.shape[0], photo.shape[1]))) for region in regions]
    least = max(LEAST_CELL, math.ceil(LEAST_PART * max(photo.shape)))
    work = [(max(least, _cell(region, box, cells)), region, box) for region, box in boxed if box is not None]
    # the coarsest last: a finer one drawn over it would bring details back
    for cell, region, box in sorted(work, key=lambda item: item[0]):
        hide(photo, out, region, box, style, cell, margin)
    return out


def clusters(mask: np.ndarray, cells: int = 64) -> Iterator[Region]:
    """Parts of a mask that lie apart, such as pixels of a class that belong to no detection.

    Parts closer than a cell count as one.

    Parameters
    ----------
    mask : bool `H x W`
    cells : along the longer side of the mask
    """
    if not mask.any():
        return
    side = max(1, math.ceil(max(mask.shape) / cells))
    firsts = (np.arange(0, length, side) for length in mask.shape)
    coarse = mask
    for axis, first in enumerate(firsts):
        coarse = np.logical_or.reduceat(coarse, first, axis=axis)
    labels = _connected(coarse)
    for label in np.unique(labels[labels > 0]):
        own = labels == label
        (y0, y1), (x0, x1) = (_ends(own.any(1 - axis)) for axis in (0, 1))
        near = own[y0:y1, x0:x1].repeat(side, axis=0).repeat(side, axis=1)
        crop = mask[y0 * side : y1 * side, x0 * side : x1 * side]
        crop = crop & near[: crop.shape[0], : crop.shape[1]]
        (top, bottom), (left, right) = (_ends(crop.any(1 - axis)) for axis in (0, 1))
        yield Region(crop[top:bottom, left:right], (y0 * side + top, x0 * side + left), part=True)


def _ends(line: np.ndarray) -> tuple[int, int]:
    """The first true element, and one more than the last."""
    found = np.flatnonzero(line)
    return int(found[0]), int(found[-1]) + 1


def _connected(cells: np.ndarray) -> np.ndarray:
    """A number for each group of neighbouring cells (also over corners), 0 elsewhere: the largest index spreads."""
    labels = np.where(cells, np.arange(1, cells.size + 1).reshape(cells.shape), 0)
    while True:
        around = np.pad(labels, 1)
        wider = np.maximum(np.maximum(around[:-2], around[1:-1]), around[2:])
        wider = np.maximum(np.maximum(wider[:, :-2], wider[:, 1:-1]), wider[:, 2:])
        spread = np.where(cells, wider, 0)
        if np.array_equal(spread, labels):
            return labels
        labels = spread


def _box(region: Region, size: tuple[int, int]) -> tuple[int, int, int, int] | None:
    """`(y0, x0, y1, x1)` of the pixels of a region that lie in the photo; None without any."""
    rows, columns = np.flatnonzero(region.mask.any(1)), np.flatnonzero(region.mask.any(0))
    if not len(rows):
        return None
    (y, x), (height, width) = region.corner, size
    y0, y1 = max(0, y + int(rows[0])), min(height, y + int(rows[-1]) + 1)
    x0, x1 = max(0, x + int(columns[0])), min(width, x + int(columns[-1]) + 1)
    return None if y0 >= y1 or x0 >= x1 else (y0, x0, y1, x1)


def _cell(region: Region, box: tuple[int, int, int, int], cells: int) -> int:
    """Side of the averages of a region in pixels."""
    longest, shortest = max(box[2] - box[0], box[3] - box[1]), min(box[2] - box[0], box[3] - box[1])
    # a row of people is long, but each of them is as high as the row
    return math.ceil(min(longest / min(cells, 3), shortest) if region.part else longest / cells)


LEAST_SCORE = 0.2
"""Detections that are hidden, though the panoptic map may leave them out: to hide too much costs little."""


def private_regions(
    result: PanopticResult,
    prediction: Prediction | None,
    classes: Sequence[int],
    num_stuff: int,
    least_score: float = LEAST_SCORE,
) -> Iterator[Region]:
    """All that may be of some classes, a region an object.

    These are the segments of the map; detections that the map leaves out, because their score is low or others cover
    them; and pixels that the semantic head takes for such a class though no object was found: crowds, parts of objects,
    spots too small for the map.

    Parameters
    ----------
    result : the panoptic map, at the size of the photo
    prediction : what the network said; without it the segments are all that is known
    classes : indices, stuff first
    num_stuff : stuff classes
    least_score : of detections, 0 to 1

    Raises
    ------
    InputError
        if the score is out of range
    """
    if not 0 <= least_score <= 1:
        raise InputError(f"the least score of what is hidden must be between 0 and 1, not {least_score}")
    chosen = set(classes)
    rest = np.zeros(result.size, bool)
    covered = np.zeros(result.size, bool)
    for segment in result.segments:
        if segment.category not in chosen:
            continue
        y0, x0, y1, x1 = (int(v) for v in segment.box)
        mask = result.id_map[y0:y1, x0:x1] == segment.id
        if segment.isthing and not segment.iscrowd:
            covered[y0:y1, x0:x1] |= mask
            yield Region(mask, (y0, x0))
        else:
            rest[y0:y1, x0:x1] |= mask
    if prediction is not None:
        for found in paste_detections(prediction, result.size):
            if found.category + num_stuff not in chosen or found.score < least_score:
                continue
            region = _region_of(found.crop, found.corner, found.box, result.size)
            (y, x), (height, width) = region.corner, region.mask.shape
            covered[y : y + height, x : x + width] |= region.mask
            yield region
        if prediction.semantic is not None:
            semantic = prediction.semantic.cpu().numpy()
            rest |= resize_nearest(np.isin(semantic, list(chosen)), result.size)
    yield from clusters(rest & ~covered)


def hide_classes(
    rgb: np.ndarray,
    result: PanopticResult,
    prediction: Prediction | None,
    classes: Sequence[int],
    num_stuff: int,
    style: Style = "blur",
    least_score: float = LEAST_SCORE,
) -> np.ndarray:
    """The photo `H x W x 3` without anything of some classes, see :func:`private_regions`; InputError as there."""
    if style not in ("blur", "pixels"):
        raise InputError(f"style must be blur or pixels, not {style!r}")
    return anonymize(rgb, private_regions(result, prediction, classes, num_stuff, least_score), style)


def _region_of(
    crop: np.ndarray | None, corner: tuple[int, int], box: tuple[float, ...], size: tuple[int, int]
) -> Region:
    """The mask of a detection; its whole box if it has none."""
    if crop is not None:
        return Region(crop, corner)
    y0, x0 = max(0, int(box[0])), max(0, int(box[1]))
    y1, x1 = min(size[0], int(np.ceil(box[2]))), min(size[1], int(np.ceil(box[3])))
    return Region(np.ones((max(0, y1 - y0), max(0, x1 - x0)), bool), (y0, x0))
