"""Samplers: which images form a batch, how an epoch is split over processes, and class-uniform sampling.

Batches hold images of similar aspect ratio, so that little of the padded tensor is padding (docs/contract.md,
"Samplers").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from random import Random
from typing import NamedTuple

import torch
from torch.utils.data import Sampler

from seamseg.maps.formats.metadata import ImageInfo
from seamseg.maps.panoptic_map import VOID
from seamseg.utils.errors import InputError


class EpochSegment(NamedTuple):
    """A part of an epoch: number of processes, batch size of a process, batches that each process has trained on."""

    world: int
    batch_size: int
    done: int


class SampleIndex(NamedTuple):
    """An epoch, an image, and the `slot` that the sampler drew, which class-uniform sampling may have replaced."""

    epoch: int
    image: int
    slot: int


class DistributedARBatchSampler(Sampler[list[SampleIndex]]):
    """Batches of images of similar aspect ratio for one process, shuffled within each orientation, in shuffled order.

    Landscape images make batches of their own, as do portrait (and square) ones; the remainders of both are mixed.
    Within a batch the aspect ratio decreases. The order is a function of `seed` and the epoch alone. It equals that of
    the original for a run that starts at epoch 0: the original shuffles its lists in place each epoch, hence epoch e is
    the product of the permutations of epochs 0 to e.

    Every rank gets the same number of batches; the first ones are used a second time where it does not divide the
    total. `img_sizes` are `(height, width)`. `drop_last` drops a last batch that is not full; InputError if none is.

    An epoch may be continued with another number of processes or batch size, several times: :meth:`continue_from` takes
    what was done, and the next pass yields exactly the remaining images. The attribute `replace` maps `(epoch, index)`
    to the image to load, see :class:`ClassUniformSampling`.
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
        if drop_last and len(img_sizes) < batch_size:
            raise InputError(
                f"{len(img_sizes)} images make no full batch of {batch_size} and drop_last is on: lower the batch size"
            )
        self.img_sizes = [(int(h), int(w)) for h, w in img_sizes]
        self.batch_size = batch_size
        self.num_replicas = num_replicas
        self.rank = rank
        self.drop_last = drop_last
        self.seed = seed
        self.replace: Callable[[int, int], int] = lambda epoch, index: index
        self.set_epoch(epoch)

    @property
    def order(self) -> tuple[int, int]:
        """What determines the order of the images besides the epoch: a position holds in an epoch of the same only."""
        return len(self.img_sizes), self.seed

    def set_epoch(self, epoch: int) -> None:
        """Select the epoch whose shuffling applies, starting at its beginning; call it before iterating."""
        self.epoch = epoch
        self.segments: tuple[EpochSegment, ...] = (EpochSegment(self.num_replicas, self.batch_size, 0),)

    def continue_from(self, segments: Sequence[EpochSegment]) -> None:
        """Start the next pass over the epoch after what was done of it, in order; call it after :meth:`set_epoch`.

        `self.segments` then ends with the segment that starts now, which is the last of these if it has the same number
        of processes and the same batch size.
        """
        now = (self.num_replicas, self.batch_size)
        done = tuple(segment for segment in segments[:-1] if segment.done)
        last = segments[-1] if segments else EpochSegment(*now, 0)
        if (last.world, last.batch_size) != now:
            done, last = (*done, last) if last.done else done, EpochSegment(*now, 0)
        self.segments = (*done, last)

    def __len__(self) -> int:
        """Return the number of remaining batches of this process in the epoch."""
        if len(self.segments) == 1:
            images = len(self.img_sizes)
            batches = images // self.batch_size if self.drop_last else -(-images // self.batch_size)
            return max(0, -(-batches // self.num_replicas) - self.segments[0].done)
        return len(self._left())

    def __iter__(self) -> Iterator[list[SampleIndex]]:
        for batch in self._left():
            yield [SampleIndex(self.epoch, self.replace(self.epoch, slot), slot) for slot in batch]

    def _left(self) -> list[list[int]]:
        taken: set[int] = set()
        for segment in self.segments[:-1]:
            batches, per_rank = self._ordered(segment, taken)
            starts = range(0, segment.world * per_rank, per_rank or 1)
            # a batch that is used a second time is taken once
            used = {k % len(batches) for start in starts for k in range(start, start + min(segment.done, per_rank))}
            taken.update(image for k in used for image in batches[k])
        last = self.segments[-1]
        batches, per_rank = self._ordered(last, taken)
        return [batches[k % len(batches)] for k in range(self.rank * per_rank + last.done, (self.rank + 1) * per_rank)]

    def _ordered(self, segment: EpochSegment, taken: set[int]) -> tuple[list[list[int]], int]:
        """Return the batches of a segment in rank order, without `taken` images, and the number of batches per rank."""
        batches = self.batches(segment.batch_size, taken)
        order = torch.randperm(len(batches), generator=self._generator(self.epoch)).tolist()
        return [batches[k] for k in order], -(-len(batches) // segment.world)

    def _generator(self, epoch: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + epoch)

    def batches(self, size: int, taken: Set[int] = frozenset()) -> list[list[int]]:
        """Return batches of the images that are not `taken`, not shuffled: landscape, portrait, remainders of both."""
        sizes = torch.tensor(self.img_sizes)
        wide = sizes[:, 0] < sizes[:, 1]
        landscape, portrait = wide.nonzero()[:, 0], (~wide).nonzero()[:, 0]
        for epoch in range(self.epoch + 1):
            generator = self._generator(epoch)
            landscape = landscape[torch.randperm(len(landscape), generator=generator)]
            portrait = portrait[torch.randperm(len(portrait), generator=generator)]
        groups = [[image for image in group.tolist() if image not in taken] for group in (landscape, portrait)]
        batches, left = [], []
        for group in groups:
            full = len(group) - len(group) % size
            batches += [group[i : i + size] for i in range(0, full, size)]
            left += group[full:]
        batches += [left[i : i + size] for i in range(0, len(left), size)]
        if self.drop_last:
            # only the last one can be short
            batches = batches[: sum(map(len, groups)) // size]
        # by decreasing aspect ratio
        return [
            sorted(batch, key=lambda image: -self.img_sizes[image][1] / self.img_sizes[image][0]) for batch in batches
        ]


class ClassUniformSampling:
    """Replaces a fraction of the drawn images: draws a class uniformly, then an image that has it uniformly.

    Landscape images are replaced by landscape ones and portrait (and square) ones by portrait ones, so that batches
    keep a similar aspect ratio. The replacement of an image depends on `seed`, the epoch and the image alone: not on
    the number of processes or on where the epoch was resumed. `fraction` is 0 to 1.
    """

    def __init__(self, images: Sequence[ImageInfo], fraction: float, seed: int = 0) -> None:
        self.fraction = fraction
        self.seed = seed
        self._wide = [image.size[0] < image.size[1] for image in images]
        containing: dict[bool, dict[int, list[int]]] = {True: {}, False: {}}
        for index, image in enumerate(images):
            for category in sorted(set(image.cat) - {VOID}):
                containing[self._wide[index]].setdefault(category, []).append(index)
        self._containing = {wide: sorted(by_class.items()) for wide, by_class in containing.items()}

    def __call__(self, epoch: int, index: int) -> int:
        """Return the image to load instead of image `index` in an epoch, often `index` itself."""
        rng = Random(f"class/{self.seed}/{epoch}/{index}")
        classes = self._containing[self._wide[index]]
        if not classes or rng.random() >= self.fraction:
            return index
        _, images = rng.choice(classes)
        return rng.choice(images)
