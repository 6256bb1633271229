"""Choosing rows of fixed shapes: the same rows as by counting, each as likely as another."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seamseg.models.heads.select import first_true, nth_true, random_subset

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


def test_rows_of_a_batch_do_not_mix():
    mask = torch.tensor([[False, True, True], [True, False, False]])
    index, is_there = first_true(mask, 2)
    assert index.tolist() == [[1, 2], [0, 0]]
    assert is_there.tolist() == [[True, True], [True, False]]


def test_draws_are_subsets_of_the_wanted_size():
    chosen = torch.rand(3, 50) < torch.tensor([[0.0], [0.1], [0.9]])
    drawn = random_subset(chosen, 10)
    assert not (drawn & ~chosen).any()
    assert drawn.sum(1).tolist() == chosen.sum(1).clamp(max=10).tolist()
    assert not random_subset(chosen, 0).any()


def test_every_subset_is_as_likely_as_another():
    torch.manual_seed(0)
    chosen = torch.tensor([True, False, True, True, True])
    drawn = random_subset(chosen.expand(12000, 5), 2)
    subsets, counts = drawn.unique(dim=0, return_counts=True)
    assert len(subsets) == 6, "2 of 4"
    # 2000 each, with a deviation of 41
    assert (counts - 2000).abs().max() < 160
