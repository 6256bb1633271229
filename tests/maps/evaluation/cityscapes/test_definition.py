"""Scores of small examples, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from seamseg.maps.evaluation.cityscapes import segments_from_pairs
from seamseg.maps.idmaps.histogram import joint_histogram
from seamseg.utils.errors import InputError


def frame(side=40, **regions):
    """A map of road with regions `v26001=(top, left, height, width)`."""
    ids = np.full((side, side), 7, np.int32)
    for name, (top, left, height, width) in regions.items():
        ids[top : top + height, left : left + width] = int(name[1:])
    return ids


def test_panoptic_segments_of_a_frame():
    ids = frame(v26001=(0, 0, 10, 10), v26=(20, 0, 5, 5), v29001=(30, 0, 5, 5), v9=(35, 0, 5, 5))
    pairs, segments = segments_from_pairs(*joint_histogram(ids, ids))
    assert [(s.id, s.category, s.iscrowd, s.area) for s in segments] == [
        (7, 0, False, 1600 - 175), (26, 13, True, 25), (26001, 13, False, 100)
    ]  # fmt: skip
    assert pairs[pairs[:, 1] == 29001, 0] == pairs[pairs[:, 1] == 9, 0] == 0


@pytest.mark.parametrize("value", [34, 34001])
def test_invalid_labels(value):
    ids = frame(**{f"v{value}": (0, 0, 5, 5)})
    with pytest.raises(InputError, match=f"{value} is not a Cityscapes instance id"):
        segments_from_pairs(*joint_histogram(ids, ids))
