"""Scores of small examples, computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seamseg.evaluation.cityscapes import InstanceLevel, PixelLevel, overlaps_of_frame, segments_from_pairs
from seamseg.evaluation.cityscapes.pixel_level import AVERAGE_SIZE
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


def test_iou_and_weighted_iou():
    ids = frame(v26001=(0, 0, 10, 10), v26002=(20, 0, 20, 20), v1=(0, 30, 10, 10))
    predicted = labels_of(ids).astype(np.uint8)
    predicted[0:5, 0:10] = 27  # half of the small car is called a truck
    predicted[0:10, 30:40] = 26  # on the ego vehicle, where nothing counts
    predicted[15:16, 0:10] = 26  # ten pixels of road
    level = PixelLevel()
    level.add(labels_of(ids), ids, predicted)
    scores = level.scores()
    classes, categories = by_name(scores.classes), by_name(scores.categories)
    assert classes["car"].IoU == pytest.approx(450 / (500 + 10))
    size = AVERAGE_SIZE["car"]
    assert classes["car"].iIoU == pytest.approx((size * 0.5 + size) / (2 * size + 10))
    assert classes["truck"].IoU == 0
    assert math.isnan(classes["truck"].iIoU) is False, "false pixels of a truck are a score of 0"
    road = (ids == 7).sum()
    assert classes["road"].IoU == pytest.approx((road - 10) / road)
    assert math.isnan(classes["sky"].IoU)
    # a truck is a vehicle as well
    assert categories["vehicle"].IoU == pytest.approx(500 / 510)
    assert categories["vehicle"].iIoU == pytest.approx(2 * size / (2 * size + 10))
    assert scores.IoU == pytest.approx(np.mean([450 / 510, 0, (road - 10) / road]))
    assert math.isnan(categories["sky"].IoU)


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


def test_average_precision_of_one_car():
    ids = frame(v26001=(0, 0, 10, 20))
    # IoU of 0.8: found at .5 to .75, and at .8 not, since it is not above
    found = (26, 0.9, patch(0, 0, 10, 16))
    one = average_precision(ids, found)
    assert one.AP50 == 1
    assert pytest.approx(0.6, abs=1e-15) == one.AP
    # a worse one of the same car is false, and does no harm behind
    assert average_precision(ids, found, (26, 0.5, patch(0, 0, 10, 15))).AP50 == 1
    # before it, a false one halves the precision, of which one half step counts
    assert average_precision(ids, (26, 0.5, patch(0, 0, 10, 16)), (26, 0.9, patch(25, 0, 10, 10))).AP50 == 0.25
    # of another class it is not the car's
    assert average_precision(ids, (27, 0.9, patch(0, 0, 10, 16))).AP50 == 0
    assert math.isnan(average_precision(frame(), found).AP50)


@pytest.mark.parametrize("ignored", ["v26", "v1", "v26002"])
def test_predictions_on_ignored_regions_are_no_errors(ignored):
    """A group, void, and a car under 100 pixels."""
    ids = frame(v26001=(0, 0, 10, 20), **{ignored: (30, 0, 9, 11)})
    right = (26, 0.5, patch(0, 0, 10, 20))
    assert average_precision(ids, (26, 0.9, patch(30, 0, 9, 11)), right).AP == 1
    assert average_precision(ids, (26, 0.9, patch(30, 20, 9, 11)), right).AP < 1
    # only ignored predictions: the car is missed
    assert average_precision(ids, (26, 0.9, patch(30, 0, 9, 11))).AP == 0


def test_single_caravans_are_not_void():
    right = (26, 0.5, patch(0, 0, 10, 20))
    for value, is_ignored in ((29, True), (29001, False)):
        ids = frame(v26001=(0, 0, 10, 20), **{f"v{value}": (30, 0, 9, 11)})
        assert (average_precision(ids, (26, 0.9, patch(30, 0, 9, 11)), right).AP == 1) is is_ignored


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
