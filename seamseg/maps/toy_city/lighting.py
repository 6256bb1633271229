"""Light of a scene (daylight, dusk, night, fog), the sky, and the effects of lens and sensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image, ImageFilter

from seamseg.maps.toy_city.textures import Rng, smooth_noise

Color = tuple[int, int, int]


@dataclass(frozen=True)
class Light:
    """The light of a scene. Colours are factors around 1 (sun, ambient) or 0-255 (haze, sky)."""

    kind: str
    sun: np.ndarray
    """Unit vector towards the sun, world axes."""
    sun_color: np.ndarray
    ambient: np.ndarray
    haze: np.ndarray
    haze_distance: float
    sky_top: np.ndarray
    sky_low: np.ndarray
    shadow: float
    """Darkness of cast shadows, 0-1."""

    @property
    def night(self) -> bool:
        """Whether windows and lamps are lit."""
        return self.kind in ("night", "dusk")

    def shade(self, color, normal: np.ndarray | None = None, depth: float = 0.0) -> Color:
        """Return the colour (0-255) of a lit surface of a base colour at a depth."""
        facing = 0.45 if normal is None else max(0.0, float(normal @ self.sun))
        fog = 1.0 - math.exp(-depth / self.haze_distance)
        shown = []
        # without numpy, which takes ten times as long for three numbers; a scene has thousands of faces
        for value, (ambient, sun, haze) in zip(np.asarray(color, float).tolist(), self._channels):
            lit = value * (ambient + sun * facing)
            shown.append(int(min(max(lit + (haze - lit) * fog, 0.0), 255.0)))
        r, g, b = shown
        return r, g, b

    @cached_property
    def _channels(self) -> list[tuple[float, float, float]]:
        return list(zip(self.ambient.tolist(), self.sun_color.tolist(), self.haze.tolist()))


# kind: probability, sun colour, ambient, haze, haze distance, sky top, sky low, shadow
_KINDS = {
    "clear": (0.5, (0.75, 0.7, 0.62), (0.5, 0.54, 0.62), (190, 205, 222), 130.0, (70, 130, 205), (190, 215, 235), 0.5),
    "overcast": (0.28, (0.12,) * 3, (0.78, 0.8, 0.84), (196, 200, 205), 90.0, (150, 158, 168), (205, 208, 212), 0.2),
    "dusk": (0.10, (0.75, 0.42, 0.22), (0.42, 0.38, 0.48), (205, 150, 125), 90.0, (75, 80, 135), (240, 165, 105), 0.4),
    "night": (0.06, (0.08, 0.09, 0.14), (0.27, 0.29, 0.40), (30, 34, 56), 70.0, (10, 13, 32), (48, 46, 72), 0.25),
    "fog": (0.06, (0.08,) * 3, (0.82, 0.83, 0.84), (205, 207, 210), 24.0, (196, 199, 203), (212, 213, 214), 0.15),
}


def random_light(rng: Rng) -> Light:
    """Sample a time of day, a sun direction and a white balance."""
    names = list(_KINDS)
    kind = names[int(rng.choice(len(names), p=[_KINDS[n][0] for n in names]))]
    _, sun_color, ambient, haze, distance, top, low, shadow = _KINDS[kind]
    elevation = rng.uniform(0.12, 0.3) if kind == "dusk" else rng.uniform(0.5, 1.2)
    azimuth = rng.uniform(0, 2 * math.pi)
    sun = np.array(
        [math.cos(elevation) * math.sin(azimuth), math.sin(elevation), math.cos(elevation) * math.cos(azimuth)]
    )
    tint = rng.uniform(0.93, 1.07, 3)
    sky_tint = rng.uniform(0.92, 1.08, 3)
    if rng.random() < 0.07:  # an unusual sky: lilac, greenish, sepia
        sky_tint = rng.uniform(0.68, 1.15, 3)
    return Light(
        kind=kind,
        sun=sun,
        sun_color=np.array(sun_color) * rng.uniform(0.8, 1.1) * tint,
        ambient=np.array(ambient) * rng.uniform(0.88, 1.08) * tint,
        haze=np.array(haze) * sky_tint,
        haze_distance=distance * rng.uniform(0.8, 1.3),
        sky_top=np.array(top) * sky_tint,
        sky_low=np.array(low) * sky_tint,
        shadow=shadow,
    )


def add_glow(image: np.ndarray, glows: list[tuple[float, float, float, Color]]) -> None:
    """Add soft lights `(x, y, radius, colour)` to a float `H x W x 3` image in place."""
    height, width = image.shape[:2]
    for x, y, radius, color in glows:
        y0, y1 = max(0, int(y - radius)), min(height, int(y + radius) + 1)
        x0, x1 = max(0, int(x - radius)), min(width, int(x + radius) + 1)
        if y0 >= y1 or x0 >= x1:
            continue
        yy, xx = np.ogrid[y0:y1, x0:x1]
        fall = np.clip(1 - np.sqrt((yy - y) ** 2 + (xx - x) ** 2) / radius, 0, 1).astype(np.float32) ** 2
        image[y0:y1, x0:x1] += fall[..., None] * np.asarray(color, np.float32)


def develop(image: np.ndarray, light: Light, rng: Rng) -> np.ndarray:
    """Apply the effects of lens and sensor: vignette, exposure, contrast, white balance, blur, noise.

    `image`, float32 `H x W x 3`, 0-255, is changed in place; returns uint8 `H x W x 3`.
    """
    height, width = image.shape[:2]
    yy = np.linspace(-1, 1, height, dtype=np.float32)[:, None]
    xx = np.linspace(-1, 1, width, dtype=np.float32)[None]
    vignette = 1 - np.float32(rng.uniform(0, 0.16)) * (yy * yy + xx * xx)
    for channel in range(3):
        image[..., channel] *= vignette
    exposed = rng.uniform(66, 92) if light.kind == "night" else rng.uniform(105, 148)
    image *= (exposed / max(float(image.mean()), 1.0) * rng.uniform(0.95, 1.05, 3)).astype(np.float32)
    contrast = rng.uniform(0.9, 1.25)
    middle = np.float32(image.mean())
    image -= middle
    image *= np.float32(contrast)
    image += middle
    radius = max(0.0, rng.uniform(-0.6, 0.7))
    if radius > 0.1:
        soft = Image.fromarray(np.clip(image, 0, 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(radius))
        image = np.asarray(soft).astype(np.float32)
    sigma = rng.uniform(2, 4) if light.kind == "night" else rng.uniform(0.5, 3)
    image += rng.standard_normal((height, width, 1), dtype=np.float32) * np.float32(sigma * 0.8)
    image += rng.standard_normal(image.shape, dtype=np.float32) * np.float32(sigma * 0.6)
    return np.clip(image + 0.5, 0, 255).astype(np.uint8)


def sky(light: Light, height: int, width: int, horizon: float, rng: Rng) -> np.ndarray:
    """Return a float32 `height x width x 3` image of the sky down to the horizon, with clouds, sun, moon or stars."""
    down = np.clip(np.arange(height, dtype=np.float32) / max(horizon, 1.0), 0, 1)[:, None] ** np.float32(1.3)
    column = light.sky_top.astype(np.float32) * (1 - down) + light.sky_low.astype(np.float32) * down
    cover = {"clear": rng.uniform(0.0, 0.8), "overcast": 0.7, "dusk": rng.uniform(0.2, 0.9), "night": 0.3, "fog": 0.1}
    clouds = smooth_noise(rng, height, width, cells=rng.uniform(2.5, 6), stretch=2.5)
    amount = np.clip((clouds - 0.5 + 0.25 * cover[light.kind]) * 2.6, 0, 1) * np.float32(cover[light.kind])
    white = np.float32(0.25 if light.kind == "night" else 0.9) * (light.haze + 40).astype(np.float32)
    amount *= 1 - 0.5 * down
    image = np.empty((height, width, 3), np.float32)
    for channel, (bright, color) in enumerate(zip(np.minimum(white, 250), column.T[..., None])):
        image[..., channel] = color + (bright - color) * amount
    if light.kind == "night":
        n = int(rng.integers(20, 80))
        ys, xs = rng.integers(0, max(1, int(horizon * 0.8)), n), rng.integers(0, width, n)
        image[ys, xs] += rng.uniform(60, 170, (n, 1)).astype(np.float32)
    if light.kind in ("clear", "night") and rng.random() < 0.35:
        disc = (255, 244, 214) if light.kind == "clear" else (225, 228, 235)
        radius = width * rng.uniform(0.015, 0.03)
        x, y = rng.uniform(0, width), rng.uniform(0.05, 0.6) * horizon
        add_glow(image, [(x, y, radius * 4, (60, 56, 46)), (x, y, radius * 1.6, disc)])
    return image
