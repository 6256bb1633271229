"""Overlays and rows of PNGs: the C library and numpy give the same bytes, for a whole image and for bands of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.idmap_calls import by_c_and_numpy
from support.png_streams import random_ids

from seamseg.maps.idmaps import segments
from seamseg.maps.idmaps.segments import nearest_index

sizes = st.tuples(st.sampled_from([1, 2, 3, 5, 40]), st.sampled_from([1, 2, 3, 63, 64, 65, 130]))


def scene(seed, size, count):
    rng = np.random.default_rng(seed)
    ids = random_ids(rng, *size, rng.choice([1, 3, 12]), count + 1).astype(np.int32)
    ids[rng.random(size) < 0.01] = rng.choice([-1, -(2**31), 2**31 - 1, count])
    return rng, ids, rng.integers(0, 256, (count, 3), np.uint8), rng.random(count) < 0.7


@settings(max_examples=100)
@given(
    st.integers(0, 10**6),
    sizes,
    sizes,
    st.sampled_from([1, 2, 9, 32768, 40_000]),
    st.booleans(),
    st.none() | st.integers(0, 256),
)
def test_overlays(seed, size, shown, count, same, share):
    rng, ids, colors, outlined = scene(seed, size, count)
    height, width = size if same else shown
    photo = rng.integers(0, 256, (height, width, 3), np.uint8)
    rows, columns = (nearest_index(old, new).astype(np.int64) for old, new in zip(size, (height, width)))
    more = (None if same else columns, colors, outlined, share)
    before = photo.copy()
    found, wanted = by_c_and_numpy(segments.overlay, photo, ids, rows, *more)
    assert np.array_equal(found, wanted)
    cut = int(rng.integers(0, height + 1))
    parts = [(photo[part], ids, rows[part], *more) for part in (slice(0, cut), slice(cut, height))]
    for bands in zip(*(by_c_and_numpy(segments.overlay, *part) for part in parts)):
        assert np.array_equal(np.concatenate(bands), wanted)
    assert np.array_equal(photo, before)


def test_every_opacity_of_every_colour_on_every_pixel():
    levels = np.arange(256)
    photo = np.repeat(levels.astype(np.uint8), 3).reshape(1, 256, 3).repeat(256, 0)
    ids, colors = levels.astype(np.int32).reshape(256, 1).repeat(256, 1), np.repeat(levels[:, None], 3, 1)
    for share in (None, *range(257)):
        drawn = segments.overlay(photo, ids, levels, None, colors.astype(np.uint8), np.zeros(256, bool), share)
        mean = (levels + levels[:, None]) // 2
        wanted = mean if share is None else (levels * (256 - share) + levels[:, None] * share + 128) >> 8
        assert (drawn == wanted[..., None]).all()


@settings(max_examples=40)
@given(st.integers(0, 10**6), sizes, st.booleans())
def test_rows_of_a_png(seed, size, mapped):
    rng, ids, *_ = scene(seed, size, 9)
    values = rng.integers(0, 1 << 24, 9, np.uint32) if mapped else None
    ids = ids if mapped else rng.integers(0, 1 << 24, size, np.int32)
    wanted = np.append(values, 0)[np.where((ids >= 0) & (ids < 9), ids, 9)] if mapped else ids
    cut = int(rng.integers(0, size[0] + 1))
    parts = [(ids[:cut], None, values), (ids[cut:], ids[cut - 1] if cut else None, values)]
    for filtered in map(np.concatenate, zip(*(by_c_and_numpy(segments.png_rows, *part) for part in parts))):
        assert (filtered[:, 0] == 2).all()
        channels = np.cumsum(filtered[:, 1:], 0, dtype=np.uint8).reshape(*size, 3).astype(int)
        assert np.array_equal(channels @ [1, 256, 65536], wanted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ids": np.zeros((4, 5), np.int64)}, "ids must be"),
        ({"ids": np.zeros((4, 6), np.int32)}, "6 columns and the image 5"),
        ({"rows": np.arange(1, 5)}, "rows must be from 0 to 3, got 1 to 4"),
        ({"share": 257}, "share must be 0 to 256"),
    ],
)
def test_arguments_of_an_overlay_are_checked(change, words):
    given = {
        "image": np.zeros((4, 5, 3), np.uint8),
        "ids": np.zeros((4, 5), np.int32),
        "rows": np.arange(4),
        "columns": None,
        "colors": np.zeros((2, 3), np.uint8),
        "outlined": np.ones(2, bool),
        "share": None,
    }
    assert segments.overlay(**given).shape == (4, 5, 3)
    with pytest.raises(ValueError, match=words):
        segments.overlay(**given | change)
