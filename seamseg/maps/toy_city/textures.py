"""The RNG of a scene, noise, and colours that do not reveal the class."""

from __future__ import annotations

import colorsys

import numpy as np
from PIL import Image

Rng = np.random.Generator


def scene_rng(seed: int, split: str, index: int) -> Rng:
    """Return the RNG of one scene, which depends on the three arguments alone."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *split.encode(), index])))


def smooth_noise(rng: Rng, height: int, width: int, cells: float, stretch: float = 1.0) -> np.ndarray:
    """Return value noise of three octaves, float32 `height x width` in 0-1.

    The first octave has `cells` along the shorter side, horizontally stretched; each octave halves them and its weight.
    """
    side = min(height, width)
    total = np.zeros((height, width), np.float32)
    weight = 1.0
    weights = 0.0
    for octave in range(3):
        step = side / (cells * 2**octave)
        rows, columns = max(2, round(height / step) + 1), max(2, round(width / step / stretch) + 1)
        grid = Image.fromarray(rng.random((rows, columns), dtype=np.float32))
        total += np.asarray(grid.resize((width, height), Image.Resampling.BICUBIC)) * np.float32(weight)
        weights += weight
        weight *= 0.5
    return np.clip(total / np.float32(weights), 0, 1)


def noise_tile(rng: Rng) -> np.ndarray:
    """Return a tile of 256 x 256 fine and coarse noise, float32 around 0 with a spread near 1."""
    fine = rng.standard_normal((256, 256), dtype=np.float32)
    coarse = smooth_noise(rng, 256, 256, cells=10) - 0.5
    return fine * 0.7 + coarse * 3.0


def hsv(hue: float, saturation: float, value: float) -> np.ndarray:
    """Convert hue, saturation, value in 0-1 to RGB in 0-255."""
    return np.array(colorsys.hsv_to_rgb(hue % 1.0, min(max(saturation, 0), 1), min(max(value, 0), 1))) * 255


def any_color(rng: Rng, low: float = 0.15, high: float = 0.95, vivid: float = 0.8) -> np.ndarray:
    """Sample any hue, saturation up to `vivid`, value in `low`-`high`."""
    return hsv(rng.random(), vivid * rng.random(), rng.uniform(low, high))


def paint_color(rng: Rng) -> np.ndarray:
    """Sample the paint of a vehicle: colours of the road, of trees, of facades, and any other."""
    kind = rng.random()
    if kind < 0.35:
        return hsv(rng.random(), 0.08 * rng.random(), rng.uniform(0.15, 0.95))
    if kind < 0.50:
        return hsv(rng.uniform(0.2, 0.42), rng.uniform(0.3, 0.8), rng.uniform(0.2, 0.7))
    if kind < 0.62:
        return hsv(rng.uniform(0.52, 0.65), rng.uniform(0.2, 0.7), rng.uniform(0.4, 0.95))
    if kind < 0.75:
        return hsv(rng.uniform(0.0, 0.13), rng.uniform(0.2, 0.6), rng.uniform(0.4, 0.9))
    return any_color(rng)


def foliage_color(rng: Rng) -> np.ndarray:
    """Sample a leaf colour: mostly green, also autumn, copper beech and blossom."""
    kind = rng.random()
    if kind < 0.76:
        return hsv(rng.uniform(0.18, 0.40), rng.uniform(0.25, 0.75), rng.uniform(0.28, 0.62))
    if kind < 0.9:
        return hsv(rng.uniform(0.02, 0.14), rng.uniform(0.4, 0.85), rng.uniform(0.4, 0.75))
    if kind < 0.95:
        return hsv(rng.uniform(0.9, 1.0), rng.uniform(0.2, 0.5), rng.uniform(0.3, 0.6))
    return hsv(rng.uniform(0.9, 1.0), rng.uniform(0.12, 0.3), rng.uniform(0.75, 0.92))


def facade_color(rng: Rng) -> np.ndarray:
    """Sample a wall colour: pale plaster, brick, concrete, or paint of any hue."""
    kind = rng.random()
    if kind < 0.35:
        return hsv(rng.uniform(0.05, 0.16), rng.uniform(0.05, 0.35), rng.uniform(0.6, 0.95))
    if kind < 0.55:
        return hsv(rng.uniform(0.0, 0.06), rng.uniform(0.3, 0.65), rng.uniform(0.35, 0.7))
    if kind < 0.75:
        return hsv(rng.random(), rng.uniform(0.0, 0.1), rng.uniform(0.3, 0.9))
    return hsv(rng.random(), rng.uniform(0.15, 0.55), rng.uniform(0.4, 0.9))


def vary(rng: Rng, color: np.ndarray, amount: float) -> np.ndarray:
    """Vary the brightness of a colour by up to `amount` (a fraction)."""
    return np.clip(color * (1 + rng.uniform(-amount, amount)), 0, 255)
