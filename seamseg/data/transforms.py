"""From a decoded image and its mask to tensors: scale, crop, colour jitter, flip, normalise.

See docs/contract.md, section 4 "Test input". Colour jitter, flip and normalisation of training images may be deferred
to the device (:func:`finish_image`).
"""

from __future__ import annotations

import random as global_random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seamseg.config.sections import Dataloader
from seamseg.data.input_size import reference_size, scaled_size
from seamseg.data.maps import MapValues, nearest_pixels, scale_and_crop
from seamseg.maps.folder import ReadMap
from seamseg.ops.labels import extract_boxes
from seamseg.structures import DeferredTransform
from seamseg.utils.errors import named_errors

ChangePixels = Callable[[np.ndarray, Random], np.ndarray]
"""Returns other pixels, uint8 `H x W x 3`, of the same size, with random numbers of the given RNG."""


def pil_to_tensor(image: Image.Image) -> Tensor:
    """Convert an RGB image to `3 x H x W` uint8 with the strides of channels-last memory."""
    return torch.from_numpy(np.array(image, dtype=np.uint8)).permute(2, 0, 1)


class Normalise:
    """Converts bytes to the values of the network input: `(x / 255 - mean) / std`, by channel; None omits one."""

    def __init__(self, rgb_mean: Sequence[float] | None, rgb_std: Sequence[float] | None) -> None:
        self._white = torch.tensor(255.0)
        self._mean = None if rgb_mean is None else torch.tensor(list(rgb_mean), dtype=torch.float32)[:, None, None]
        self._std = None if rgb_std is None else torch.tensor(list(rgb_std), dtype=torch.float32)[:, None, None]

    def to(self, device: torch.device) -> Normalise:
        """Move the constants to a device, in place."""
        for name, value in vars(self).items():
            setattr(self, name, None if value is None else value.to(device))
        return self

    def __call__(self, pixels: Tensor) -> Tensor:
        """Return `3 x H x W` float32, contiguous, from uint8 of any strides on the device of the constants."""
        # divided by tensors, not by Python's numbers, which CUDA would turn into a product with the inverse
        values = pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(self._white)
        if self._mean is not None:
            values.sub_(self._mean)
        if self._std is not None:
            values.div_(self._std)
        return values


def finish_image(pixels: Tensor, deferred: DeferredTransform, normalise: Normalise) -> Tensor:
    """Apply colour jitter, then flip, then normalisation to `3 x H x W` uint8; return float32."""
    if deferred.jitter is not None:
        # the same memory layout on every device: the mean used by contrast depends on the order of its sum
        pixels = jitter(pixels.contiguous(), deferred.jitter)
    if deferred.flip:
        pixels = pixels.flip(-1)
    return normalise(pixels)


def jitter(pixels: Tensor, factors: tuple[float, float, float, float]) -> Tensor:
    """Change brightness, contrast and saturation by factors and shift the hue, in turns of -0.5 to 0.5, in this order.

    The pixels, `3 x H x W` uint8, are not modified.
    """
    from torchvision.transforms.v2 import functional  # takes a second to import

    brightness, contrast, saturation, hue = factors
    if brightness != 1:
        pixels = functional.adjust_brightness_image(pixels, brightness)
    if contrast != 1:
        pixels = functional.adjust_contrast_image(pixels, contrast)
    if saturation != 1:
        pixels = functional.adjust_saturation_image(pixels, saturation)
    return functional.adjust_hue_image(pixels, hue) if hue != 0 else pixels


def flip_boxes(boxes: Tensor, width: int) -> Tensor:
    """Return the boxes of the mirrored image, `n x 4`; rows of -1 (ids without pixels) are unchanged."""
    y0, x0, y1, x1 = boxes.unbind(1)
    flipped = torch.stack((y0, width - x1, y1, width - x0), 1)
    return torch.where(boxes[:, :1] < 0, boxes, flipped)


@dataclass(frozen=True)
class AugmentationParams:
    """The sampled augmentation of one image.

    The image is scaled to `size`, `(height, width)`, and cropped to the `window`, `(y0, x0, height, width)`, before the
    flip. `scale` is the width as a fraction of that in :func:`seamseg.data.input_size.reference_size`.
    """

    size: tuple[int, int]
    window: tuple[int, int, int, int]
    deferred: DeferredTransform
    scale: float = 1.0


