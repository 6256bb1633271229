"""Positions of tiles; results in tiles equal those of the whole image."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.predictors import as_input
from support.tile_scenes import STUFF, SceneNet, scene

from seamseg.fusion import fuse, to_result
from seamseg.inference.tiling.predict import predict_in_tiles
from seamseg.inference.tiling.tiles import STRIDE, Tiling, spans, tiles_of
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


def test_tiles_are_a_grid():
    tiles = tiles_of((100, 300), 128, 32)
    assert [(t.row, t.column) for t in tiles] == [(0, 0), (0, 1), (0, 2)]
    assert all(t.y == spans(100, 128, 32)[0] for t in tiles)
    assert [t.x for t in tiles] == spans(300, 128, 32)


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


def test_overlap():
    assert Tiling().overlap_for(2048) == 512
    assert Tiling(1024, 100).overlap_for(1024) == 100
    assert Tiling(1024, 500).overlap_for(128) == 64


@pytest.mark.parametrize("wrong", [("on", None), ("", None), (127, None), (0, None), (512, 257), (512, -1)])
def test_bad_tiling(wrong):
    with pytest.raises(InputError, match="tile"):
        Tiling(*wrong)


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
    categories = np.zeros(max(s.id for s in result.segments) + 1, int)
    for segment in result.segments:
        categories[segment.id] = segment.category
    return categories[result.id_map]


@settings(max_examples=60)
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


GAP = 10
"""Pixels between objects, which the coarse view must not blend."""


@st.composite
def apart(draw):
    """Generate an image size and separate objects, small and large."""
    size = draw(st.tuples(st.integers(40, 420), st.integers(40, 420)))
    boxes = []
    for _ in range(draw(st.integers(1, 6))):
        height, width = (draw(st.integers(8, n)) for n in size)
        y, x = draw(st.integers(0, size[0] - height)), draw(st.integers(0, size[1] - width))
        if all(y > b[2] + GAP or y + height + GAP < b[0] or x > b[3] + GAP or x + width + GAP < b[1] for b in boxes):
            boxes.append((y, x, y + height, x + width))
    return size, boxes


@settings(max_examples=80)
@given(apart(), st.integers(96, 200), st.floats(0.25, 0.5), st.integers(0, 2**31))
@example(((413, 387), [(35, 74, 93, 82)]), 96, 0.5, 0)  # close to the edges of two tiles, and two coarse pixels wide
@example(((109, 282), [(35, 33, 93, 65)]), 96, 0.5, 0)  # of which one tile contains a sliver
def test_every_object_is_one_segment(objects, side, share, seed):
    """Small objects from a tile, large ones from the coarse view: each once, in its place, without void."""
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
    things = [s for s in result.segments if s.isthing]
    assert sorted(s.box for s in things) == [fence, post]
    assert (result.id_map > 0).all()


def test_an_object_at_a_corner_of_four_tiles():
    tiles = tiles_of((224, 224), 128, 32)
    assert len(tiles) == 4
    for offset in range(90, 134, 4):
        box = (offset, offset, offset + 20, offset + 20)
        rgb = scene((224, 224), [box], np.random.default_rng(0))
        assert_same(in_tiles(SceneNet(), rgb, 128, 32), whole(SceneNet(), rgb))


def test_memory_is_that_of_a_tile():
    """No input of the network, the coarse view included, is larger than a tile."""
    net = SceneNet()
    in_tiles(net, scene((300, 900), [(5, 5, 200, 800)], np.random.default_rng(0)), 128, 32)
    assert len(net.sizes) > 20
    assert max(h * w for h, w in net.sizes) <= 128**2


def test_a_network_of_parts():
    """Without a semantic head or masks."""

    class Boxes(SceneNet):
        def predict(self, images):
            return [replace(p, semantic=None, mask_logits=None) for p in super().predict(images)]

    rgb = scene((200, 300), [(90, 100, 110, 140)], np.random.default_rng(0))
    seen = in_tiles(Boxes(), rgb, 128, 32)
    assert seen.semantic is None
    assert seen.mask_logits is None
    assert seen.boxes.tolist() == [[90, 100, 110, 140]]
