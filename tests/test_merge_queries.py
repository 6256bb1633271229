"""The map of queries against the paper's, written here with plain torch, and against the errors of other codes."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from seamseg.fusion import FusedMap, merge_queries, to_result
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.predictions import QueryMasks

STUFF = 3
NEAR = 1e-4
"""Where the best and the second best differ by less, or a probability is this close to .5, either is right."""


def upsample(queries, size, native):
    """Probabilities of all masks at the size of the image."""
    logits = torch.from_numpy(queries.mask_logits)[None]
    padded = functional.interpolate(logits, queries.padded_size, mode="bilinear", align_corners=False)
    valid = padded[..., : size[0], : size[1]]
    return functional.interpolate(valid, native, mode="bilinear", align_corners=False)[0].sigmoid()


def papers_map(queries, size, native, score_threshold=0.8, overlap_threshold=0.8):
    """Ids, categories, whether each pixel is certain, and whether all decisions on whole queries are."""
    kept = np.flatnonzero(queries.scores > score_threshold)
    ids, categories, stuff, sure = torch.zeros(native, dtype=torch.int32), [VOID], {}, True
    certain = torch.ones(native, dtype=torch.bool)
    if not len(kept):
        return ids.numpy(), categories, certain.numpy(), sure
    masks = upsample(queries, size, native)[kept]
    values = masks * torch.from_numpy(queries.scores[kept])[:, None, None]
    owner = values.argmax(0)
    if len(kept) > 1:
        first, second = values.topk(2, dim=0).values
        certain = first - second > NEAR * first
    certain &= ((masks - 0.5).abs() > NEAR).all(0)
    doubtful = int((~certain).sum())
    for k in range(len(kept)):
        mine, inside = owner == k, masks[k] >= 0.5
        claimed = mine & inside
        ratio = mine.sum().item() / max(inside.sum().item(), 1)
        slack = 2 * doubtful / max(inside.sum().item(), 1)
        sure &= abs(ratio - overlap_threshold) > slack and (doubtful == 0 or claimed.sum().item() > doubtful)
        if not claimed.any() or ratio < overlap_threshold:
            continue
        category = int(queries.classes[kept[k]])
        if category in stuff:
            ids[claimed] = stuff[category]
            continue
        categories.append(category)
        ids[claimed] = len(categories) - 1
        if category < STUFF:
            stuff[category] = len(categories) - 1
    return ids.numpy(), categories, certain.numpy(), sure


def smooth(rng, count, cells, coarse):
    """Logits with large and small regions."""
    noise = torch.from_numpy(rng.normal(-1, 6, (count, 1, *coarse)).astype(np.float32))
    return functional.interpolate(noise, cells, mode="bicubic")[:, 0].numpy()


def random_queries(seed, count, cells, padded, coarse):
    rng = np.random.default_rng(seed)
    scores = rng.uniform(0.6, 1, count).astype(np.float32)
    return QueryMasks(rng.integers(0, 7, count), scores, smooth(rng, count, cells, coarse), padded)


@st.composite
def images(draw):
    """Generate the padded size, the valid one, and that of an image that is larger, smaller, or equal."""
    padded = draw(st.tuples(st.integers(4, 120), st.integers(4, 120)))
    size = tuple(p - draw(st.integers(0, p // 2)) for p in padded)
    return padded, size, draw(st.just(size) | st.tuples(st.integers(1, 250), st.integers(1, 250)))


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.integers(0, 12), images(), st.sampled_from([0.1, 0.5, 0.8]), st.integers(2, 12))
def test_it_is_the_papers_map(seed, count, sizes, overlap, coarse):
    padded, size, native = sizes
    cells = -(-padded[0] // 4), -(-padded[1] // 4)
    queries = random_queries(seed, count, cells, padded, (coarse, coarse))
    wanted, categories, certain, sure = papers_map(queries, size, native, 0.7, overlap)
    assume(sure)
    fused = merge_queries(queries, size, native, STUFF, 0.7, overlap)
    assert fused.ids.dtype == np.int32
    assert fused.ids.shape == native
    assert fused.categories == categories
    assert np.array_equal(fused.ids[certain], wanted[certain])


def squares(size, *boxes):
    """Logits of boxes at the size of the input: 10 inside, -10 outside."""
    logits = np.full((len(boxes), *size), -10, np.float32)
    for mask, (y0, x0, y1, x1) in zip(logits, boxes):
        mask[y0:y1, x0:x1] = 10
    return logits


def queries_of(logits, classes, scores=None, padded=None):
    scores = [0.9] * len(classes) if scores is None else scores
    padded = logits.shape[1:] if padded is None else padded
    return QueryMasks(np.array(classes, np.int64), np.array(scores, np.float32), logits, padded)


def merged(queries, *thresholds, size=None, native=None) -> FusedMap:
    """Merge, by default at the size of the input, and compare with the paper's map."""
    size = size or queries.padded_size
    native = native or size
    fused = merge_queries(queries, size, native, STUFF, *thresholds)
    ids, categories, certain, _ = papers_map(queries, size, native, *thresholds)
    assert fused.categories == categories
    assert np.array_equal(fused.ids[certain], ids[certain])
    return fused