class AugmentedImage(NamedTuple):
    """An image and its targets after scaling and cropping, before colour jitter, flip and normalisation.

    `pixels` are `H x W x 3` uint8; `ids` are `L x H x W` instance ids without gaps in the narrowest type, 0 void; `cat`
    and `iscrowd` are class, int64, and crowd flag, uint8, by id; `maps` are ground truth of custom heads by name.
    """

    pixels: np.ndarray
    ids: np.ndarray
    cat: np.ndarray
    iscrowd: np.ndarray
    maps: Mapping[str, MapValues] = MappingProxyType({})


class TrainTransform:
    """Converts an image and its mask to network input and targets, with the random augmentation of `[dataloader]`.

    For the sizes see :func:`scaled_size`; the limit applies after random scaling. The probability of the flip is 0.5.
    `device_transforms` defer colour jitter, flip and normalisation to :func:`finish_image` on the device.
    `augmentations` are custom ones, which change the colours of an image after scaling and cropping, by name; `maps` is
    the ground truth of custom heads, by name.
    """

    def __init__(
        self,
        options: Dataloader,
        augmentations: Mapping[str, ChangePixels] = MappingProxyType({}),
        maps: Mapping[str, ReadMap] = MappingProxyType({}),
    ) -> None:
        self.options = options
        self.reference = reference_size(options.shortest_size, options.longest_max_size)
        self.augmentations = dict(augmentations)
        self.maps = dict(maps)
        self._normalise = Normalise(options.rgb_mean, options.rgb_std)

    def sample_params(self, size: tuple[int, int], rng: Random) -> AugmentationParams:
        """Sample the augmentation of an image of `(height, width)`: flip, scale, place of the crop, colours."""
        flip = self.options.random_flip and rng.random() < 0.5
        scaled = scaled_size(size, self._sample_shortest(rng), self.options.longest_max_size)
        scale = scaled[1] / self.reference.scaled(size)[1]
        window = self._sample_window(scaled, rng)
        return AugmentationParams(scaled, window, DeferredTransform(flip, self._sample_jitter(rng)), scale)

    def _sample_shortest(self, rng: Random) -> int:
        factors, shortest = self.options.random_scale, self.options.shortest_size
        if factors is None:
            return shortest
        factor = rng.uniform(*factors) if len(factors) == 2 else rng.choice(factors)
        return max(int(shortest * factor), 1)

    def _sample_window(self, scaled: tuple[int, int], rng: Random) -> tuple[int, int, int, int]:
        largest, multiple = self.options.crop_size, self.options.crop_multiple
        if largest is None and multiple == 1:
            return 0, 0, *scaled
        sides = scaled if largest is None else map(min, scaled, largest)
        height, width = (side // multiple * multiple or side for side in sides)
        return rng.randint(0, scaled[0] - height), rng.randint(0, scaled[1] - width), height, width

    def _sample_jitter(self, rng: Random) -> tuple[float, float, float, float] | None:
        limits = self.options.color_jitter
        if limits is None:
            return None
        brightness, contrast, saturation = (rng.uniform(max(0.0, 1 - x), 1 + x) for x in limits[:3])
        return brightness, contrast, saturation, rng.uniform(-limits[3], limits[3])

    def __call__(
        self,
        image: Image.Image,
        mask: np.ndarray,
        cat: Sequence[int],
        iscrowd: Sequence[int],
        rng: Random | None = None,
    ) -> dict[str, Any]:
        """Return network input and targets of an RGB image, of the size of the mask or reduced.

        The mask has `L x H x W` instance ids, 0 void; `cat` and `iscrowd` are class and crowd flag by id. The default
        random source is Python's global one.

        The result is a dict of `img` `3 x H x W` float32, `msk` `L x H x W` int64, `cat` `n` int64, `iscrowd` `n`
        uint8, `bbx` `n x 4` float32 (`(y0, x0, y1, x1)`, row 0 is the box of the void pixels). :meth:`finish` adds
        `maps`, float32 by name, after the flip, if there are any. With `device_transforms` the others are not flipped,
        `img` is uint8, `msk` uint8 or int32, and there is `deferred`.
        """
        source: Any = global_random if rng is None else rng
        params = self.sample_params(mask.shape[-2:], source)
        return self.finish(augment(image, mask, cat, iscrowd, params), params)

    def change_colours(self, augmented: AugmentedImage, seed: str) -> AugmentedImage:
        """Apply the custom augmentations, each with an RNG of its own."""
        for name, change in self.augmentations.items():
            changed = _changed(name, change, augmented.pixels, Random(f"{name}/{seed}"))
            augmented = augmented._replace(pixels=changed)
        return augmented

    def finish(self, augmented: AugmentedImage, params: AugmentationParams) -> dict[str, Any]:
        """Return network input and targets as :meth:`__call__` does."""
        deferred = params.deferred
        mirror = deferred.flip and not self.options.device_transforms
        narrow = torch.from_numpy(augmented.ids[..., ::-1].copy() if mirror else augmented.ids)
        item: dict[str, Any] = {
            "msk": narrow if self.options.device_transforms else narrow.long(),
            "cat": torch.from_numpy(augmented.cat),
            "iscrowd": torch.from_numpy(augmented.iscrowd),
            "bbx": extract_boxes(narrow, len(augmented.cat)),
        }
        if augmented.maps:
            maps = {name: x.mirrored() if deferred.flip else x for name, x in augmented.maps.items()}
            item["maps"] = {name: torch.from_numpy(x.filled()) for name, x in maps.items()}
        pixels = torch.from_numpy(augmented.pixels).permute(2, 0, 1)
        if self.options.device_transforms:
            return {"img": pixels.contiguous(), **item, "deferred": deferred}
        return {"img": finish_image(pixels, deferred, self._normalise), **item}


def compact_ids(
    ids: np.ndarray, cat: Sequence[int] | np.ndarray, iscrowd: Sequence[int] | np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Renumber instance ids, all below `len(cat)`, to close the gaps of ids without pixels; id 0 stays.

    The ids keep their type, `cat` becomes int64, `iscrowd` uint8.
    """
    counts = torch.bincount(torch.from_numpy(np.ascontiguousarray(ids)).flatten(), minlength=len(cat)).numpy()
    present = counts > 0
    present[0] = True
    if not present.all():
        new_id = (np.cumsum(present) - 1).astype(ids.dtype)
        ids = new_id.take(ids)
    return ids, np.asarray(cat, np.int64)[present], np.asarray(iscrowd, np.uint8)[present]


def augment(
    image: Image.Image,
    mask: np.ndarray,
    cat: Sequence[int],
    iscrowd: Sequence[int],
    params: AugmentationParams,
    maps: Mapping[str, MapValues] = MappingProxyType({}),
) -> AugmentedImage:
    """Scale and crop an image, its mask and its maps; see :class:`TrainTransform`."""
    ids = _transform_mask(mask, params, len(cat))
    pixels, targets = np.array(_scale_and_crop(image, params), dtype=np.uint8), compact_ids(ids, cat, iscrowd)
    found = {
        name: scale_and_crop(x, params.size, params.window, params.deferred.flip, params.scale)
        for name, x in maps.items()
    }
    return AugmentedImage(pixels, *targets, found)


def _changed(name: str, change: ChangePixels, pixels: np.ndarray, rng: Random) -> np.ndarray:
    """Change the colours of an image; SeamsegError, naming the augmentation, if that fails or changes more."""
    with named_errors(f"augmentation {name}", getattr(change, "func", change).__module__):
        changed = change(pixels, rng)
        shape, dtype = getattr(changed, "shape", None), getattr(changed, "dtype", None)
        if shape != pixels.shape or dtype != np.uint8:
            raise ValueError(f"must return uint8 of shape {pixels.shape}, returned {dtype} of {shape}")
    return np.ascontiguousarray(changed)


def _scale_and_crop(image: Image.Image, params: AugmentationParams) -> Image.Image:
    (height, width), (y, x, h, w) = params.size, params.window
    if (h, w) == params.size:
        return image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BILINEAR)
    # only the crop is resized; Pillow reads beyond the edges of the box, so there are no seams
    down, right = image.height / height, image.width / width
    box = (x * right, y * down, min((x + w) * right, image.width), min((y + h) * down, image.height))
    return image.resize((w, h), Image.Resampling.BILINEAR, box=box)


def _transform_mask(mask: np.ndarray, params: AugmentationParams, count: int) -> np.ndarray:
    """Scale and crop ids, `L x h x w` in the narrowest type; the sampled flip is not applied."""
    rows, columns = nearest_pixels(mask.shape[-2:], params.size, params.window, params.deferred.flip)
    narrow = mask.astype(np.uint8 if count <= 256 else np.int32, copy=False)
    return narrow.take(rows, axis=-2).take(columns, axis=-1)
