"""From detections and a class map to a map of segments, in numpy or the C library, without torch.

See docs/contract.md, section 4 "Fusion". The same operators on tensors are :mod:`seamseg.ops.labels`.
"""

from __future__ import annotations

import numpy as np

from seamseg.maps.idmaps import library, reference

Region = tuple[int, int, int, int]
"""Position of a crop: `(y0, x0, y1, x1)`."""


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return `1 / (1 + exp(-x))` as float32; it is computed in float64, so that all machines agree on its bits."""
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)


def paste_masks(
    ids: np.ndarray, masks: np.ndarray, boxes: np.ndarray, overlap_threshold: float, keep_empty: bool = False
) -> np.ndarray:
    """Paste instances one after the other, each onto the pixels still free; ids start at 1.

    Parameters
    ----------
    ids : `H x W` int32, 0 where free; written in place
    masks : `K x h x w` float32 probabilities, best score first
    boxes : `K x 4` float32, image pixels
    overlap_threshold : an instance is dropped if others have taken more than this fraction of its pixels
    keep_empty : assign an id to an instance without pixels

    Returns
    -------
    `K` bool, whether each instance got an id; these are numbered in order

    Raises
    ------
    ValueError
        if an argument has another type or shape
    """
    _require("paste_masks", "ids", ids, np.int32, 2)
    _require("paste_masks", "masks", masks, np.float32, 3)
    if boxes.shape != (masks.shape[0], 4) or boxes.dtype != np.float32:
        raise ValueError(f"paste_masks: boxes must be {masks.shape[0]} x 4 float32, got {boxes.shape} {boxes.dtype}")
    return (library.functions or reference).paste_masks(ids, masks, boxes, overlap_threshold, keep_empty)


def paste_mask(mask: np.ndarray, box: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, Region]:
    """Return the pixels of one instance, as a crop, bool, and the region of the crop.

    Parameters
    ----------
    mask : `h x w` float32 probabilities
    box : `4` float32, image pixels
    size : `(height, width)` of the image

    Raises
    ------
    ValueError
        if an argument has another type or shape
    """
    _require("paste_mask", "mask", mask, np.float32, 2)
    if box.shape != (4,) or box.dtype != np.float32:
        raise ValueError(f"paste_mask: box must be 4 float32, got {box.shape} {box.dtype}")
    return (library.functions or reference).paste_mask(mask, box, size)


def count_classes(classes: np.ndarray, ids: np.ndarray | None = None) -> np.ndarray:
    """Count the pixels of each class of a map `H x W` uint8, only where an id map is 0 if it is given: `256` int64."""
    _require("count_classes", "classes", classes, np.uint8, 2)
    if ids is not None:
        _require("count_classes", "ids", ids, np.int32, 2, classes.shape)
    return (library.functions or reference).count_classes(classes, ids)


def fill_free(ids: np.ndarray, classes: np.ndarray, id_of_class: np.ndarray) -> None:
    """Set every free pixel of an id map `H x W` int32 to the id of its class, of `256` int32; 0 leaves it free."""
    _require("fill_free", "classes", classes, np.uint8, 2)
    _require("fill_free", "ids", ids, np.int32, 2, classes.shape)
    _require("fill_free", "id_of_class", id_of_class, np.int32, 1, (256,))
    (library.functions or reference).fill_free(ids, classes, id_of_class)


def areas_and_boxes(ids: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Measure the ids below `n` of a map `H x W` int32.

    Returns
    -------
    areas : `n` int64, pixels
    boxes : `n x 4` float32, `(y0, x0, y1, x1)`, -1 for ids that are absent
    """
    _require("areas_and_boxes", "ids", ids, np.int32, 2)
    return (library.functions or reference).areas_and_boxes(ids, n)


def _require(
    function: str, name: str, value: np.ndarray, dtype: type, dims: int, shape: tuple[int, ...] | None = None
) -> None:
    if value.dtype != dtype or value.ndim != dims or (shape is not None and value.shape != shape):
        wanted = f"{dims} dimensions" if shape is None else f"the shape {shape}"
        raise ValueError(f"{function}: {name} must be {np.dtype(dtype)} with {wanted}, got {value.shape} {value.dtype}")
