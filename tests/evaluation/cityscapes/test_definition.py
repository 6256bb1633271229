"""Scores of small examples, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from seamseg.evaluation.cityscapes import InstanceLevel, PixelLevel, overlaps_of_frame, segments_from_pairs
from seamseg.formats.cityscapes.instance_files import Patch
from seamseg.idmaps.histogram import joint_histogram
from seamseg.utils.errors import InputError


def by_name(entries):
    return {entry.name: entry for entry in entries}


def frame(side=40, **regions):
    """A map of road with regions `v26001=(top, left, height, width)`."""
    ids = np.full((side, side), 7, np.int32)
    for name, (top, left, height, width) in regions.items():
        ids[top : top + height, left : left + width] = int(name[1:])
    return ids


def labels_of(ids):
    return np.where(ids < 1000, ids, ids // 1000)


def patch(top, left, height, width, side=40):
    return Patch((side, side), top, left, np.ones((height, width), bool))


def average_precision(ids, *predictions):
    level = InstanceLevel()
    level.add(overlaps_of_frame(ids, predictions))
    return by_name(level.scores().classes)["car"]


def test_licence_plates_are_void():
    ids = frame(v26001=(0, 0, 10, 20), v65535=(5, 0, 5, 20))
    labels = labels_of(ids)
    labels[5:10, 0:20] = 255
    level = PixelLevel()
    level.add(labels.astype(np.uint8), ids, np.where(labels == 26, 26, 7).astype(np.uint8))
    assert by_name(level.scores().classes)["road"].IoU == 1
    # a prediction on the plate is neither right nor false
    assert average_precision(ids, (26, 0.9, patch(5, 0, 5, 20)), (26, 0.5, patch(0, 0, 5, 20))).AP == 1
    pairs, segments = segments_from_pairs(*joint_histogram(ids, ids))
    assert {s.id for s in segments} == {7, 26001}
    assert 0 in pairs[:, 0]


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
        overlaps_of_frame(ids, [])
    with pytest.raises(InputError, match=f"{value} is not a Cityscapes instance id"):
        segments_from_pairs(*joint_histogram(ids, ids))


def test_instances_of_stuff_have_no_weight():
    ids = frame(v7001=(0, 0, 5, 5))
    with pytest.raises(InputError, match="7001 is an instance of road"):
        PixelLevel().add(labels_of(ids), ids, labels_of(ids))
