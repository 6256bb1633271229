"""A split of a data set as a PyTorch data set of transformed images with their targets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from seamseg.config import components
from seamseg.data.maps import MapValues, map_values
from seamseg.data.reader import FolderReader, OpenReader, reader_errors
from seamseg.data.samplers import SampleIndex
from seamseg.data.transforms import TrainTransform
from seamseg.maps.formats.metadata import ImageInfo, Metadata
from seamseg.maps.images import as_rgb
from seamseg.utils.errors import InputError

_VOID_IMAGES = 8


class PanopticDataset(Dataset[dict[str, Any]]):
    """Images of one split, as tensors of a transform: a :class:`TrainTransform`, or one without random numbers.

    The random numbers of a sample (flip, scale, ...) depend on `seed`, the epoch and the image index alone (and its
    slot, where class-uniform sampling repeats an image): not on the number of workers, the order of loading or an
    interruption.

    The attribute `maps` of the transform, if it has one, declares the ground truth to read for custom heads or metrics.
    `fast_decode` decodes JPEG at the smallest size that suffices for a :class:`TrainTransform`.
    """

    def __init__(
        self,
        root: str | Path,
        split: str,
        transform: TrainTransform | Callable[..., dict[str, Any]],
        seed: int = 0,
        fast_decode: bool = False,
        open_reader: OpenReader = FolderReader,
    ) -> None:
        self.reader = open_reader(root, split)
        self.split = split
        self.images: list[ImageInfo] = self.reader.images
        self.transform = transform
        self.seed = seed
        self.fast_decode = fast_decode

    @property
    def metadata(self) -> Metadata:
        """Classes of the data set."""
        return self.reader.metadata

    @property
    def img_sizes(self) -> list[tuple[int, int]]:
        """`(height, width)` by index."""
        return [image.size for image in self.images]

    def __len__(self) -> int:
        return len(self.images)

    def void_share(self) -> float:
        """Return the share of the pixels of a few images that are void; images that cannot be read are left out."""
        void = pixels = 0
        count = min(_VOID_IMAGES, len(self))
        for index in np.linspace(0, len(self) - 1, count).round().astype(int).tolist():
            with suppress(InputError):
                masks = self._read_masks(index)
                void, pixels = void + int((~masks.any(axis=0)).sum()), pixels + masks[0].size
        return void / max(1, pixels)

    def _read_image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        info = self.images[index]
        with self._reader_errors(index):
            image = self.reader.read_image(index, at_least)
            image = as_rgb(Image.fromarray(image) if isinstance(image, np.ndarray) else image)
        if at_least is None and (image.height, image.width) != info.size:
            height, width = info.size
            raise InputError(
                f"{self.reader.file_name(index)}: the image is {image.width} x {image.height} pixels (width x height), "
                f"its reader states {width} x {height}"
            )
        return image

    def _read_masks(self, index: int) -> np.ndarray:
        with self._reader_errors(index):
            masks = np.asarray(self.reader.read_masks(index))
        info, name = self.images[index], self.reader.file_name(index)
        if masks.ndim != 3 or masks.shape[1:] != info.size or masks.dtype.kind not in "iu" or len(masks) == 0:
            raise InputError(f"{name}: the masks are {masks.dtype} of {masks.shape}, expected integers L x {info.size}")
        lowest, highest = int(masks.min()), int(masks.max())
        if lowest < 0 or highest >= len(info.cat):
            raise InputError(
                f"{name}: the masks have ids {lowest} to {highest}, classes are listed for {len(info.cat)}"
            )
        return masks.astype(np.int32, copy=False)

    def _read_maps(self, index: int) -> dict[str, MapValues]:
        info, found = self.images[index], {}
        for name, spec in getattr(self.transform, "maps", {}).items():
            with self._reader_errors(index):
                read = self.reader.read_map(index, spec.folder)
                stored = None if read is None else np.asarray(read)
            where = f"{self.reader.root / spec.folder / info.id} (map {name!r})"
            found[name] = map_values(stored, spec, info.size, where)
        return found

    def _reader_errors(self, index: int) -> AbstractContextManager[None]:
        own = components.custom_of(self.reader)
        return nullcontext() if own is None else reader_errors(own, self.reader.file_name(index))

    def __getitem__(self, key: int | SampleIndex) -> dict[str, Any]:
        """Return the dict that the transform makes, with `id` and `size`; a plain index is of epoch 0.

        `size` is the original `(height, width)`. InputError if the image cannot be read.
        """
        epoch, index, slot = SampleIndex(*key) if isinstance(key, tuple) else SampleIndex(0, key, key)
        # an image that fills several slots is augmented differently in each
        seed = f"{self.seed}/{epoch}/{index}" + ("" if slot == index else f"/{slot}")
        transform, info = self.transform, self.images[index]
        if isinstance(transform, TrainTransform):
            params = transform.sample_params(info.size, Random(seed))
            image = self._read_image(index, params.size if self.fast_decode else None)
            item = transform(image, self._read_masks(index), info, params, self._read_maps(index), seed)
        else:
            item = transform(self._read_image(index), self._read_masks(index), info)
            if maps := self._read_maps(index):
                item["maps"] = {name: torch.from_numpy(values.filled()) for name, values in maps.items()}
        return {**item, "id": info.id, "size": info.size}
