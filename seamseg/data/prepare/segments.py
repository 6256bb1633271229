"""Maps of numbers that mean something in a source → instance ids 1, 2, ... with a class each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seamseg.data.metadata import Metadata
from seamseg.panoptic_map import VOID


def number_segments(
    values: np.ndarray, describe: Callable[[int], tuple[int, int]], classes: Metadata
) -> tuple[np.ndarray, list[int], list[int]]:
    """Give the segments of a map ids from 1, by rising value.

    Values of one stuff class become one segment. Each thing is a segment of its own.

    Parameters
    ----------
    values : `H x W` or `L x H x W` integers
    describe : `(class, crowd flag)` of a value that occurs; class 255 for void
    classes : tells which classes are things

    Returns
    -------
    ids : as `values`, uint8 or uint16, 0 void
    cat, iscrowd : class and crowd flag by id; entry 0 is void
    """
    flat = values.ravel()
    # only one value a run of equal ones is looked up: sorting all pixels would take most of the time
    start = np.flatnonzero(np.concatenate(([True], flat[1:] != flat[:-1])))
    present, run_value = np.unique(flat[start], return_inverse=True)
    cat, iscrowd = [VOID], [0]
    new_id = np.zeros(len(present), dtype=np.int64)
    stuff: dict[int, int] = {}
    for k, value in enumerate(present.tolist()):
        category, crowd = describe(value)
        if category == VOID:
            continue
        if not classes.is_thing(category) and category in stuff:
            new_id[k] = stuff[category]
            continue
        new_id[k] = stuff[category] = len(cat)
        cat.append(category)
        iscrowd.append(int(crowd) if classes.is_thing(category) else 0)
    dtype = np.uint8 if len(cat) <= 256 else np.uint16
    ids = np.repeat(new_id[run_value.ravel()].astype(dtype), np.diff(start, append=flat.size))
    return ids.reshape(values.shape), cat, iscrowd
