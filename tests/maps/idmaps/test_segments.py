"""Pasting, filling and measuring: the C library, numpy and the operators of torch give the same bits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.idmap_calls import by_c_and_numpy

from seamseg.maps.idmaps import library, segments
from seamseg.ops.labels import count_labels, extract_boxes, fill_free, paste_masks_into


def detections(seed, size, count):
    rng = np.random.default_rng(seed)
    masks = segments.sigmoid(rng.normal(0, 3, (count, 28, 28)).astype(np.float32))
    corners = rng.uniform(-20, max(size), (count, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(-1, 60, (count, 2))], 1).astype(np.float32)
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
    table = rng.integers(0, 300, 256).astype(np.int32)
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
