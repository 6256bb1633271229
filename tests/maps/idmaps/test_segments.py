"""Pasting, filling, measuring, overlays and rows of PNGs: the C library, numpy and the operators of torch give the
same bits, for a whole image and for bands of it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.idmap_calls import by_c_and_numpy
from support.png_streams import random_ids

from seamseg.maps.idmaps import library, segments
from seamseg.maps.idmaps.segments import nearest_index
from seamseg.ops.labels import count_labels, extract_boxes, fill_free, paste_masks_into


def detections(seed, size, count):
    rng = np.random.default_rng(seed)
    masks = segments.sigmoid(rng.normal(0, 3, (count, 28, 28)).astype(np.float32))
    corners = rng.uniform(-20, max(size), (count, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(-1, rng.choice([1, 60]), (count, 2))], 1).astype(np.float32)
    for row, value in zip(range(count), (np.nan, np.inf)[: seed % 3]):
        boxes[row, 2 * (seed % 2)] = value
    return masks, boxes


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.tuples(st.integers(1, 90), st.integers(1, 90)), st.integers(0, 8), st.booleans())
def test_pasting(seed, size, count, keep_empty):
    masks, boxes = detections(seed, size, count)
    wanted = torch.zeros(size, dtype=torch.int32)
    kept = paste_masks_into(wanted, torch.from_numpy(masks), torch.from_numpy(boxes), 0.5, 1, keep_empty)

    def pasted():
        ids = np.zeros(size, np.int32)
        return segments.paste_masks(ids, masks, boxes, 0.5, keep_empty), ids

    for found, ids in by_c_and_numpy(pasted):
        assert np.array_equal(found, kept.numpy())
        assert np.array_equal(ids, wanted.numpy())
    for mask, box in zip(masks, boxes):
        (crop, region), other = by_c_and_numpy(segments.paste_mask, mask, box, size)
        assert region == other[1]
        assert np.array_equal(crop, other[0])
        assert crop.dtype == other[0].dtype == bool
        assert crop.shape == (region[2] - region[0], region[3] - region[1])


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.tuples(st.integers(1, 40), st.integers(1, 150)), st.integers(1, 300))
def test_counting_filling_and_measuring(seed, size, count):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 5, size).astype(np.int32) * (rng.random(size) < 0.5).astype(np.int32)
    classes = rng.integers(0, 256, size).astype(np.uint8)
    table = (rng.integers(0, 300, 256) * (rng.random(256) < 0.5)).astype(np.int32)
    wanted = torch.from_numpy(ids.copy())
    labels = torch.from_numpy(classes)
    free, everywhere = count_labels(labels, 256, wanted), count_labels(labels, 256)
    fill_free(wanted, labels, torch.from_numpy(table).long())

    def measured():
        filled = ids.copy()
        segments.fill_free(filled, classes, table)
        counts = segments.count_classes(classes, ids), segments.count_classes(classes)
        return counts, filled, segments.areas_and_boxes(filled, count)

    for counts, filled, (areas, boxes) in by_c_and_numpy(measured):
        assert [c.tolist() for c in counts] == [free.tolist(), everywhere.tolist()]
        assert np.array_equal(filled, wanted.numpy())
        assert areas.tolist() == count_labels(wanted, count).tolist()
        assert boxes.tolist() == extract_boxes(wanted, count).tolist()


@pytest.mark.parametrize("functions", [library.functions, None])
def test_parts_of_larger_arrays(functions, monkeypatch):
    """Arrays need not be contiguous; results are written into them."""
    monkeypatch.setattr(library, "functions", functions)
    masks, boxes = detections(4, (30, 40), 3)
    whole = np.zeros((30, 80), np.int32)
    segments.paste_masks(whole[:, ::2], masks, boxes, 0.5)
    same = np.zeros((30, 40), np.int32)
    segments.paste_masks(same, masks, boxes, 0.5)
    assert np.array_equal(whole[:, ::2], same)
    assert not whole[:, 1::2].any()
    segments.fill_free(whole[:, ::2], np.zeros((30, 40), np.uint8), np.full(256, 9, np.int32))
    assert (whole[:, ::2] > 0).all()
    assert not whole[:, 1::2].any()


def test_sigmoid_has_the_bits_of_that_of_torch():
    """The fusion on a GPU computes it by torch."""
    x = np.append(np.random.default_rng(0).normal(0, 4, 100_000), [-200, 200]).astype(np.float32)
    assert np.array_equal(segments.sigmoid(x), torch.from_numpy(x).double().sigmoid().float().numpy())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda i, m, b: segments.paste_masks(i.astype(np.int64), m, b, 0.5), "ids must be int32"),
        (lambda i, m, b: segments.paste_masks(i, m, b[:1], 0.5), r"boxes must be float32 with the shape \(2, 4\)"),
        (lambda i, m, b: segments.paste_mask(m, b[0], (3, 3)), "mask must be float32 with 2"),
        (lambda i, m, b: segments.count_classes(i, i), "classes must be uint8"),
        (lambda i, m, b: segments.fill_free(i, np.zeros((4, 5), np.uint8), np.zeros(3, np.int32)), "id_of_class"),
        (lambda i, m, b: segments.areas_and_boxes(i[0], 3), "2 dimensions"),
    ],
)
def test_refused(call, words):
    masks, boxes = detections(4, (30, 40), 2)
    with pytest.raises(ValueError, match=words):
        call(np.zeros((4, 5), np.int32), masks, boxes)


# --- overlays and rows of PNGs

sizes = st.tuples(st.sampled_from([1, 2, 3, 5, 40]), st.sampled_from([1, 2, 3, 63, 64, 65, 130]))


def scene(seed, size, count):
    rng = np.random.default_rng(seed)
    ids = (random_ids(rng, *size, rng.choice([1, 3, 12])) % (count + 1)).astype(np.int32)
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
