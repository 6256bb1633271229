"""Batch samplers against index sequences of the original, and their properties."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seamseg.data.samplers import ClassUniformSampling, DistributedARBatchSampler
from seamseg.maps.formats.metadata import ImageInfo
from seamseg.utils.errors import InputError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "samplers.json").read_text())
SIZES = GOLDEN["img_sizes"]
sizes = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=40)


def epochs(sampler, wanted=(0, 1, 2)):
    result = []
    for epoch in wanted:
        sampler.set_epoch(epoch)
        result.append(images(sampler))
    return result


def images(sampler):
    return [[index.image for index in batch] for batch in sampler]


def in_order(img_sizes, batch_size, **options):
    return DistributedARBatchSampler(img_sizes, batch_size, **options).batches(batch_size)


@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_index_sequences_match_the_original(batch_size, drop_last):
    name = f"bs{batch_size}_drop{int(drop_last)}"
    for epoch, batches in enumerate(GOLDEN[f"ar_{name}"]["epochs012"]):
        assert in_order(SIZES, batch_size, drop_last=drop_last, epoch=epoch) == batches
    for rank in range(3):
        shard = DistributedARBatchSampler(SIZES, batch_size, 3, rank, drop_last)
        golden = GOLDEN[f"dist_{name}_rank{rank}of3"]
        assert epochs(shard) == golden["epochs012"]
        assert len(shard) == golden["len"]


def test_an_epoch_does_not_depend_on_earlier_iteration():
    resumed = DistributedARBatchSampler(SIZES, 2, epoch=2)
    assert [images(resumed)] == epochs(DistributedARBatchSampler(SIZES, 2), (0, 1, 2))[2:]
    assert epochs(resumed, (2, 2, 0)) == epochs(DistributedARBatchSampler(SIZES, 2), (2, 2, 0))
    assert in_order(SIZES, 2, seed=1) != in_order(SIZES, 2)


@given(sizes, st.integers(1, 6), st.integers(0, 3), st.integers(1, 4))
def test_every_image_once_and_equal_batch_counts(img_sizes, batch_size, epoch, ranks):
    everything = in_order(img_sizes, batch_size, epoch=epoch)
    assert sorted(i for b in everything for i in b) == list(range(len(img_sizes)))
    mixed = [b for b in everything if len({h < w for h, w in (img_sizes[i] for i in b)}) > 1]
    assert len(mixed) <= 2  # only the remainders of both orientations

    shards = [DistributedARBatchSampler(img_sizes, batch_size, ranks, r, epoch=epoch) for r in range(ranks)]
    yielded = [images(s) for s in shards]
    assert {len(batches) for batches in yielded} == {len(shards[0])}
    counts = Counter(tuple(b) for batches in yielded for b in batches)
    assert set(counts) == {tuple(b) for b in everything}


def test_a_batch_size_above_the_number_of_images():
    with pytest.raises(InputError, match="no full batch of 99"):
        DistributedARBatchSampler(SIZES, 99, drop_last=True)
    assert len(list(DistributedARBatchSampler(SIZES, 99))) == 1
    assert len(list(DistributedARBatchSampler([(1, 2)] * 3, 3, drop_last=True))) == 1


def world(img_sizes, size, batch, epoch, segments):
    samplers = [DistributedARBatchSampler(img_sizes, batch, size, rank) for rank in range(size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
        sampler.continue_from(segments)
    return samplers


stops = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 6)), max_size=5)


@given(sizes, st.integers(0, 2), stops, st.integers(1, 5), st.integers(1, 4))
@example([(1, 2)] * 12, 0, [(3, 1, 2)], 1, 1)
def test_epoch_resumed_by_other_worlds_covers_each_image_once(img_sizes, epoch, stops, last_world, last_batch):
    """A segment has no image of an earlier one; a batch is repeated only to give all ranks the same number."""
    seen = Counter()
    segments = ()
    for size, batch, wanted in [*stops, (last_world, last_batch, None)]:
        samplers = world(img_sizes, size, batch, epoch, segments)
        yielded = [images(sampler) for sampler in samplers]
        assert [len(sampler) for sampler in samplers] == [len(yielded[0])] * size == list(map(len, yielded))
        segments = samplers[0].segments
        assert all(sampler.segments == segments for sampler in samplers)
        last = segments[-1]
        before = segments[:-1]
        done = len(yielded[0]) if wanted is None else min(wanted, len(yielded[0]))
        # where the same world continues, its earlier batches count too: the padding may repeat them
        whole = [images(sampler) for sampler in world(img_sizes, size, batch, epoch, (*before, last._replace(done=0)))]
        assert [batches[last.done :] for batches in whole] == yielded
        batches = {tuple(b) for batches_of_rank in whole for b in batches_of_rank[last.done : last.done + done]}
        earlier = {tuple(b) for batches_of_rank in whole for b in batches_of_rank[: last.done]}
        seen.update(i for b in batches - earlier for i in b)
        assert not seen or max(seen.values()) == 1
        repeated = sum(len(batches_of_rank) for batches_of_rank in whole) - len(
            {tuple(b) for batches_of_rank in whole for b in batches_of_rank}
        )
        assert repeated < size
        segments = (*before, last._replace(done=last.done + done))
    assert sorted(seen) == list(range(len(img_sizes)))


COMMON, RARE, PORTRAIT = 0, 1, 2


def images_of_classes(count=400):
    """Return images: 1 % of the landscape ones have the rare class, every fourth is a portrait of a third class."""
    return [
        ImageInfo(str(i), [255, PORTRAIT], (30, 20), [0, 0])
        if i % 4 == 3
        else ImageInfo(str(i), [255, COMMON, RARE] if i % 100 == 0 else [255, COMMON], (20, 30), [0, 0, 0])
        for i in range(count)
    ]


def test_classes_are_drawn_equally_often():
    every = images_of_classes()
    replace = ClassUniformSampling(every, 1.0)
    assert {every[replace(0, i)].size for i in range(3, 400, 4)} == {(30, 20)}
    drawn = [replace(epoch, i) for epoch in range(3) for i in range(400) if i % 4 != 3]
    assert all(every[k].size == (20, 30) for k in drawn)
    rare = sum(RARE in every[k].cat for k in drawn) / len(drawn)
    assert 0.45 < rare < 0.56  # half by class, and a few of the common ones
    assert len(set(drawn)) > 200
    assert ClassUniformSampling([ImageInfo("a", [255], (20, 30), [0])], 1.0)(0, 0) == 0


def test_fraction_of_replaced_draws():
    every = images_of_classes()
    replace = ClassUniformSampling(every, 0.25)
    kept = sum(replace(0, i) == i for i in range(400))
    assert 270 < kept < 330
    assert all(ClassUniformSampling(every, 0)(0, i) == i for i in range(400))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_draws_do_not_depend_on_the_number_of_processes(world):
    every = images_of_classes(64)
    sizes = [image.size for image in every]

    def keys(seed, epoch, world):
        found = []
        for rank in range(world):
            sampler = DistributedARBatchSampler(sizes, 2, world, rank, seed=seed)
            sampler.replace = ClassUniformSampling(every, 0.5, seed)
            sampler.set_epoch(epoch)
            for batch in sampler:
                assert len({every[k.image].size for k in batch}) == 1
                found += batch
        return found

    alone = keys(1, 3, 1)
    assert sorted(keys(1, 3, world)) == sorted(alone)
    assert sorted(k.slot for k in alone) == list(range(64))
    assert [k.image for k in alone] != [k.slot for k in alone]
    assert {k.epoch for k in alone} == {3}
    by_slot = {k.slot: k.image for k in alone}
    for other in (keys(1, 4, world), keys(2, 3, world)):
        assert {k.slot: k.image for k in other} != by_slot
