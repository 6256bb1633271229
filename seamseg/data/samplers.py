"""Which images make a batch: those of like aspect, so that little of the padded tensor is padding (SPEC "Samplers")."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

from seamseg.errors import InputError


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

    def _batches(self) -> list[list[int]]:
        size = self.batch_size
        batches, left = [], []
        for group in self._shuffled():
            full = len(group) - len(group) % size
            batches += [group[i : i + size] for i in range(0, full, size)]
            left += group[full:]
        batches += [left[i : i + size] for i in range(0, len(left), size)]

        def falling_aspect(index: int) -> float:
            height, width = self.img_sizes[index]
            return -width / height

        return [sorted(batch, key=falling_aspect) for batch in batches[: self.num_batches]]


class DistributedARBatchSampler(ARBatchSampler):
    """The share of one process of the batches of :class:`ARBatchSampler`, in shuffled order.

    Every rank gets the same number of batches; where the number of ranks does not divide theirs, the first batches of
    the order are given out a second time. With `num_replicas=1` it is the sampler of single-process training.

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

    def __len__(self) -> int:
        return -(-self.num_batches // self.num_replicas)

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._batches()
        order = torch.randperm(len(batches), generator=self._generator(self.epoch)).tolist()
        share = len(self)
        for k in range(self.rank * share, (self.rank + 1) * share):
            yield batches[order[k % len(order)]]


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
