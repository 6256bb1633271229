"""Masks and classes upsampled to an image: the C library and numpy give the same bits, and torch the same values."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.idmap_calls import by_c_and_numpy
from torch.nn import functional
from torch.testing import assert_close

from seamseg.maps.idmaps import reference, upsampled
from seamseg.maps.idmaps.reference import Axis


@st.composite
def images(draw):
    padded = draw(st.tuples(st.integers(1, 90), st.integers(1, 90)))
    size = tuple(draw(st.integers(1, p)) for p in padded)
    native = draw(st.just(size) | st.tuples(st.integers(1, 300), st.integers(1, 700)))
    return draw(st.tuples(st.integers(1, 30), st.integers(1, 30))), padded, size, native


def random_logits(seed, count, cells):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, rng.choice([1, 5, 60]), (count, *cells)).astype(np.float32)
    if seed % 3 == 0 and count:
        logits.flat[rng.integers(0, logits.size, 5)] = rng.choice([np.nan, np.inf, -np.inf], 5)
    return logits, rng.uniform(0.1, 1, count).astype(np.float32)


def equal_masks(*arguments):
    found, other = by_c_and_numpy(upsampled.best_masks, *arguments)
    for part in vars(found):
        assert np.array_equal(getattr(found, part), getattr(other, part))
        assert getattr(found, part).dtype == getattr(other, part).dtype
    return found


@settings(max_examples=100)
@given(st.integers(0, 10**6), st.integers(0, 7), images())
def test_the_same_bits(seed, count, sizes):
    cells, padded, size, native = sizes
    logits, scores = random_logits(seed, count, cells)
    found = equal_masks(logits, scores, padded, size, native)
    assert found.numbers.dtype == np.int16
    assert np.array_equal(found.segment_areas, np.bincount(found.numbers.ravel(), minlength=count + 1)[1:])
    assert (found.mask_areas >= found.segment_areas).all()
    assert (found.original_areas >= found.segment_areas).all()
    assert np.array_equal(*by_c_and_numpy(upsampled.mask_boxes, logits, padded, size))
    if count:
        classes = by_c_and_numpy(upsampled.best_classes, logits, padded, size)
        assert np.array_equal(*classes)
        assert classes[0].dtype == classes[1].dtype == np.uint8


@given(images())
def test_an_axis_is_two_steps_of_torch(sizes):
    (cells, _), (padded, _), (valid, _), (pixels, _) = sizes
    identity = torch.eye(cells)[None]
    wanted = functional.interpolate(identity, padded, mode="linear", align_corners=False)[..., :valid]
    wanted = functional.interpolate(wanted, pixels, mode="linear", align_corners=False)[0].T
    axis = Axis.of(cells, padded, valid, pixels)
    dense = np.zeros((pixels, cells), np.float32)
    for t, weights in enumerate(axis.weights):
        dense[np.arange(pixels), axis.first + t] += weights
    assert_close(torch.from_numpy(dense), wanted, rtol=0, atol=2e-5)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 6), images())
def test_classes_and_boxes_are_those_of_torch(seed, count, sizes):
    cells, padded, size, _ = sizes
    logits = np.random.default_rng(seed).normal(0, 3, (count, *cells)).astype(np.float32)
    wanted = functional.interpolate(torch.from_numpy(logits)[None], padded, mode="bilinear", align_corners=False)
    wanted = wanted[0, :, : size[0], : size[1]]
    best = wanted.topk(min(2, count), dim=0).values
    sure = (best[0] - best[-1] > 1e-3) | (count == 1)
    found = torch.from_numpy(upsampled.best_classes(logits, padded, size))
    assert torch.equal(found[sure], wanted.argmax(0)[sure].byte())

    boxes = upsampled.mask_boxes(logits, padded, size)
    for mask, box in zip(wanted, boxes):
        if mask.abs().min() > 1e-3:
            y, x = torch.nonzero(mask >= 0, as_tuple=True)
            inside = [int(y.min()), int(x.min()), int(y.max()) + 1, int(x.max()) + 1] if len(y) else [-1] * 4
            assert box.tolist() == inside


def test_wide_images_and_many_masks():
    """Strips of columns, and more labels than a byte has."""
    logits, scores = random_logits(1, 300, (3, 40))
    assert equal_masks(logits, scores, (12, 160), (12, 150), (5, 1700)).numbers.max() > 256


def test_not_a_number_belongs_to_no_mask():
    logits = np.full((2, 2, 2), np.nan, np.float32)
    found = upsampled.best_masks(logits, np.ones(2, np.float32), (4, 4), (4, 4), (4, 4))
    assert not any(part.any() for part in (found.numbers, found.mask_areas, found.original_areas))
    assert not upsampled.best_classes(logits, (4, 4), (4, 4)).any()
    assert (upsampled.mask_boxes(logits, (4, 4), (4, 4)) == -1).all()
    logits[1] = 3
    found = upsampled.best_masks(logits, np.ones(2, np.float32), (4, 4), (4, 4), (4, 4))
    assert (found.numbers == 2).all()


def test_exponential():
    """That of the C library, on which the equality of all bits depends, is exact to two units in the last place."""
    x = np.linspace(-87, 87, 100_001, dtype=np.float32)
    assert_close(reference._exp(x), np.exp(x.astype(np.float64)).astype(np.float32), rtol=3e-7, atol=0)


LOGITS, SCORES, SIZE = np.zeros((2, 3, 4), np.float32), np.ones(2, np.float32), (12, 16)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: upsampled.best_masks(LOGITS[0], SCORES, SIZE, SIZE, SIZE), "3 dimensions"),
        (lambda: upsampled.best_masks(LOGITS.astype(np.float64), SCORES, SIZE, SIZE, SIZE), "must be float32"),
        (lambda: upsampled.best_masks(LOGITS, SCORES[:1], SIZE, SIZE, SIZE), "scores must be 2 float32"),
        (lambda: upsampled.best_masks(LOGITS, SCORES.astype(np.float64), SIZE, SIZE, SIZE), "scores must be 2 float32"),
        (lambda: upsampled.best_masks(LOGITS[:, :0], SCORES, SIZE, SIZE, SIZE), "must not be empty"),
        (lambda: upsampled.best_masks(LOGITS, SCORES, SIZE, (13, 16), SIZE), "inside the padded one"),
        (lambda: upsampled.best_masks(LOGITS, SCORES, SIZE, (0, 16), SIZE), "inside the padded one"),
        (lambda: upsampled.best_masks(LOGITS, SCORES, SIZE, SIZE, (0, 16)), "sizes must be 1 to"),
        (lambda: upsampled.best_masks(LOGITS, SCORES, SIZE, SIZE, (-1, 16)), "sizes must be 1 to"),
        (lambda: upsampled.best_masks(LOGITS, SCORES, ((1 << 24) + 1, 16), SIZE, SIZE), "be 1 to 16777216 "),
        (lambda: upsampled.best_masks(LOGITS, SCORES, SIZE, SIZE, ((1 << 24) + 1, 16)), "sizes must be 1 to"),
        (lambda: upsampled.best_masks(np.zeros((40_000, 1, 1), np.float32), np.ones(40_000, np.float32), SIZE, SIZE,
                                      SIZE), "at most 32767 masks"),
        (lambda: upsampled.best_classes(np.zeros((257, 1, 1), np.float32), SIZE, SIZE), "1 to 256 classes"),
        (lambda: upsampled.best_classes(LOGITS[:0], SIZE, SIZE), "1 to 256 classes"),
    ],
)  # fmt: skip
def test_refused(call, words, monkeypatch):
    with pytest.raises(ValueError, match=words):
        call()
    monkeypatch.setattr(upsampled, "MAX_SIDE", max(SIZE))
    assert upsampled.best_masks(LOGITS, SCORES, SIZE, SIZE, SIZE).numbers.all(), "sides of the limit"
