"""Positions of tiles; results in tiles equal those of the whole image."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.predictors import StandIn, as_input
from support.sections import roi

from seamseg.fusion import fuse, to_result
from seamseg.inference.options import Tiling
from seamseg.inference.tiling import STRIDE, Span, Tile, _resampled, merge_detections, predict_in_tiles, spans, tiles_of
from seamseg.maps.predictions import Prediction
from seamseg.models.panoptic_inference import DetectionSelector
from seamseg.ops.labels import extract_boxes
from seamseg.structures import PackedSequence
from seamseg.utils.errors import InputError


@given(st.integers(1, 3000), st.integers(2 * STRIDE, 600), st.floats(0, 0.5))
def test_spans_cover_an_axis(length, side, share):
    overlap = int(side * share)
    found = spans(length, side, overlap)
    assert [s.core_start for s in found] == [0, *(s.core_stop for s in found[:-1])]
    assert found[-1].core_stop == length
    for span in found:
        assert 0 <= span.start <= span.core_start < span.core_stop <= span.stop <= length
        assert span.start % STRIDE == 0
        assert span.stop - span.start <= side
    for one, other in itertools.pairwise(found):
        assert one.stop - other.start >= overlap
        assert one.start < other.start
        assert abs((one.stop - one.core_stop) - (other.core_start - other.start)) <= 1
    assert len(found) == 1 or min(s.stop - s.start for s in found) > side - STRIDE
    tiles = [(t.row, t.column, t.y, t.x) for t in tiles_of((length, 40), side, overlap)]
    assert tiles == [(k, 0, span, Span(0, 40, 0, 40)) for k, span in enumerate(found)]


@pytest.mark.parametrize(
    ("tiles", "size", "side"),
    [
        ("auto", (1920, 7680), None),  # the longest default input of all published configurations
        ("auto", (4096, 4096), None),
        ("auto", (4097, 4096), 2048),
        ("off", (10**5, 10**5), None),
        (512, (512, 512), None),
        (512, (1, 5000), None),
        (512, (513, 512), 512),
    ],
)
def test_which_images_are_tiled(tiles, size, side):
    assert Tiling(tiles).side_for(size) == side
    assert Tiling().overlap_for(2048) == 512
    assert Tiling(1024, 100).overlap_for(1024) == 100
    assert Tiling(1024, 500).overlap_for(128) == 64


def test_bad_tiling():
    for wrong in (("on", None), (127, None), (512, 257), (512, -1)):
        with pytest.raises(InputError, match="tile"):
            Tiling(*wrong)


def boxes_of(*rows):
    values = np.array(rows, np.float32).reshape(-1, 6)
    return Prediction(values[:, :4], values[:, 5].astype(int), values[:, 4], None, None, (1, 1))


ROW = [Tile(0, k, Span(0, 128, 0, 128), Span(96 * k, 96 * k + 128, 96 * k, 96 * k + 128)) for k in range(3)]


def merged(*tiles, coarse=(), grain=1.0):
    """Merge boxes in three tiles of a row, of 128 pixels, that overlap by 32."""
    found = merge_detections(
        [(tile, boxes_of(*rows)) for tile, rows in zip(ROW, tiles)], boxes_of(*coarse), grain, 32, 0.5
    )
    rows = zip(found.boxes.tolist(), found.scores.tolist(), found.classes.tolist())
    return [(*box, pytest.approx(score), category) for box, score, category in rows]


def test_a_box_that_an_edge_cuts_is_dropped_if_another_tile_has_room_for_it():
    """Whatever their scores; a box is cut up to 4 pixels from an inner edge."""
    whole = (10, 80, 30, 118, 0.8, 0)
    assert merged([whole], [(10, 96, 30, 118, 0.9, 0)], []) == [whole]
    assert merged([(10, 101, 30, 128, 0.9, 0)], [(10, 101, 30, 140, 0.8, 0)], []) == [(10, 101, 30, 140, 0.8, 0)]
    inside, outer = (10, 60, 30, 124, 0.9, 0), (50, 0, 128, 40, 0.8, 0)
    assert merged([inside, outer], [], []) == [inside, outer]


def test_boxes_of_a_class_suppress_each_other():
    """From the threshold on: those of 20 x 20 pixels share 3/5, 1/2 and 3/7; the order is by class, then by score."""
    first, others = (40, 10, 60, 30, 0.5, 1), [(45, 10, 65, 30, 0.4, 1), (40, 3.3333333, 60, 23.333334, 0.3, 1)]
    last, another = (40, 18, 60, 38, 0.2, 1), (40, 10, 60, 30, 0.9, 2)
    assert merged([another, last, *others, first], [], []) == [first, last, another]


def test_large_objects_come_from_the_coarse_view():
    """Those above half the largest size that is whole in some tile, of 24 pixels; of thin ones, pieces are better."""
    small, large, thin = (50, 40, 62, 52, 0.9, 0), (70, 40, 86, 256, 0.8, 0), (100, 20, 108, 180, 0.7, 0)
    medium = (20, 40, 33, 52.5, 0.5, 0)
    of_large, of_thin = (70, 40, 86, 128, 0.9, 0), [(100, 20, 108, 128, 0.6, 0), (100, 96, 108, 180, 0.5, 0)]
    assert merged([of_large], [], [], coarse=[small, medium, large]) == [large, medium]
    assert merged([of_thin[0]], [of_thin[1]], [], coarse=[thin]) == [(100, 20, 108, 180, 0.6, 0)]
    assert merged([], [], [], coarse=[thin]) == [thin]
    # with twice as large pixels the other one is thin, too
    assert merged([of_large], [(70, 96, 86, 224, 0.5, 0)], [], coarse=[large], grain=2) == [(70, 40, 86, 224, 0.9, 0)]


def test_pieces_of_several_objects_are_joined():
    """Through three tiles, in any order, with the best score; pieces that agree too little or differ in class stay."""
    first = [(0, 40, 20, 128, 0.5, 0), (30, 50, 50, 128, 0.51, 0)]
    second = [(30, 96, 50, 224, 0.6, 0), (0, 96, 20, 224, 0.61, 0)]
    found = merged(first, second, [(0, 192, 20, 310, 0.7, 0)])
    assert found == [(0, 40, 20, 310, 0.7, 0), (30, 50, 50, 224, 0.6, 0)]
    first = [(60, 40, 70, 128, 0.5, 0), (80, 40, 90, 128, 0.4, 1)]
    second = [(66, 96, 76, 190, 0.3, 0), (80, 96, 90, 190, 0.2, 2)]
    assert sorted(merged(first, second, [])) == sorted((*first, *second))


@pytest.mark.parametrize("boxes", [{0: (40, 40, 128, 128), 3: (96, 96, 190, 190)},
                                   {1: (40, 96, 128, 190), 2: (96, 40, 190, 128)}])  # fmt: skip
def test_pieces_in_tiles_that_meet_at_a_corner_are_joined(boxes):
    tiles = tiles_of((224, 224), 128, 32)
    parts = [(tiles[number], boxes_of((*box, 0.5, 0))) for number, box in boxes.items()]
    assert merge_detections(parts, boxes_of(), 1.0, 32, 0.5).boxes.tolist() == [[40, 40, 190, 190]]


@pytest.mark.parametrize("box", [(2, 4, 8, 14), (0, 0, 9, 20), (3, 3, 4, 30)])
def test_masks_are_resampled_bilinearly_within_their_box(box):
    own, mask = (2, 4, 8, 14), np.random.default_rng(0).random((5, 7), np.float32)
    expected = mask
    for axis, cells in enumerate(mask.shape):
        at, of = (b[axis] + (np.arange(cells) + 0.5) / cells * (b[axis + 2] - b[axis]) for b in (box, own))
        inside = (at >= own[axis]) & (at <= own[axis + 2])
        expected = np.apply_along_axis(
            lambda v, at=at, of=of, inside=inside: np.interp(at, of, v) * inside, axis, expected
        )
    found = _resampled(mask, np.array(own, np.float32), np.array(box, np.float32))
    np.testing.assert_allclose(found, expected, atol=1e-6)


STUFF = 3
CELLS = 28
STEP = 40


def scene(size, boxes, rng):
    """`H x W x 3` uint8: red is a random stuff class in blotches; blue says that there is one of up to six objects,
    green which one, as a part of blue: so that pixels can be blended with those around it."""
    height, width = size
    blotches = rng.integers(0, STUFF, (height // 7 + 1, width // 7 + 1))
    rgb = np.zeros((height, width, 3), np.uint8)
    rgb[..., 0] = np.kron(blotches, np.ones((7, 7), int))[:height, :width]
    for number, (y0, x0, y1, x1) in enumerate(boxes, 1):
        rgb[y0:y1, x0:x1, 1:] = number * STEP, 240
    return rgb


class SceneNet(StandIn):
    """Sees what :func:`scene` drew, but no objects with a side shorter than `least`; fails above `room` pixels."""

    def __init__(self, least=1, room=None, error=None):
        super().__init__()
        self.options = SimpleNamespace(selector=DetectionSelector(roi()), run_dense=None)
        self.nms_threshold = roi().nms_threshold
        self.least = least
        self.room, self.error = room, error
        self.sizes = []

    def predict(self, images, least_score=0.0):
        if self.room is not None and sum(i.shape[-2] * i.shape[-1] for i in images) > self.room:
            raise self.error or torch.OutOfMemoryError("CUDA out of memory")
        return [self._see(image) for image in images]

    def _see(self, image):
        red, green, blue = image * 255
        ids = torch.where(blue > 120, (green / blue.clamp(min=1) * (240 / STEP)).round(), 0).long()
        self.sizes.append((int(image.shape[-2]), int(image.shape[-1])))
        boxes = extract_boxes(ids, 7)[1:]
        sides = boxes[:, 2:] - boxes[:, :2]
        boxes = boxes[(boxes[:, 0] >= 0) & (sides >= self.least).all(1)]
        count = boxes.shape[0]
        return Prediction(
            boxes,
            torch.zeros(count, dtype=torch.long),
            torch.full((count,), 0.9),
            torch.full((count, CELLS, CELLS), 9.0),
            red.round().long(),
            self.sizes[-1],
        )


def in_tiles(net, rgb, side, overlap):
    return predict_in_tiles(lambda part: whole(net, part), rgb, side, overlap, 0.3)


def whole(net, rgb):
    return net.predict(PackedSequence([as_input(rgb.copy())]))[0].on_cpu()


def result_of(prediction):
    return to_result(fuse(prediction, STUFF, min_stuff_area=0), prediction.size, STUFF)


def assert_same(one, other):
    assert np.array_equal(one.semantic, other.semantic)
    ours, theirs = result_of(one), result_of(other)
    assert (ours.id_map > 0).all()
    things = [sorted((s.box, s.area) for s in r.segments if s.isthing) for r in (ours, theirs)]
    assert things[0] == things[1]
    assert np.array_equal(category_map(ours), category_map(theirs))


def category_map(result):
    categories = {0: 0, **{segment.id: segment.category for segment in result.segments}}
    return np.vectorize(categories.get)(result.id_map)


@settings(max_examples=25)
@given(
    st.tuples(st.integers(1, 400), st.integers(1, 400)) | st.tuples(st.just(1), st.integers(1, 2000)),
    st.integers(64, 200),
    st.floats(0, 0.5),
    st.integers(0, 2**31),
)
def test_classes_in_tiles_are_those_of_the_whole(size, side, share, seed):
    rgb = scene(size, [], np.random.default_rng(seed))
    seen = in_tiles(SceneNet(), rgb, side, int(side * share))
    assert seen.size == size
    assert seen.semantic.dtype == np.uint8
    assert_same(seen, whole(SceneNet(), rgb))


def test_an_object_at_a_corner_of_four_tiles():
    for offset in range(90, 134, 4):
        rgb = scene((224, 224), [(offset, offset, offset + 20, offset + 20)], np.random.default_rng(0))
        assert_same(in_tiles(SceneNet(), rgb, 128, 32), whole(SceneNet(), rgb))


GAP = 10
"""Pixels between objects, which the coarse view must not blend."""


@st.composite
def apart(draw):
    size = draw(st.tuples(st.integers(40, 420), st.integers(40, 420)))
    boxes = []
    for _ in range(draw(st.integers(1, 6))):
        height, width = (draw(st.integers(8, n)) for n in size)
        y, x = draw(st.integers(0, size[0] - height)), draw(st.integers(0, size[1] - width))
        if all(y > b[2] + GAP or y + height + GAP < b[0] or x > b[3] + GAP or x + width + GAP < b[1] for b in boxes):
            boxes.append((y, x, y + height, x + width))
    return size, boxes


@settings(max_examples=40)
@given(apart(), st.integers(96, 200), st.floats(0.25, 0.5), st.integers(0, 2**31))
@example(((413, 387), [(35, 74, 93, 82)]), 96, 0.5, 0)  # close to the edges of two tiles, and two coarse pixels wide
@example(((109, 282), [(35, 33, 93, 65)]), 96, 0.5, 0)  # of which one tile contains a sliver
def test_every_object_is_one_segment(objects, side, share, seed):
    size, boxes = objects
    rgb = scene(size, boxes, np.random.default_rng(seed))
    result = result_of(in_tiles(SceneNet(), rgb, side, int(side * share)))
    assert (result.id_map > 0).all()
    things = [s for s in result.segments if s.isthing]
    assert len(things) == len(boxes)
    for box in boxes:
        inside = np.zeros(size, bool)
        inside[box[0] : box[2], box[1] : box[3]] = True
        best = max((result.id_map == s.id)[inside].sum() / (inside | (result.id_map == s.id)).sum() for s in things)
        assert best > 0.55, box


@pytest.mark.parametrize("overlap", [32, 64])
def test_pieces_that_the_coarse_view_misses_are_joined(overlap):
    """A fence too thin for the coarse view, and too long for any tile."""
    fence = (60, 20, 70, 780)
    post = (100, 250, 790, 262)
    rgb = scene((800, 800), [fence, post], np.random.default_rng(0))
    net = SceneNet(least=6)
    result = result_of(in_tiles(net, rgb, 128, overlap))
    assert max(h * w for h, w in net.sizes) <= 128**2, "an input is larger than a tile"
    things = [s for s in result.segments if s.isthing]
    assert sorted(s.box for s in things) == [fence, post]
    assert (result.id_map > 0).all()
    for size in ((1, 5000), (5000, 1)):
        in_tiles(net, np.zeros((*size, 3), np.uint8), 64, 0)
        assert max(h * w for h, w in net.sizes if 1 in (h, w)) == 64**2, "the coarse view of a line"
        net.sizes.clear()
