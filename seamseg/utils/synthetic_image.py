"""An image without content, always the same, to measure and compare networks on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def synthetic_image(size: tuple[int, int]) -> np.ndarray:
    """Return an RGB image, uint8 `H x W x 3`, of smooth colours and some texture; `size` is `(height, width)`."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (16, 24, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((size[1], size[0]), Image.Resampling.BICUBIC)).astype(np.int16)
    smooth = smooth + rng.integers(-12, 13, (*size, 1), dtype=np.int16)
    return smooth.clip(0, 255).astype(np.uint8)


def write_synthetic_image(path: Path, size: tuple[int, int]) -> None:
    """Write :func:`synthetic_image` as a JPEG file."""
    Image.fromarray(synthetic_image(size)).save(path, quality=92)
