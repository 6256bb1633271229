"""What a sampler asks a data set for: an image in an epoch, so that workers may live through all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torch.utils.data import Sampler


class ItemKey(NamedTuple):
    """An image to load.

    Attributes
    ----------
    epoch : of the training; augmentation depends on it
    image : its index in the data set
    slot : the index that the sampler drew; another one where class-uniform sampling put this image in its place
    """

    epoch: int
    image: int
    slot: int


class KeyedBatches(Sampler[list[ItemKey]]):
    """The batches of a sampler as keys that carry the epoch.

    Nothing here counts batches: a sampler that starts in the middle of an epoch gives the keys of an uninterrupted one.

    Parameters
    ----------
    sampler : of lists of indices; it decides the order and, with its `set_epoch`, where an epoch begins
    replace : the index that takes the place of an index in an epoch; None to keep all
    """

    def __init__(self, sampler: Sampler[list[int]], replace: Callable[[int, int], int] | None = None) -> None:
        self.sampler = sampler
        self.replace = replace
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, of the sampler too."""
        self.epoch = epoch
        tell: Callable[[int], None] | None = getattr(self.sampler, "set_epoch", None)
        if tell is not None:
            tell(epoch)

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[ItemKey]]:
        for batch in self.sampler:
            yield self._keys(batch)

    def _keys(self, batch: Sequence[int]) -> list[ItemKey]:
        place = self.replace or (lambda epoch, index: index)
        return [ItemKey(self.epoch, place(self.epoch, index), index) for index in batch]
