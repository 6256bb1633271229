"""Overlays: bit-identical to the original, labels, boxes."""

from pathlib import Path

import numpy as np
import pytest

from seamseg.maps.panoptic_map import PanopticResult, Segment
from seamseg.maps.visualize import distinct_colors, draw_boxes, draw_overlay, outlines, padded_palette
from seamseg.maps.visualize.overlay import class_colors, text_color, voc_color

DATA = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize("case", ["a", "e_area0"])
def test_overlays_equal_those_of_the_original(case):
    """Of an id map of half the size of the image."""
    with np.load(DATA / "render.npz") as render, np.load(DATA / "ops.npz") as ops:
        ids, classes, crowd = (ops[f"pan_pre/{case}/out_{name}"] for name in ("msk", "cat", "iscrowd"))
        palette, num_stuff = render["palette"], int(render["num_stuff"])
        photo, expected = render[f"{case}/input"], render[f"{case}/nearest/rgb"]
    segments = [
        Segment(i, int(classes[i]), bool(classes[i] >= num_stuff), 0.5, 1, (0, 0, 1, 1), bool(crowd[i]))
        for i in range(1, len(classes))
    ]
    for dtype in (np.int32, np.int64):
        assert np.array_equal(draw_overlay(photo, PanopticResult(ids.astype(dtype), segments), palette), expected)


def _result():
    ids = np.zeros((60, 120), np.int32)
    ids[:, :60] = 1
    ids[20:50, 70:110] = 2
    car = Segment(2, 1, True, 0.9, 1200, (20, 70, 50, 110))
    return PanopticResult(ids, [Segment(1, 0, False, None, 3600, (0, 0, 60, 60)), car])


def test_void_is_half_the_photo_and_stuff_has_no_outline():
    photo = np.full((60, 120, 3), 101, np.uint8)
    result = _result()
    result.id_map[0, 0] = 77
    picture = np.asarray(draw_overlay(photo, result, [[200, 0, 0], [0, 0, 200]]))
    assert (photo == 101).all()
    assert (picture[0, 0] == 50).all(), "an id without a segment"
    assert picture[[5, 30, 30, 30], [100, 59, 61, 90]].tolist() == [[50] * 3, [150, 50, 50], [50] * 3, [50, 50, 150]]
    assert picture[[20, 18, 17], 90].tolist() == [[255] * 3, [255] * 3, [50] * 3]
    ids = np.zeros((9, 12), np.int64)
    ids[:, 2:6], ids[:, 6:10] = 1, 2
    assert outlines(ids)[4, 5:7].all(), "adjacent instances are separated"


def test_labels_change_only_the_inside_of_large_segments():
    photo = np.full((240, 480, 3), 120, np.uint8)
    plain = np.asarray(draw_overlay(photo, _result(), distinct_colors(2)))
    named = np.asarray(draw_overlay(photo, _result(), distinct_colors(2), ["road", "car"], labels=True))
    assert plain.shape == named.shape
    assert (plain != named).any()
    assert np.array_equal(plain[:40], named[:40])
    with pytest.raises(ValueError, match="categories"):
        draw_overlay(photo, _result(), distinct_colors(2), labels=True)


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("shown", [(240, 480), (500, 999)])
def test_bands_give_the_same_image(shown, labels, monkeypatch):
    photo = np.random.default_rng(0).integers(0, 256, (*shown, 3), np.uint8)
    given = photo, _result(), distinct_colors(2), ["road", "car"], labels
    wanted = draw_overlay(*given)
    monkeypatch.setattr("seamseg.maps.visualize.overlay.BAND_BYTES", 3 * shown[1] * 7)
    assert np.array_equal(draw_overlay(*given), wanted)


def test_boxes_are_drawn_with_an_exclusive_corner():
    photo = np.zeros((20, 30, 3), np.uint8)
    boxes = np.array([[2.0, 3.0, 10.0, 13.0], [np.nan, 0, 1, 1], [5, 5, 5, 5]])
    picture = draw_boxes(photo, boxes, np.array([0, 0, 0]), [[255, 0, 0]], width=1)
    assert picture[[2, 9], [3, 12]].tolist() == [[255, 0, 0]] * 2
    assert not picture[10].any()
    assert not picture[:, 13].any()
    assert not photo.any()


def test_palettes():
    assert padded_palette([[1, 2, 3]]).shape == (256, 3)
    assert not padded_palette([[1, 2, 3]])[255].any()
    colors = distinct_colors(40).astype(int)
    apart = np.abs(colors[:, None] - colors[None]).sum(-1) + 1000 * np.eye(40, dtype=int)
    assert apart.min() > 20
    assert np.array_equal(colors, distinct_colors(40))
    assert text_color((255, 255, 0)) == (0, 0, 0)
    assert text_color((0, 0, 90)) == (255, 255, 255)


def test_chosen_colors_are_not_those_given():
    voc = [voc_color(k) for k in range(256)]
    assert class_colors([None, [*voc[3]], None, voc[1], None]) == [voc[2], voc[3], voc[4], voc[1], voc[5]]
    assert class_colors([None] * 255) == voc[1:]
