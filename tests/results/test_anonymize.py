"""Anonymised images: only coarse averages of a region remain, and nothing else changes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamseg.results.anonymize import CELLS, LEAST_CELL, MARGIN, Region, anonymize, clusters


def noise(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def within(mask, radius):
    """Dilate a mask by a square of `radius`, pixel by pixel."""
    out = np.zeros_like(mask)
    for y, x in zip(*np.nonzero(mask)):
        out[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1] = True
    return out


@pytest.mark.parametrize("style", ["blur", "pixels"])
@pytest.mark.parametrize(("height", "width"), [(200, 80), (20, 9), (1, 1)])
def test_noise_is_averaged_away(style, height, width):
    """The spread of an average of independent pixels falls with the root of their number."""
    photo = noise(300, 300)
    mask = np.zeros((300, 300), bool)
    mask[30 : 30 + height, 40 : 40 + width] = True
    out = anonymize(photo, [Region(mask)], style)
    cell = max(LEAST_CELL, -(-max(height, width) // CELLS))
    assert abs(out[mask].astype(float) - 127.5).max() < 6 * 74 / min(cell, min(height, width) + 4)
    # neighbouring pixels differed by 85 on average
    if style == "blur" and height > 1:
        assert abs(np.diff(out[30 : 30 + height, 40 : 40 + width].astype(int), axis=0)).mean() < 4


@given(*[st.integers(1, 90)] * 2, *[st.integers(-30, 90)] * 2, st.sampled_from(["blur", "pixels"]))
@settings(max_examples=40)
def test_only_the_region_and_its_margin_change(height, width, y, x, style):
    photo = noise(80, 100)
    before = photo.copy()
    out = anonymize(photo, [Region(np.ones((height, width), bool), (y, x))], style)
    assert np.array_equal(photo, before)
    assert out.shape == photo.shape
    assert out.dtype == np.uint8
    inside = np.zeros((80, 100), bool)
    inside[max(0, y) : max(0, y + height), max(0, x) : max(0, x + width)] = True
    if not inside.any():
        assert np.array_equal(out, photo)
        return
    rows, columns = inside.any(1).sum(), inside.any(0).sum()
    reach = 2 + int(np.ceil(MARGIN * max(rows, columns)))
    far = ~within(inside, reach + 2 * max(1, reach // 2))
    assert np.array_equal(out[far], photo[far])
    # within reach every pixel is replaced; a few may be equal by coincidence
    near = within(inside, reach)
    assert (out[near] == photo[near]).all(axis=-1).mean() < 0.2


def test_a_finer_region_does_not_restore_details():
    photo = noise(400, 400)
    large = Region(np.ones((300, 300), bool), (50, 50))
    small = Region(np.ones((10, 10), bool), (190, 190))
    assert np.array_equal(anonymize(photo, [large, small]), anonymize(photo, [small, large]))
    out = anonymize(photo, [large, small])[190:200, 190:200]
    assert np.array_equal(out, anonymize(photo, [large])[190:200, 190:200])
    # colours stay near those of the object
    photo = np.full((100, 100, 3), (20, 40, 200), np.uint8)
    photo[20:80, 20:80] = (220, 60, 20)
    out = anonymize(photo, [Region(np.ones((60, 60), bool), (20, 20))])
    assert np.abs(out[45:55, 45:55].astype(int) - (220, 60, 20)).max() < 8


def test_nothing_to_hide():
    photo = noise(30, 40)
    for regions in ([], [Region(np.zeros((30, 40), bool))], [Region(np.ones((5, 5), bool), (30, 0))]):
        assert np.array_equal(anonymize(photo, regions), photo)


def test_clusters():
    mask = np.zeros((640, 640), bool)
    mask[10:30, 10:30] = mask[300:310, 5:600] = mask[312:330, 580:600] = mask[600:620, 600:620] = True
    assert [r.corner for r in clusters(mask)] == [(10, 10), (300, 5), (600, 600)]


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 0.3), st.integers(1, 64), st.integers(0, 9))
@settings(max_examples=50)
def test_clusters_partition_the_mask(height, width, density, cells, seed):
    mask = np.random.default_rng(seed).random((height, width)) < density
    count = np.zeros(mask.shape, int)
    for region in clusters(mask, cells):
        (y, x), (h, w) = region.corner, region.mask.shape
        assert region.part
        assert region.mask[0].any()
        assert region.mask[-1].any()
        count[y : y + h, x : x + w] += region.mask
    assert np.array_equal(count, mask.astype(int))
