"""The same bits for any order of the images, any shares of them, and any order of adding the shares up."""

from __future__ import annotations

import itertools
import json
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.panoptic_cases import CLASSES, infos, isthing, random_pair
from support.processes import launch

from seamseg.maps.evaluation import ClassInfo, PanopticEvaluator
from seamseg.utils.distributed import distributed, sum_over_processes

IMAGES = 40


def evaluator_of(seeds, legacy=False):
    evaluator = PanopticEvaluator([ClassInfo(f"c{c}", c, t) for c, t in enumerate(isthing(CLASSES))], legacy)
    for seed in seeds:
        _, gt_ids, gt, pred_ids, pred = random_pair(seed)
        evaluator.add(gt_ids, infos(gt), pred_ids, infos(pred), str(seed))
    return evaluator


@pytest.fixture(scope="module", params=[False, True], ids=["official", "legacy"])
def whole(request):
    """All images in their order, and one evaluator of each image."""
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


def scores_of_a_share(rank, join, folder):
    join()
    with distributed("cpu") as world:
        mine = evaluator_of(range(rank, IMAGES, world.size))
        mine.load_state(sum_over_processes(world, torch.from_numpy(mine.state())).numpy())
        (folder / f"{world.size}_{rank}.json").write_text(json.dumps(mine.scores().to_json()))


@pytest.mark.distributed
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_that_share_the_images(tmp_path, size):
    launch(scores_of_a_share, size, tmp_path)
    expected = json.dumps(evaluator_of(range(IMAGES)).scores().to_json())
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == [expected] * size
