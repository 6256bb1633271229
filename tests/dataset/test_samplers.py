"""Batch samplers against the original's index sequences, and their properties."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seamseg.data.samplers import ARBatchSampler, DistributedARBatchSampler, ShardSampler
from seamseg.errors import InputError

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "samplers.json").read_text())
SIZES = GOLDEN["img_sizes"]
sizes = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=40)


def epochs(sampler, wanted=(0, 1, 2)):
    result = []
    for epoch in wanted:
        sampler.set_epoch(epoch)
        result.append(list(sampler))
    return result


@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_index_sequences_of_the_original(batch_size, drop_last):
    name = f"bs{batch_size}_drop{int(drop_last)}"
    sampler = ARBatchSampler(SIZES, batch_size, drop_last)
    assert epochs(sampler) == GOLDEN[f"ar_{name}"]["epochs012"]
    assert len(sampler) == GOLDEN[f"ar_{name}"]["len"]
    for rank in range(3):
        shard = DistributedARBatchSampler(SIZES, batch_size, 3, rank, drop_last)
        golden = GOLDEN[f"dist_{name}_rank{rank}of3"]
        assert epochs(shard) == golden["epochs012"]
        assert len(shard) == golden["len"]


def test_an_epoch_does_not_depend_on_those_iterated_before():
    resumed = DistributedARBatchSampler(SIZES, 2, epoch=2)
    assert [list(resumed)] == epochs(DistributedARBatchSampler(SIZES, 2), (0, 1, 2))[2:]
    assert epochs(resumed, (2, 2, 0)) == epochs(DistributedARBatchSampler(SIZES, 2), (2, 2, 0))


def test_seed_changes_the_order():
    assert list(ARBatchSampler(SIZES, 2, seed=1)) != list(ARBatchSampler(SIZES, 2))


@given(sizes, st.integers(1, 6), st.integers(0, 3), st.integers(1, 4))
def test_every_image_once_and_equal_shares(img_sizes, batch_size, epoch, ranks):
    everything = list(ARBatchSampler(img_sizes, batch_size, epoch=epoch))
    assert sorted(i for b in everything for i in b) == list(range(len(img_sizes)))
    mixed = [b for b in everything if len({h < w for h, w in (img_sizes[i] for i in b)}) > 1]
    assert len(mixed) <= 2  # only what is left of both aspects

    shards = [DistributedARBatchSampler(img_sizes, batch_size, ranks, r, epoch=epoch) for r in range(ranks)]
    given_out = [list(s) for s in shards]
    assert {len(batches) for batches in given_out} == {len(shards[0])}
    counts = Counter(tuple(b) for batches in given_out for b in batches)
    assert set(counts) == {tuple(b) for b in everything}


@given(st.integers(0, 30), st.integers(1, 5))
def test_evaluation_shards_cover_each_image_once(length, ranks):
    shards = [ShardSampler(length, ranks, r) for r in range(ranks)]
    assert sorted(i for s in shards for i in s) == list(range(length))
    assert sum(map(len, shards)) == length


def test_impossible_batches():
    with pytest.raises(InputError, match="no images"):
        ARBatchSampler([], 1)
    with pytest.raises(InputError, match="at least 1"):
        ARBatchSampler(SIZES, 0)
    with pytest.raises(InputError, match="no full batch of 99"):
        ARBatchSampler(SIZES, 99, drop_last=True)
    assert len(list(ARBatchSampler(SIZES, 99))) == 1
