"""Class-uniform sampling: rare classes are drawn more often."""

from __future__ import annotations

import pytest

from seamseg.data.samplers import ClassUniformSampling, DistributedARBatchSampler, EpochBatchSampler, SampleIndex
from seamseg.maps.formats.metadata import ImageInfo

COMMON, RARE, PORTRAIT = 0, 1, 2


def images(count: int = 400) -> list[ImageInfo]:
    """Return images: 1 % of the landscape ones have the rare class, every fourth is a portrait of a third class."""
    return [
        ImageInfo(str(i), [255, PORTRAIT], (30, 20), [0, 0])
        if i % 4 == 3
        else ImageInfo(str(i), [255, COMMON, RARE] if i % 100 == 0 else [255, COMMON], (20, 30), [0, 0, 0])
        for i in range(count)
    ]


def test_classes_are_drawn_equally_often():
    """By images of the same orientation; images of void only are kept."""
    every = images()
    replace = ClassUniformSampling(every, 1.0)
    assert {every[replace(0, i)].size for i in range(3, 400, 4)} == {(30, 20)}
    drawn = [replace(epoch, i) for epoch in range(3) for i in range(400) if i % 4 != 3]
    assert all(every[k].size == (20, 30) for k in drawn)
    rare = sum(RARE in every[k].cat for k in drawn) / len(drawn)
    assert 0.45 < rare < 0.56  # half by class, and a few of the common ones
    assert len(set(drawn)) > 200
    assert ClassUniformSampling([ImageInfo("a", [255], (20, 30), [0])], 1.0)(0, 0) == 0


def test_fraction_of_replaced_draws():
    every = images()
    replace = ClassUniformSampling(every, 0.25)
    kept = sum(replace(0, i) == i for i in range(400))
    assert 270 < kept < 330
    assert all(ClassUniformSampling(every, 0)(0, i) == i for i in range(400))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_draws_do_not_depend_on_the_number_of_processes(world):
    every = images(64)
    sizes = [image.size for image in every]

    def keys(seed: int, epoch: int, world: int) -> list[SampleIndex]:
        found = []
        for rank in range(world):
            sampler = DistributedARBatchSampler(sizes, 2, world, rank, seed=seed)
            batches = EpochBatchSampler(sampler, ClassUniformSampling(every, 0.5, seed))
            batches.set_epoch(epoch)
            assert len(batches) == len(sampler)
            for batch in batches:
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
