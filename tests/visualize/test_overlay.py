"""Overlays: the original's composite to the last bit, labels, boxes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seamseg.structures import PanopticResult, Segment
from seamseg.visualize import as_palette, draw_boxes, draw_classic, draw_overlay, outlines, spread_palette
from seamseg.visualize.palette import readable_on

DATA = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module", params=["a", "e_area0"])
def golden(request):
    """photo, id map of half its size, classes, crowd flags, palette, expected picture"""
    with np.load(DATA / "render.npz") as render, np.load(DATA / "ops.npz") as ops:
        case = request.param
        ids, classes, crowd = (ops[f"pan_pre/{case}/out_{name}"] for name in ("msk", "cat", "iscrowd"))
        num_stuff = int(render["num_stuff"])
        photo, expected = render[f"{case}/input"], render[f"{case}/nearest/rgb"]
        return photo, ids, classes, crowd, render["palette"], num_stuff, expected


def test_classic_composite_is_the_originals(golden):
    photo, ids, classes, crowd, palette, num_stuff, expected = golden
    shown = np.where(crowd > 0, 255, classes)
    instances = (shown >= num_stuff) & (shown < 255)
    assert np.array_equal(draw_classic(photo, ids, shown, instances, palette), expected)


def test_overlay_of_a_result_is_the_classic_composite(golden):
    photo, ids, classes, crowd, palette, num_stuff, expected = golden
    segments = [
        Segment(i, int(classes[i]), bool(classes[i] >= num_stuff), 0.5, 1, (0, 0, 1, 1), bool(crowd[i]))
        for i in range(1, len(classes))
    ]
    assert np.array_equal(draw_overlay(photo, PanopticResult(ids.astype(np.int32), segments), palette), expected)


def _result() -> PanopticResult:
    ids = np.zeros((60, 120), np.int32)
    ids[:, :60] = 1
    ids[20:50, 70:110] = 2
    return PanopticResult(
        ids,
        [
            Segment(1, 0, False, None, 3600, (0, 0, 60, 60)),
            Segment(2, 1, True, 0.9, 1200, (20, 70, 50, 110)),
        ],
    )


def test_void_is_half_the_photo_and_stuff_has_no_outline():
    photo = np.full((60, 120, 3), 101, np.uint8)
    picture = draw_overlay(photo, _result(), [[200, 0, 0], [0, 0, 200]])
    assert (picture[5, 100] == 50).all()
    assert (picture[30, 59] == (150, 50, 50)).all() and (picture[30, 61] == 50).all()
    assert (picture[30, 90] == (50, 50, 150)).all()
    assert (picture[20, 90] == 255).all() and (picture[18, 90] == 255).all() and (picture[17, 90] == 50).all()


def test_photo_is_untouched_and_ids_without_a_segment_are_void():
    photo = np.full((60, 120, 3), 80, np.uint8)
    result = _result()
    result.id_map[0, 0] = 77
    before = photo.copy()
    picture = draw_overlay(photo, result, spread_palette(2))
    assert np.array_equal(photo, before) and (picture[0, 0] == 40).all()


def test_result_without_segments():
    photo = np.full((4, 5, 3), 200, np.uint8)
    assert (draw_overlay(photo, PanopticResult(np.zeros((4, 5), np.int32), []), []) == 100).all()


def test_labels_change_only_the_inside_of_large_segments():
    photo = np.full((240, 480, 3), 120, np.uint8)
    plain = draw_overlay(photo, _result(), spread_palette(2))
    named = draw_overlay(photo, _result(), spread_palette(2), ["road", "car"], labels=True)
    assert plain.shape == named.shape and (plain != named).any()
    assert np.array_equal(plain[:40], named[:40])
    with pytest.raises(ValueError, match="categories"):
        draw_overlay(photo, _result(), spread_palette(2), labels=True)


def test_instances_that_touch_are_parted():
    ids = np.zeros((9, 12), np.int64)
    ids[:, 2:6], ids[:, 6:10] = 1, 2
    lines = outlines(ids)
    assert lines[4, 5] and lines[4, 6] and not outlines(np.zeros((3, 3), np.int64)).any()


def test_boxes_are_drawn_with_an_exclusive_corner():
    photo = np.zeros((20, 30, 3), np.uint8)
    boxes = np.array([[2.0, 3.0, 10.0, 13.0], [np.nan, 0, 1, 1], [5, 5, 5, 5]])
    picture = draw_boxes(photo, boxes, np.array([0, 0, 0]), [[255, 0, 0]], width=1)
    assert (picture[2, 3] == (255, 0, 0)).all() and (picture[9, 12] == (255, 0, 0)).all()
    assert not picture[10].any() and not picture[:, 13].any() and not photo.any()
    assert draw_boxes(photo, np.zeros((0, 4))).sum() == 0
    assert draw_boxes(photo, boxes[:1], texts=["car .9"]).any()


def test_palettes():
    assert as_palette([[1, 2, 3]]).shape == (256, 3) and not as_palette([[1, 2, 3]])[255].any()
    colors = spread_palette(40).astype(int)
    apart = np.abs(colors[:, None] - colors[None]).sum(-1) + 1000 * np.eye(40, dtype=int)
    assert apart.min() > 20 and np.array_equal(colors, spread_palette(40))
    assert readable_on((255, 255, 0)) == (0, 0, 0) and readable_on((0, 0, 90)) == (255, 255, 255)
