"""A split of a dataset folder as a PyTorch data set of transformed images with their targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from seamseg.data.folder import DatasetFolder
from seamseg.data.sample_index import ItemKey
from seamseg.data.transforms import TrainTransform
from seamseg.formats.metadata import ImageInfo, Metadata
from seamseg.panoptic_map import VOID
from seamseg.utils.errors import InputError

TRIES = 10
"""So many images that cannot be read, one drawn after the other, are an error however many may be broken in all."""


class Transform(Protocol):
    """What :class:`PanopticDataset` calls, see :class:`seamseg.data.transforms.TrainTransform`."""

    def __call__(
        self, image: Image.Image, mask: np.ndarray, cat: Sequence[int], iscrowd: Sequence[int], rng: Random | None
    ) -> dict[str, Any]: ...


class PanopticDataset(Dataset):
    """Images of one split.

    The chance of an item (flip, scale, ...) depends on `seed`, the epoch and the item's index alone (and its slot,
    where class-uniform sampling repeats an image): not on the number of workers, the order of loading or an
    interruption.

    Parameters
    ----------
    root : dataset folder
    split : name of a list in `lst/`
    transform : makes tensors, :class:`seamseg.data.transforms.TrainTransform`
    seed : of the random transforms
    fast_decode : read JPEG at the smallest sufficient size; needs a :class:`TrainTransform`
    replace_broken : put another image of like aspect, drawn by `seed`, epoch and index, in the place of one that
        cannot be read

    Attributes
    ----------
    folder : the opened :class:`DatasetFolder`
    images : :class:`ImageInfo` by index
    img_sizes : `(height, width)` by index, for the samplers
    reading : one number in shared memory, the index of the image that is being read, -1 between them; None to keep no
        account (:mod:`seamseg.data.workers`)

    Raises
    ------
    InputError
        if the folder, its metadata or the split is missing, broken or empty
    """

    def __init__(
        self,
        root: str | Path,
        split: str,
        transform: Transform,
        seed: int = 0,
        fast_decode: bool = False,
        replace_broken: bool = False,
    ) -> None:
        if fast_decode and not isinstance(transform, TrainTransform):
            raise ValueError("fast_decode needs a transform that tells its size beforehand")
        self.folder = DatasetFolder(root)
        self.split = split
        self.images: list[ImageInfo] = self.folder.split(split)
        self.transform = transform
        self.seed = seed
        self.fast_decode = fast_decode
        self.replace_broken = replace_broken
        self.reading: Tensor | None = None
        self.epoch = 0

    @property
    def metadata(self) -> Metadata:
        """Classes and images of the whole folder"""
        return self.folder.metadata

    @property
    def num_stuff(self) -> int:
        """Number of stuff classes"""
        return self.metadata.num_stuff

    @property
    def num_thing(self) -> int:
        """Number of thing classes"""
        return self.metadata.num_thing

    @property
    def categories(self) -> list[str]:
        """Class names, stuff first"""
        return self.metadata.categories

    @property
    def img_sizes(self) -> list[tuple[int, int]]:
        """`(height, width)` by index"""
        return [image.size for image in self.images]

    def set_epoch(self, epoch: int) -> None:
        """The epoch of items that are asked for by a plain index; an :class:`ItemKey` names its own."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.images)

    def file_name(self, index: int) -> str:
        """The photo of an item as errors name it, whether it is there or not."""
        try:
            return str(self.folder.image_path(self.images[index].id))
        except InputError:
            return str(self.folder.root / "img" / self.images[index].id)

    def read(self, index: int, at_least: tuple[int, int] | None = None) -> tuple[Image.Image, np.ndarray, ImageInfo]:
        """Photo and mask (`L x H x W` int32) of an item before any transform.

        With `at_least`, `(height, width)`, a JPEG may be reduced to a size that is not below it.

        Raises
        ------
        InputError
            naming the file, if one is missing or broken or if they do not fit each other
        """
        info = self.images[index]
        path = self.folder.image_path(info.id)
        if at_least is None:
            image = self.folder.read_image(path)
            size = (image.height, image.width)
        else:
            image, size = self.folder.read_reduced(path, at_least)
        if size != info.size:
            turned = " (it lies rotated by its EXIF orientation)" if size == info.size[::-1] else ""
            raise InputError(
                f"{path}: the image is {size[1]} x {size[0]} pixels (width x height), its mask and "
                f"metadata.bin say {info.size[1]} x {info.size[0]}{turned}; "
                "put the photo back that the mask was drawn on, or prepare the data set again"
            )
        return image, self.folder.read_mask(info.id), info

    def __getitem__(self, key: int | ItemKey) -> dict[str, Any]:
        """The dict that the transform makes.

        Added are `id` and `size`, the original `(height, width)`, and `broken`: `(id, what was wrong)` of images that
        could not be read, in whose place this one is.

        Raises
        ------
        InputError
            if the image cannot be read; with `replace_broken`, if none of :data:`TRIES` can
        """
        epoch, index, slot = key if isinstance(key, tuple) else (self.epoch, key, key)
        broken: list[tuple[str, str]] = []
        for candidate in islice(self._candidates(epoch, index, slot), TRIES if self.replace_broken else 1):
            self._note(candidate)
            try:
                item = self._item(candidate, f"{self.seed}/{epoch}/{candidate}", slot)
            except InputError as error:
                broken.append((self.images[candidate].id, str(error)))
            else:
                return {**item, "broken": broken}
            finally:
                self._note(-1)
        tried = f"; the {len(broken) - 1} images tried in its place cannot be read either" if len(broken) > 1 else ""
        raise InputError(f"{broken[0][1]}{tried}")

    def _item(self, index: int, chance: str, slot: int) -> dict[str, Any]:
        if slot != index:
            chance += f"/{slot}"  # an image that fills several places looks different in each
        at_least = None
        if self.fast_decode:
            assert isinstance(self.transform, TrainTransform)
            at_least = self.transform.draw(self.images[index].size, Random(chance)).size
        image, mask, info = self.read(index, at_least)
        item = self.transform(image, mask, info.cat, info.iscrowd, Random(chance))
        return {**item, "id": info.id, "size": info.size}

    def _note(self, index: int) -> None:
        if self.reading is not None:
            self.reading[0] = index

    @cached_property
    def _by_aspect(self) -> dict[bool, list[int]]:
        return {wide: [i for i, image in enumerate(self.images) if is_wide(image) == wide] for wide in (True, False)}

    def _candidates(self, epoch: int, index: int, slot: int) -> Iterator[int]:
        """The image, then others of like aspect, then of the other: drawn, since broken files are often neighbours."""
        yield index
        rng = Random(f"broken/{self.seed}/{epoch}/{index}/{slot}")
        wide = is_wide(self.images[index])
        for group in (self._by_aspect[wide], self._by_aspect[not wide]):
            drawn = rng.sample(group, min(TRIES, len(group)))
            yield from (other for other in drawn if other != index)


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
