"""Which images make a batch: those of like aspect, so that little of the padded tensor is padding (SPEC "Samplers")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.utils.data import Sampler

from seamseg.utils.errors import InputError


class Segment(NamedTuple):
    """A stretch of an epoch in which nothing about the sharing changed.

    Attributes
    ----------
    world : number of processes
    batch_size : images a batch and process
    done : batches that each process has trained on
    """

    world: int
    batch_size: int
    done: int


class ARBatchSampler(Sampler[list[int]]):
    """Batches of images of like aspect, shuffled within each aspect.

    Landscape images come first, then portrait (and square) ones, then what is left of both; within a batch the aspect
    falls. The order is a function of `seed` and the epoch alone, so a resumed run continues as the uninterrupted one.
    It equals what the original gives a run that starts at epoch 0: the original shuffles its lists in place each epoch,
    hence epoch e is the product of the permutations of epochs 0 to e.

    Parameters
    ----------
    img_sizes : `(height, width)` of each image
    batch_size : images a batch
    drop_last : leave out a last batch that is not full
    epoch, seed : of the shuffling

    Raises
    ------
    InputError
        if there is no image or no full batch
    """

    def __init__(
        self,
        img_sizes: Sequence[tuple[int, int]],
        batch_size: int,
        drop_last: bool = False,
        epoch: int = 0,
        seed: int = 0,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"the batch size must be at least 1, got {batch_size}")
        if not img_sizes:
            raise InputError("the data set has no images to sample from")
        if drop_last and len(img_sizes) < batch_size:
            raise InputError(
                f"{len(img_sizes)} images make no full batch of {batch_size} and drop_last is on: lower the batch size"
            )
        self.img_sizes = [(int(h), int(w)) for h, w in img_sizes]
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.epoch = epoch
        self.seed = seed

    def set_epoch(self, epoch: int) -> None:
        """Choose the shuffling of an epoch; call it before iterating."""
        self.epoch = epoch

    @property
    def num_batches(self) -> int:
        """Batches that the images make, over all ranks"""
        images = len(self.img_sizes)
        return images // self.batch_size if self.drop_last else -(-images // self.batch_size)

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        yield from self._batches()

    def _generator(self, epoch: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + epoch)

    def _shuffled(self) -> tuple[list[int], list[int]]:
        sizes = torch.tensor(self.img_sizes)
        wide = sizes[:, 0] < sizes[:, 1]
        landscape, portrait = wide.nonzero()[:, 0], (~wide).nonzero()[:, 0]
        for epoch in range(self.epoch + 1):
            generator = self._generator(epoch)
            landscape = landscape[torch.randperm(len(landscape), generator=generator)]
            portrait = portrait[torch.randperm(len(portrait), generator=generator)]
        return landscape.tolist(), portrait.tolist()

    def _batches(self, size: int | None = None, taken: Counter[int] | None = None) -> list[list[int]]:
        """Batches of `size` (default: `batch_size`) of the images of the epoch, less those that are `taken`."""
        size = size or self.batch_size
        groups = [_without(group, Counter(taken)) for group in self._shuffled()]
        batches, left = [], []
        for group in groups:
            full = len(group) - len(group) % size
            batches += [group[i : i + size] for i in range(0, full, size)]
            left += group[full:]
        batches += [left[i : i + size] for i in range(0, len(left), size)]
        if self.drop_last:
            # only the last one can be short
            batches = batches[: sum(map(len, groups)) // size]

        def falling_aspect(index: int) -> float:
            height, width = self.img_sizes[index]
            return -width / height

        return [sorted(batch, key=falling_aspect) for batch in batches]


def _without(images: list[int], taken: Counter[int]) -> list[int]:
    """The images, each left out as often as `taken` counts it; uses up what it counts."""
    left = []
    for image in images:
        if taken[image]:
            taken[image] -= 1
        else:
            left.append(image)
    return left


class DistributedARBatchSampler(ARBatchSampler):
    """The share of one process of the batches of :class:`ARBatchSampler`, in shuffled order.

    Every rank gets the same number of batches; where the number of ranks does not divide theirs, the first batches of
    the order are given out a second time. With `num_replicas=1` it is the sampler of single-process training.

    An epoch may be interrupted and go on with other processes or another batch size, several times:
    :meth:`continue_from` says what was done, and the next pass gives out exactly the images that are left. Nothing is
    read to get there.

    Parameters
    ----------
    img_sizes, batch_size, drop_last, epoch, seed : as :class:`ARBatchSampler`; `batch_size` is that of one process
    num_replicas, rank : number of processes, and which one this is
    """

    def __init__(
        self,
        img_sizes: Sequence[tuple[int, int]],
        batch_size: int,
        num_replicas: int = 1,
        rank: int = 0,
        drop_last: bool = False,
        epoch: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(img_sizes, batch_size, drop_last, epoch, seed)
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} of {num_replicas} processes")
        self.num_replicas = num_replicas
        self.rank = rank
        self.segments: tuple[Segment, ...] = (Segment(num_replicas, batch_size, 0),)

    def set_epoch(self, epoch: int) -> None:
        """Choose an epoch, to be gone through from its beginning."""
        super().set_epoch(epoch)
        self.segments = (Segment(self.num_replicas, self.batch_size, 0),)

    def continue_from(self, segments: Sequence[Segment]) -> None:
        """Begin the next pass over the epoch behind what was done of it; call it after :meth:`set_epoch`.

        Parameters
        ----------
        segments : what was done, one after the other; `self.segments` then ends with the one that begins now, which
            is the last of these where the processes and the batch size are the same as then
        """
        now = (self.num_replicas, self.batch_size)
        done = tuple(segment for segment in segments[:-1] if segment.done)
        last = segments[-1] if segments else Segment(*now, 0)
        if (last.world, last.batch_size) != now:
            done, last = (*done, last) if last.done else done, Segment(*now, 0)
        self.segments = (*done, last)

    def __len__(self) -> int:
        """Batches of this process that are left of the epoch"""
        if len(self.segments) == 1:
            return max(0, -(-self.num_batches // self.num_replicas) - self.segments[0].done)
        return len(self._left())

    def __iter__(self) -> Iterator[list[int]]:
        yield from self._left()

    def _left(self) -> list[list[int]]:
        taken: Counter[int] = Counter()
        for segment in self.segments[:-1]:
            batches, share = self._dealt(segment, taken)
            starts = range(0, segment.world * share, share or 1)
            # a batch that is given out a second time is taken once
            given = {k % len(batches) for start in starts for k in range(start, start + min(segment.done, share))}
            taken.update(image for k in given for image in batches[k])
        last = self.segments[-1]
        batches, share = self._dealt(last, taken)
        return [batches[k % len(batches)] for k in range(self.rank * share + last.done, (self.rank + 1) * share)]

    def _dealt(self, segment: Segment, taken: Counter[int]) -> tuple[list[list[int]], int]:
        """The batches of a segment in the order in which ranks get them, without `taken` images; and how many each."""
        batches = self._batches(segment.batch_size, taken)
        order = torch.randperm(len(batches), generator=self._generator(self.epoch)).tolist()
        return [batches[k] for k in order], -(-len(batches) // segment.world)


class ShardSampler(Sampler[int]):
    """The images of one process in evaluation: each image belongs to exactly one rank, none is repeated.

    Ranks may differ by one image, so nothing inside the loop may be a collective call.

    Parameters
    ----------
    length : number of images
    num_replicas, rank : number of processes, and which one this is
    """

    def __init__(self, length: int, num_replicas: int = 1, rank: int = 0) -> None:
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank {rank} of {num_replicas} processes")
        self._indices = range(rank, length, num_replicas)

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[int]:
        yield from self._indices
