"""From a decoded image and its mask to tensors: scale, crop, colour jitter, flip, normalise.

See docs/contract.md, section 4 "Test input". Colour jitter, flip and normalisation of training images may be deferred
to the device (:func:`finish_image`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seamseg.config.sections import Dataloader
from seamseg.data.input_size import InputSize, reference_size
from seamseg.data.maps import MapValues, nearest_pixels, scale_and_crop
from seamseg.maps.folder import ReadMap
from seamseg.maps.formats.metadata import ImageInfo
from seamseg.ops.labels import extract_boxes
from seamseg.structures import DeferredTransform, Normalise
from seamseg.utils.errors import named_errors

ChangePixels = Callable[[np.ndarray, Random], np.ndarray]
"""Returns other pixels, uint8 `H x W x 3`, of the same size, with random numbers of the given RNG."""


def finish_image(pixels: Tensor, deferred: DeferredTransform, normalise: Normalise) -> Tensor:
    """Apply colour jitter, then flip, then normalisation to `3 x H x W` uint8, which is not changed; return float32.

    Jitter changes brightness, contrast and saturation by factors and shifts the hue, in turns of -0.5 to 0.5.
    """
    if deferred.jitter is not None:
        from torchvision.transforms.v2 import functional  # takes a second to import

        brightness, contrast, saturation, hue = deferred.jitter
        # the same memory layout on every device: the mean used by contrast depends on the order of its sum
        pixels = pixels.contiguous()
        if brightness != 1:
            pixels = functional.adjust_brightness_image(pixels, brightness)
        if contrast != 1:
            pixels = functional.adjust_contrast_image(pixels, contrast)
        if saturation != 1:
            pixels = functional.adjust_saturation_image(pixels, saturation)
        if hue != 0:
            pixels = functional.adjust_hue_image(pixels, hue)
    if deferred.flip:
        pixels = pixels.flip(-1)
    return normalise(pixels)


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


class TrainTransform:
    """Converts an image and its mask to network input and targets, with the random augmentation of `[dataloader]`.

    For the sizes see :meth:`InputSize.scaled`; the limit applies after random scaling. The flip has probability 0.5.
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
        options, shortest = self.options, self.options.shortest_size
        flip = options.random_flip and rng.random() < 0.5
        if (factors := options.random_scale) is not None:
            factor = rng.uniform(*factors) if len(factors) == 2 else rng.choice(factors)
            shortest = max(int(shortest * factor), 1)
        scaled = InputSize(shortest, options.longest_max_size).scaled(size)
        y = x = 0
        height, width = scaled
        largest, multiple = options.crop_size, options.crop_multiple
        if largest is not None or multiple != 1:
            sides = scaled if largest is None else map(min, scaled, largest)
            height, width = (side // multiple * multiple or side for side in sides)
            y, x = rng.randint(0, scaled[0] - height), rng.randint(0, scaled[1] - width)
        jitter = None
        if (limits := options.color_jitter) is not None:
            brightness, contrast, saturation = (rng.uniform(max(0.0, 1 - limit), 1 + limit) for limit in limits[:3])
            jitter = brightness, contrast, saturation, rng.uniform(-limits[3], limits[3])
        scale = scaled[1] / self.reference.scaled(size)[1]
        return AugmentationParams(scaled, (y, x, height, width), DeferredTransform(flip, jitter), scale)

    def __call__(
        self,
        image: Image.Image,
        mask: np.ndarray,
        info: ImageInfo,
        params: AugmentationParams,
        maps: Mapping[str, MapValues] = MappingProxyType({}),
        seed: str = "",
    ) -> dict[str, Any]:
        """Return network input and targets of an RGB image, of the size of the mask or reduced.

        The mask has `L x H x W` instance ids, 0 void, whose class and crowd flag `info` has. `seed` is that of the
        custom augmentations.

        The result is a dict of `img` `3 x H x W` float32, `msk` `L x H x W` int64, `cat` `n` int64, `iscrowd` `n`
        uint8, `bbx` `n x 4` float32 (`(y0, x0, y1, x1)`, row 0 is the box of the void pixels), and `maps`, float32 by
        name, if there are any. With `device_transforms` all but the maps are not flipped, `img` is uint8, `msk` uint8
        or int32, and there is `deferred`.
        """
        size, window, deferred, deferring = params.size, params.window, params.deferred, self.options.device_transforms
        rows, columns = nearest_pixels(mask.shape[-2:], size, window, deferred.flip)
        narrow = mask.astype(np.uint8 if len(info.cat) <= 256 else np.int32, copy=False)
        ids, cat, iscrowd = compact_ids(narrow.take(rows, axis=-2).take(columns, axis=-1), info.cat, info.iscrowd)
        masks = torch.from_numpy(ids[..., ::-1].copy() if deferred.flip and not deferring else ids)
        colours = np.array(_scale_and_crop(image, params), dtype=np.uint8)
        for name, change in self.augmentations.items():
            with named_errors(f"augmentation {name}", getattr(change, "func", change).__module__):
                changed = change(colours, Random(f"{name}/{seed}"))
                shape, dtype = getattr(changed, "shape", None), getattr(changed, "dtype", None)
                if shape != colours.shape or dtype != np.uint8:
                    raise ValueError(f"must return uint8 of shape {colours.shape}, returned {dtype} of {shape}")
            colours = np.ascontiguousarray(changed)
        pixels = torch.from_numpy(colours).permute(2, 0, 1)
        item: dict[str, Any] = {
            "img": pixels.contiguous() if deferring else finish_image(pixels, deferred, self._normalise),
            "msk": masks if deferring else masks.long(),
            "cat": torch.from_numpy(cat),
            "iscrowd": torch.from_numpy(iscrowd),
            "bbx": extract_boxes(masks, len(cat)),
        }
        if maps:
            cropped = {k: scale_and_crop(x, size, window, deferred.flip, params.scale) for k, x in maps.items()}
            flipped = {name: x.mirrored() if deferred.flip else x for name, x in cropped.items()}
            item["maps"] = {name: torch.from_numpy(x.filled()) for name, x in flipped.items()}
        return {**item, "deferred": deferred} if deferring else item


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


def _scale_and_crop(image: Image.Image, params: AugmentationParams) -> Image.Image:
    (height, width), (y, x, h, w) = params.size, params.window
    if (h, w) == params.size:
        return image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BILINEAR)
    # only the crop is resized; Pillow reads beyond the edges of the box, so there are no seams
    down, right = image.height / height, image.width / width
    box = (x * right, y * down, min((x + w) * right, image.width), min((y + h) * down, image.height))
    return image.resize((w, h), Image.Resampling.BILINEAR, box=box)
