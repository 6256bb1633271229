"""Choosing rows of fixed shapes: the same rows as by counting, each as likely as another."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seamseg.ops.nms import best_scores, first_true, nth_true, random_subset, rank_samples

masks = st.lists(st.booleans(), max_size=40).map(lambda values: torch.tensor(values, dtype=torch.bool))


@settings(max_examples=60)
@given(masks, st.integers(1, 12))
def test_first_true_are_those_of_nonzero(mask, count):
    index, is_there = first_true(mask[None], count)
    wanted = torch.nonzero(mask).flatten()[:count]
    assert index[0, is_there[0]].tolist() == wanted.tolist()
    assert is_there.tolist() == [[True] * len(wanted) + [False] * (count - len(wanted))]
    assert (index[~is_there] == 0).all()


@settings(max_examples=60)
@given(masks)
def test_nth_true_in_any_order(mask):
    wanted = torch.nonzero(mask).flatten()
    ranks = torch.randperm(len(wanted))
    assert nth_true(mask, ranks).tolist() == wanted[ranks].tolist()
    assert nth_true(mask, torch.tensor([len(wanted)])).tolist() == [len(mask)]


def test_every_subset_is_as_likely_as_another():
    torch.manual_seed(0)
    chosen = torch.tensor([True, False, True, True, True])
    drawn = random_subset(chosen.expand(12000, 5), 2)
    subsets, counts = drawn.unique(dim=0, return_counts=True)
    assert len(subsets) == 6, "2 of 4"
    # 2000 each, with a deviation of 41
    assert (counts - 2000).abs().max() < 160


FEW = st.sampled_from([0.25, 0.5, 0.75, -1.0, float("inf"), -float("inf"), float("nan")])


@settings(max_examples=100)
@given(st.lists(FEW, max_size=12), st.integers(0, 14))
def test_best_scores_are_those_of_a_stable_sort(values, count):
    scores = torch.tensor(values)
    assert (
        best_scores(scores, count).tolist()
        == torch.argsort(scores, descending=True, stable=True).tolist()[: count or None]
    )


@settings(max_examples=60)
@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=12), st.integers(0, 4), st.integers(1, 14))
def test_samples_are_positives_then_negatives(values, most, number):
    kinds = torch.tensor(values)
    positive, order, exists = rank_samples(kinds == 1, kinds == 0, most, number)
    drawn = int(positive.sum())
    assert drawn == min(values.count(1), most)
    assert not (positive & (kinds != 1)).any()
    assert order.shape == (min(number, len(values)),)
    assert order.unique().shape == order.shape
    found = kinds[order][exists].tolist()
    assert found == ([1] * drawn + [0] * values.count(0))[:number]


def test_negatives_are_in_a_random_order():
    none, all_ = torch.zeros(4000, 4, dtype=torch.bool), torch.ones(4000, 4, dtype=torch.bool)
    _, order, _ = rank_samples(none, all_, 0, 4)
    assert (order[:, 0].bincount(minlength=4) - 1000).abs().max() < 150
