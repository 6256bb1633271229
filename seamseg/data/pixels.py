"""What happens to the pixels of a scaled image: colour jitter, flip, normalisation; in a worker or on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seamseg.structures import DeferredTransform
from seamseg.utils.errors import InputError


class Normalise:
    """Bytes to the values that the network sees: `(x / 255 - mean) / std`.

    Parameters
    ----------
    rgb_mean, rgb_std : of values in 0..1; None to leave one out

    Raises
    ------
    InputError
        if they are not three numbers each, or a deviation is not positive
    """

    def __init__(self, rgb_mean: Sequence[float] | None, rgb_std: Sequence[float] | None) -> None:
        for name, values in (("rgb_mean", rgb_mean), ("rgb_std", rgb_std)):
            if values is not None and len(values) != 3:
                raise InputError(f"{name} must be 3 numbers, got {tuple(values)}")
        if rgb_std is not None and min(rgb_std) <= 0:
            raise InputError(f"rgb_std must be positive, got {tuple(rgb_std)}")
        self._white = torch.tensor(255.0)
        self._mean = None if rgb_mean is None else torch.tensor(list(rgb_mean), dtype=torch.float32)[:, None, None]
        self._std = None if rgb_std is None else torch.tensor(list(rgb_std), dtype=torch.float32)[:, None, None]

    def to(self, device: torch.device) -> Normalise:
        """Its numbers on a device."""
        for name, value in vars(self).items():
            setattr(self, name, None if value is None else value.to(device))
        return self

    def __call__(self, pixels: Tensor) -> Tensor:
        """`3 x H x W` float32, contiguous, from uint8 of any strides on the device of the numbers."""
        # divided by tensors, not by Python's numbers, which CUDA would turn into a product with the inverse
        values = pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(self._white)
        if self._mean is not None:
            values.sub_(self._mean)
        if self._std is not None:
            values.div_(self._std)
        return values


def finish_image(pixels: Tensor, deferred: DeferredTransform, normalise: Normalise) -> Tensor:
    """Colours, then flip, then normalisation.

    Parameters
    ----------
    pixels : `3 x H x W` uint8
    deferred : what was drawn for the image

    Returns
    -------
    `3 x H x W` float32
    """
    if deferred.jitter is not None:
        # of one layout wherever it runs: the mean that contrast pulls towards depends on the order of its sum
        pixels = jitter(pixels.contiguous(), deferred.jitter)
    if deferred.flip:
        pixels = pixels.flip(-1)
    return normalise(pixels)


def jitter(pixels: Tensor, factors: tuple[float, float, float, float]) -> Tensor:
    """Change brightness, contrast and saturation by factors and turn the hue, in this order.

    Parameters
    ----------
    pixels : `3 x H x W` uint8, is not changed
    factors : of brightness, contrast and saturation, 1 for no change; turns of the hue, -0.5 to 0.5
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
    """The boxes of the mirrored image: `n x 4`; rows of -1, ids without a pixel, stay."""
    y0, x0, y1, x1 = boxes.unbind(1)
    flipped = torch.stack((y0, width - x1, y1, width - x0), 1)
    return torch.where(boxes[:, :1] < 0, boxes, flipped)
