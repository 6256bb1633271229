"""Transforms of training, validation and test images (`N x 3 x H x W` inputs of a classifier).

Training images get a random resized crop, a flip, and optionally the colour changes of the original: saturation,
brightness and contrast in random order (:func:`color_jitter`), and a shift along the principal components of the
colours of ImageNet (:func:`lighting`; Krizhevsky et al. 2012). Random numbers come from `random` and torch's global
generator.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from seamseg.contrib.classification.config import InputConfig
from seamseg.data.input_size import InputSize, resize_shortest
from seamseg.data.transforms import pil_to_tensor
from seamseg.utils.errors import InputError

TEN_CROPS = 10
"""Four corners and centre, of the image and of its mirror image."""

_GRAY = (0.299, 0.587, 0.114)
_LARGEST_CHANGE, _DEVIATION = 0.4, 0.1
_EIGENVALUES = (0.2175, 0.0188, 0.0045)
_EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
_COMPONENTS = torch.tensor(_EIGENVECTORS) * torch.tensor(_EIGENVALUES)


def color_jitter(image: Tensor) -> Tensor:
    """Change saturation, brightness and contrast of an image, `3 x H x W` float32, in random order.

    Each blends the image with another one by a factor drawn from 0.6 to 1.4: its gray image, black, or the mean of the
    gray image. The result is not clipped.
    """
    others: list[Callable[[Tensor], Tensor]] = [_gray, torch.zeros_like, _mean_gray]
    for other in random.sample(others, 3):
        factor = 1 + torch.empty(1).uniform_(-_LARGEST_CHANGE, _LARGEST_CHANGE)
        image = torch.lerp(other(image), image, factor)
    return image


def lighting(image: Tensor) -> Tensor:
    """Add a multiple of each principal component of the colours of ImageNet, drawn from a normal distribution."""
    factors = torch.empty(3).normal_(0, _DEVIATION)
    return image + (_COMPONENTS * factors).sum(1)[:, None, None]


def to_float(image: Image.Image) -> Tensor:
    """Convert an RGB image to `3 x H x W` float32, values 0 to 1."""
    # torchvision multiplies by 1 / 255, which differs in the last bit
    return pil_to_tensor(image).to(torch.float32, memory_format=torch.contiguous_format).div_(255)


def train_transform(options: InputConfig, min_crop_area: float = 0.08) -> v2.Compose:
    """Return the transform of training images: an RGB image to `3 x crop_train x crop_train` float32.

    The area of the random crop is at least the fraction `min_crop_area` of the image.
    """
    steps: list[Callable[..., Any]] = []
    if options.scale_train > 0:
        steps.append(v2.Resize(options.scale_train))
    steps += [v2.RandomResizedCrop(options.crop_train, (min_crop_area, 1.0)), v2.RandomHorizontalFlip(), to_float]
    if options.color_jitter_train:
        steps.append(color_jitter)
    if options.lighting_train:
        steps.append(lighting)
    return v2.Compose([*steps, _normalise(options)])


def test_transform(options: InputConfig, ten_crops: bool = False) -> v2.Compose:
    """Return the transform of validation images: an RGB image to `3 x crop x crop` float32.

    With `ten_crops` to `10 x 3 x crop x crop`: the corners and the centre, of the image and of its mirror image.
    InputError if the crop is larger than the resized image.
    """
    scale, crop = options.scale_val, options.crop_val
    if 0 < scale < crop:
        raise InputError(
            f"input.crop_val = {crop}: does not fit into images whose shorter side is {scale}; raise input.scale_val"
        )
    if not ten_crops:
        # exported classifiers prepare images in the same way, without torchvision
        size = InputSize(scale if scale > 0 else None, crop=(crop, crop))
        return v2.Compose([size.scale, to_float, _normalise(options)])
    steps: list[Callable[..., Any]] = [partial(resize_shortest, shortest=scale)] if scale > 0 else []
    return v2.Compose([*steps, v2.TenCrop(crop), partial(_stacked, _normalise(options))])


def _normalise(options: InputConfig) -> v2.Normalize:
    return v2.Normalize(list(options.mean), list(options.std))


def _stacked(normalise: v2.Normalize, images: Sequence[Image.Image]) -> Tensor:
    return torch.stack([normalise(to_float(image)) for image in images])


def _gray(image: Tensor) -> Tensor:
    red, green, blue = (weight * channel for weight, channel in zip(_GRAY, image))
    gray: Tensor = (red + green + blue).expand_as(image)
    return gray


def _mean_gray(image: Tensor) -> Tensor:
    return _gray(image).mean().expand_as(image)
