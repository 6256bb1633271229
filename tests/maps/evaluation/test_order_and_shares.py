"""The same bits for any order of the images, any shares of them, and any order of adding the shares up."""

import itertools
import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.panoptic_cases import CLASSES, infos, isthing, random_pair

from seamseg.maps.evaluation import ClassInfo, PanopticEvaluator

IMAGES = 40


def evaluator_of(seeds, legacy=False):
    evaluator = PanopticEvaluator([ClassInfo(f"c{c}", c, t) for c, t in enumerate(isthing(CLASSES))], legacy)
    for seed in seeds:
        _, gt_ids, gt, pred_ids, pred = random_pair(seed)
        evaluator.add(gt_ids, infos(gt), pred_ids, infos(pred), str(seed))
    return evaluator


@pytest.fixture(scope="module", params=[False, True], ids=["official", "legacy"])
def whole(request):
    return evaluator_of(range(IMAGES), request.param), [evaluator_of([s], request.param) for s in range(IMAGES)]


@settings(max_examples=60)
@given(order=st.permutations(range(IMAGES)), cuts=st.lists(st.integers(0, IMAGES), max_size=6), draw=st.integers(0, 99))
def test_shares_merged_in_any_order(whole, order, cuts, draw):
    expected, single = whole
    edges = [0, *sorted(cuts), IMAGES]
    shares = []
    for start, stop in itertools.pairwise(edges):
        share = evaluator_of([], expected.legacy)
        for seed in order[start:stop]:
            share.merge(single[seed])
        shares.append(pickle.loads(pickle.dumps(share)))
    summed = evaluator_of([], expected.legacy)
    summed.load_state(np.sum([s.state() for s in shares], axis=0))
    # two at a time, in any order, until one is left
    choose = random.Random(draw)
    while len(shares) > 1:
        one = shares.pop(choose.randrange(len(shares)))
        shares[choose.randrange(len(shares))].merge(one)
    for got in (summed, shares[0]):
        assert np.array_equal(got.state(), expected.state())
        assert got.scores().to_json() == expected.scores().to_json()
        assert got.n_images == IMAGES
