"""Resized id maps of which only rows are made: the same as those that are made whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seamseg.maps.formats.id_png import encode_id_png
from seamseg.maps.idmaps.resize import ResizedIds, resize_nearest
from seamseg.maps.idmaps.segments import areas_and_boxes

sizes = st.tuples(st.integers(1, 30), st.integers(1, 30))


@settings(max_examples=100)
@given(st.integers(0, 10**6), sizes, st.tuples(st.integers(0, 300), st.integers(0, 80)), st.sampled_from([1, 5, 2000]))
def test_rows_and_measures(seed, size, more, count):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, count, size, np.int32)
    shape = (size[0] + more[0], size[1] + more[1])
    lazy, wanted = ResizedIds(ids, shape), resize_nearest(ids, shape)
    assert (lazy.shape, lazy.ndim, lazy.size, lazy.dtype, len(lazy)) == (shape, 2, wanted.size, np.int32, shape[0])
    start, stop = sorted(rng.integers(0, shape[0] + 3, 2).tolist())
    assert np.array_equal(lazy[start:stop], wanted[start:stop])
    assert np.array_equal(lazy[shape[0] - 1], wanted[-1])
    assert np.array_equal(list(lazy), wanted)
    assert np.array_equal(lazy.dense(), wanted)
    for found, measured in zip(lazy.areas_and_boxes(count), areas_and_boxes(wanted, count)):
        assert found.dtype == measured.dtype
        assert np.array_equal(found, measured)
    assert encode_id_png(lazy) == encode_id_png(wanted)


@pytest.mark.parametrize("size", [(2, 4), (3, 3)])
def test_smaller_maps_are_refused(size):
    with pytest.raises(ValueError, match=r"must not be below that of the ids \(3, 4\)"):
        ResizedIds(np.zeros((3, 4), np.int32), size)
