"""Predictions of networks of queries: both forms of one image, as results and in tiles."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.testing import assert_close

from seamseg.contrib.foreign.queries import prediction_of_queries
from seamseg.data.input_size import InputSize
from seamseg.fusion import fuse, merge_queries
from seamseg.inference.predictor import Predictor
from seamseg.maps.formats.metadata import Metadata, class_infos
from seamseg.maps.panoptic_map import VOID, PanopticResult
from seamseg.results import Panoptic, Thresholds
from seamseg.results.anonymize import private_regions
from seamseg.results.detections import ranked_by_masks
from seamseg.validation.validator import InstanceScorer, ValidationItem

CLASSES = np.array([3, 0, 4, 1, 2])
"""The class of each column: the network has another order."""
STUFF = 2


def outputs(seed, count=12, cells=(12, 20)):
    rng = np.random.default_rng(seed)
    coarse = torch.from_numpy(rng.normal(-1, 5, (count, 1, 4, 5)).astype(np.float32))
    masks = functional.interpolate(coarse, cells, mode="bicubic")[:, 0].numpy()
    return rng.normal(0, 3, (count, 6)).astype(np.float32), masks


def predict(classes, masks, size, padded):
    return prediction_of_queries(classes, masks, size, padded, CLASSES, STUFF)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([(48, 80), (47, 73), (20, 80)]))
@example(2812, (48, 80))  # a score between two numbers of four digits
def test_both_forms(seed, size):
    classes, masks = outputs(seed)
    found = predict(classes, masks, size, (48, 80))
    probabilities = torch.from_numpy(classes).softmax(1)
    sigmoid = torch.from_numpy(masks).sigmoid()

    best = probabilities.argmax(1)
    kept = best < 5
    assert found.queries.padded_size == (48, 80)
    assert found.queries.classes.dtype == np.int64
    assert found.queries.classes.tolist() == CLASSES[best[kept]].tolist()
    assert found.queries.scores.dtype == np.float32
    assert_close(torch.from_numpy(found.queries.scores), probabilities.amax(1)[kept])
    assert np.array_equal(found.queries.mask_logits, masks[kept.numpy()])

    sums = torch.einsum("qc,qhw->chw", probabilities[:, :-1], sigmoid)[None]
    sums = functional.interpolate(sums, (48, 80), mode="bilinear")[0, :, : size[0], : size[1]]
    first, second = sums.topk(2, dim=0).values
    certain = (first - second > 1e-4).numpy()
    assert found.semantic.dtype == np.uint8
    assert np.array_equal(found.semantic[certain], CLASSES[sums.argmax(0)][certain])

    upsampled = functional.interpolate(torch.from_numpy(masks)[None], (48, 80), mode="bilinear")[0]
    wanted = []
    for q, mask in enumerate(upsampled[:, : size[0], : size[1]].numpy() >= 0):
        if mask.any():
            y, x = np.nonzero(mask)
            box = (y.min(), x.min(), y.max() + 1, x.max() + 1)
            wanted += [
                (int(CLASSES[c]) - STUFF, *map(int, box), float(probabilities[q, c]))
                for c in range(5)
                if CLASSES[c] >= STUFF and probabilities[q, c] >= 0.05
            ]
    assert found.size == size
    rows = zip(found.classes, found.boxes, found.scores)
    detected = sorted((int(c), *map(int, box), float(score)) for c, box, score in rows)
    assert [row[:5] for row in detected] == [row[:5] for row in sorted(wanted)]
    assert [row[5] for row in detected] == pytest.approx([row[5] for row in sorted(wanted)], abs=1e-5)
    order = list(zip(found.classes, -found.scores))
    assert order == sorted(order)
    assert found.mask_logits.shape == (len(order), 112, 112)
    assert (found.classes.dtype, found.scores.dtype, found.mask_logits.dtype) == (np.int64, np.float32, np.float32)


def test_masks_of_detections_are_those_of_the_queries():
    """Pasted, they cover the pixels of the upsampled mask but for its edge."""
    y, x = np.mgrid[:64, :96] + 0.5
    mask = (12 - np.hypot(y - 30, x - 50)).astype(np.float32)
    classes = np.full((1, 6), -9, np.float32)
    classes[0, 0] = 9
    found = predict(classes, mask[None], (250, 380), (256, 384))
    assert found.boxes.round().tolist() == [[72, 152, 168, 248]]
    fused = fuse(found, STUFF, 0.5, 0.5, 10**6)
    disc = np.hypot(*(np.mgrid[:250, :380] + 0.5 - np.array([120, 200])[:, None, None])) < 48
    assert fused.categories == [VOID, 3]
    assert ((fused.ids == 1) & disc).sum() / ((fused.ids == 1) | disc).sum() > 0.98


def test_every_person_is_hidden():
    """180 persons of score .5, more than average precision takes, and none of them in the map."""
    masks = np.full((180, 36, 80), -9, np.float32)
    hidden = np.zeros((36, 80), bool)
    for number, mask in enumerate(masks):
        y, x = divmod(number, 20)
        mask[4 * y + 1 : 4 * y + 3, 4 * x + 1 : 4 * x + 3] = 9
        hidden |= mask > 0
    classes = np.zeros((180, 3), np.float32)  # stuff, person, no object
    classes[:, 0] = -9
    found = prediction_of_queries(classes, masks, hidden.shape, hidden.shape, np.arange(2), 1)
    assert len(found.scores) == 180
    assert len(ranked_by_masks(found).scores) == 100
    nothing = PanopticResult(np.zeros(hidden.shape, np.int32), [])
    shown = np.ones(hidden.shape, bool)
    for region in private_regions(nothing, replace(found, semantic=None), [1], 1):
        (y, x), (height, width) = region.corner, region.mask.shape
        shown[y : y + height, x : x + width] &= ~region.mask
    assert np.array_equal(~shown, hidden)


def test_no_and_damaged_outputs():
    for count in (0, 3):
        classes, masks = outputs(0, count)
        found = predict(classes, -np.abs(masks) - 1, (47, 75), (48, 80))
        assert (found.boxes.shape, found.mask_logits.shape, found.semantic.shape) == ((0, 4), (0, 112, 112), (47, 75))
        assert not merge_queries(found.queries, found.size, (90, 90), STUFF).ids.any()
        assert len(fuse(found, STUFF, min_stuff_area=10**6).categories) == 1
    classes, masks = outputs(1)
    for columns, rows in ((classes[1:], masks), (classes[:, 1:], masks)):
        with pytest.raises(ValueError, match="do not match"):
            predict(columns, rows, (48, 80), (48, 80))
    masks[3:] = np.nan
    classes[2] = np.nan
    found = predict(classes, masks, (48, 80), (48, 80))
    assert np.isfinite(found.scores).all()
    merge_queries(found.queries, found.size, (90, 90), STUFF, 0.1, 0.1)


@pytest.mark.parametrize("photo_size", [(48, 80), (100, 150)])
def test_a_whole_photo_is_merged_at_its_own_size(photo_size):
    """And average precision has the scores of the ranking, but not in tiles, which have no queries."""
    found = predict(*outputs(2, 30), (48, 80), (48, 80))
    metadata = Metadata(STUFF, 3, list("abcde"), [(0, 0, 0)] * 5, list(range(5)))
    network = SimpleNamespace(kind="panoptic", result_type=Panoptic, on_gpu=False, tiles_problem=None, map_formats={})
    thresholds = Thresholds(0.1, 0.2, min_stuff_area=0)
    result = Predictor(network, metadata, InputSize(), thresholds).result(found, photo_size)
    merged = merge_queries(found.queries, (48, 80), photo_size, STUFF, 0.1, 0.2)
    assert len(result.segments) > 2
    assert np.array_equal(result.id_map, merged.ids)
    config = SimpleNamespace(components=lambda kind: {})
    validator = SimpleNamespace(
        metadata=metadata, classes=class_infos(metadata), legacy=False, least_score=0, mapping=None, config=config
    )
    item = ValidationItem("a", None, torch.zeros(1, 48, 80, dtype=torch.long), [VOID], [0])
    for scored, wanted in ((found, ranked_by_masks(found)), (replace(found, queries=None), found)):
        scorer = InstanceScorer(validator, None)
        scorer.add(item, scored)
        listed = [detection.score for detection in scorer._images[0].detections]
        assert sorted(listed) == sorted(wanted.scores.tolist())