def test_ids_of_interrupted_stuff_do_not_collide():
    """Road, car, car, road, car: both parts of the road are one segment, and the last car is one of its own."""
    boxes = [(8 * i, 0, 8 * i + 8, 32) for i in range(5)]
    fused = merged(queries_of(squares((40, 32), *boxes), [0, 4, 4, 0, 4]))
    assert fused.ids[::8, 0].tolist() == [1, 2, 3, 1, 4]
    assert fused.categories == [VOID, 0, 4, 4, 4]
    assert fused.scores == pytest.approx([0, 1, 0.9, 0.9, 0.9])
    assert fused.iscrowd == [False] * 5
    segments = to_result(fused, (40, 32), STUFF).segments
    assert [(s.id, s.area, s.score is None) for s in segments] == [
        (1, 512, True), (2, 256, False), (3, 256, False), (4, 256, False)
    ]  # fmt: skip


def test_scores_must_be_above_the_threshold():
    """A mask is compared with .5 by its own probability, not by score x probability."""
    queries = queries_of(squares((32, 32), (4, 4, 20, 20)), [4], [0.5])
    for threshold, pixels in ((0.5, 0), (0.49, 256), (0.1, 256)):
        fused = merged(queries, threshold)
        assert (fused.ids == 1).sum() == pixels
    assert fused.scores[1] == pytest.approx(0.5)


@pytest.mark.parametrize("scores", [[], [0.8, 0.3]])
def test_no_query_is_kept(scores):
    logits = squares((16, 16), *[(0, 0, 16, 16)] * len(scores))
    fused = merged(queries_of(logits, [4] * len(scores), scores), size=(16, 16), native=(30, 50))
    assert fused.ids.dtype == np.int32
    assert fused.ids.shape == (30, 50)
    assert not fused.ids.any()
    assert (fused.categories, fused.scores, fused.iscrowd) == ([VOID], [0.0], [False])
    assert to_result(fused, (30, 50), STUFF).segments == []


MEMORY = """
import json, resource
import numpy as np
from seamseg.fusion import merge_queries, to_result
from seamseg.maps.predictions import QueryMasks

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

rng = np.random.default_rng(0)
logits = rng.standard_normal((40, 256, 512), np.float32)
queries = QueryMasks(np.arange(40) % 9, np.full(40, 0.9, np.float32), logits, (1024, 2048))
before = peak()
fused = merge_queries(queries, (1024, 1366), (3000, 4000), 3, 0.8, 0.0)
result = to_result(fused, (3000, 4000), 3)
print(json.dumps([peak() - before, len(result.segments)]))
"""


def test_memory():
    """40 masks at 12 megapixels would be 1.8 GB."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    kilobytes, segments = json.loads(done.stdout)
    assert segments > 20
    assert kilobytes < 400_000
