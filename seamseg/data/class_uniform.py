"""Rare classes more often: a part of the images of an epoch is drawn class by class."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from seamseg.data.metadata import ImageInfo
from seamseg.errors import InputError
from seamseg.panoptic_map import VOID


class ClassUniform:
    """Replaces a part of the drawn images: a class evenly, then evenly an image that has it.

    Landscape images are replaced by landscape ones and portrait (and square) ones by such, so that the batches of
    :class:`seamseg.data.samplers.ARBatchSampler` stay of like aspect. What takes the place of an image depends on
    `seed`, the epoch and the image alone: not on the number of processes or where the epoch was resumed.

    Parameters
    ----------
    images : of the data set
    part : of the draws that are replaced, 0 to 1
    seed : of the draws

    Raises
    ------
    InputError
        if `part` is not within 0 and 1
    """

    def __init__(self, images: Sequence[ImageInfo], part: float, seed: int = 0) -> None:
        if not 0 <= part <= 1:
            raise InputError(f"class_uniform must be 0 to 1, got {part}")
        self.part = part
        self.seed = seed
        self._wide = [is_wide(image) for image in images]
        having: dict[bool, dict[int, list[int]]] = {True: {}, False: {}}
        for index, image in enumerate(images):
            for category in sorted(set(image.cat) - {VOID}):
                having[self._wide[index]].setdefault(category, []).append(index)
        self._having = {wide: [found[c] for c in sorted(found)] for wide, found in having.items()}

    def __call__(self, epoch: int, index: int) -> int:
        """The image that takes the place of image `index` in an epoch; often itself."""
        rng = Random(f"class/{self.seed}/{epoch}/{index}")
        classes = self._having[self._wide[index]]
        return rng.choice(rng.choice(classes)) if classes and rng.random() < self.part else index


def is_wide(image: ImageInfo) -> bool:
    """True for landscape images, which make batches of their own."""
    return image.size[0] < image.size[1]
