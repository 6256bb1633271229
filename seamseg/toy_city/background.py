"""What lies under and behind everything: the ground with its markings, and the skyline at the horizon."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seamseg.toy_city import labels
from seamseg.toy_city.camera import Camera
from seamseg.toy_city.canvas import Stage
from seamseg.toy_city.lighting import Light
from seamseg.toy_city.nature import foliage
from seamseg.toy_city.textures import Rng, facade_color, foliage_color, hsv, noise_tile, vary


@dataclass(frozen=True)
class Street:
    """The ground plan: a straight street along Z with a pavement on either side."""

    half_road: float
    """metres from the middle of the road to the kerb"""
    edge: float
    """metres from the middle of the road to the house fronts"""

    @property
    def pavement(self) -> float:
        """width of one pavement"""
        return self.edge - self.half_road

    @property
    def lanes(self) -> tuple[float, float]:
        """X of the middle of the lanes (traffic keeps right)"""
        return self.half_road * 0.5, -self.half_road * 0.5


def random_street(rng: Rng) -> Street:
    """Draw the widths of road and pavements."""
    half_road = rng.uniform(3.0, 4.4)
    return Street(half_road=half_road, edge=half_road + rng.uniform(4.4, 6.2))


def paint_ground(
    photo: np.ndarray, ids: np.ndarray, camera: Camera, light: Light, street: Street, shadow: np.ndarray, rng: Rng
) -> None:
    """Paint road and pavements below the horizon, in place.

    Parameters
    ----------
    photo : float32 `H x W x 3`
    ids : uint8 `H x W` keys; here 1 becomes road and 2 pavement
    shadow : uint8 `H x W`, 255 where a cast shadow is
    """
    first, x, z, depth = camera.ground()
    side = np.abs(x)
    road = side < street.half_road
    near = np.exp(-depth / np.float32(14.0))

    tile = noise_tile(rng)
    mask = tile.shape[0] - 1
    grain = tile[(z * 24).astype(np.int32) & mask, (x * 24).astype(np.int32) & mask]

    asphalt = hsv(rng.random(), rng.uniform(0, 0.12), rng.uniform(0.25, 0.55))
    kind = rng.random()
    if kind < 0.4:
        paving = hsv(rng.uniform(0.03, 0.15), rng.uniform(0.08, 0.4), rng.uniform(0.5, 0.85))
    else:
        paving = hsv(rng.random(), rng.uniform(0, 0.12), rng.uniform(0.5, 0.85))

    bright = 1 + grain * near * np.float32(rng.uniform(0.06, 0.13))
    ground = np.where(road[..., None], asphalt.astype(np.float32), paving.astype(np.float32))

    joint = rng.uniform(0.5, 1.1)
    lines = ((z % joint) < 0.07) | ((side % (joint * rng.choice([1.0, 1.5, 2.0]))) < 0.06)
    bright -= np.where(lines & ~road, near * np.float32(0.34), 0)
    if rng.random() < 0.25:  # cobbles
        cobble = ((z % 0.22) < 0.05) | (((x + 0.11 * (np.floor(z / 0.22) % 2)) % 0.3) < 0.05)
        bright -= np.where(cobble & road, near * near * np.float32(0.3), 0)
    bright -= np.where(np.abs(side - street.half_road + 0.15) < 0.15, np.float32(0.22), 0)
    ground *= bright[..., None]

    kerb = (side > street.half_road) & (side < street.half_road + 0.22)
    ground[kerb] = ground[kerb] * 0.3 + np.float32(rng.uniform(110, 190))
    ground[_marks(x, z, side, street, rng) & road] = np.array([1, 1, rng.uniform(0.75, 1)], np.float32) * 215

    direct = max(0.0, float(light.sun[1]))
    lit = (light.ambient + light.sun_color * direct * 0.9).astype(np.float32)
    shade = 1 - shadow[first:].astype(np.float32) * np.float32(light.shadow / 255)
    ground *= lit * shade[..., None]
    fog = (1 - np.exp(-depth / np.float32(light.haze_distance)))[..., None]
    ground += (light.haze.astype(np.float32) - ground) * fog
    photo[first:] = ground
    ids[first:] = np.where(road, 1, 2)


def _marks(x: np.ndarray, z: np.ndarray, side: np.ndarray, street: Street, rng: Rng) -> np.ndarray:
    """Where the road is painted: a broken or full middle line, edge lines, a zebra crossing."""
    marks = np.zeros(x.shape, bool)
    style = rng.random()
    phase = rng.uniform(0, 6)
    if style < 0.5:
        marks |= (side < 0.09) & ((z + phase) % 5 < 2.6)
    elif style < 0.75:
        marks |= (side > 0.08) & (side < 0.22)
    if rng.random() < 0.4:
        marks |= np.abs(side - street.half_road + 0.5) < 0.07
    if rng.random() < 0.45:
        at = rng.uniform(4, 14) * rng.choice([-1, 1])
        marks |= (np.abs(z - at) < 1.4) & ((x + 20) % 1.0 < 0.5)
    return marks


def paint_skyline(stage: Stage) -> None:
    """Hazy silhouettes at the end of the view: a row of distant houses, or wooded hills."""
    rng, camera, canvas, light = stage.rng, stage.camera, stage.canvas, stage.light
    depth = rng.uniform(38, 55)
    scale = camera.scale(depth)
    base = camera.horizon + scale * camera.eye + 1
    tree, house = canvas.key(labels.VEGETATION), canvas.key(labels.BUILDING)

    if rng.random() < 0.6:
        x = -rng.uniform(0, 6) * scale
        while x < camera.width:
            width, height = rng.uniform(5, 11) * scale, rng.uniform(6, 13) * scale
            shown = light.shade(vary(rng, facade_color(rng), 0.2), None, depth)
            top = base - height
            canvas.polygon(_box(x, top, x + width, base), shown, house)
            dark = light.shade((60, 66, 80), None, depth)
            for row in np.arange(top + scale, base - scale, 2.6 * scale):
                for column in np.arange(x + scale, x + width - scale, 2.2 * scale):
                    canvas.polygon(_box(column, row, column + scale, row + 1.4 * scale), dark, None)
            x += width
        return
    xs = np.linspace(0, camera.width, 24)
    waves = np.zeros(len(xs))
    for f in (1.3, 2.7, 5.1):
        waves += np.sin(xs / camera.width * math.tau * f + rng.uniform(0, 6)) / f
    tops = camera.horizon - scale * (5.0 + 1.6 * waves)
    outline = [(0, base), *zip(xs.tolist(), tops.tolist()), (camera.width, base)]
    canvas.polygon(outline, light.shade(foliage_color(rng), None, depth), tree)
    for x in np.arange(0, camera.width, 5.0 * scale):
        r = rng.uniform(2.2, 4.5) * scale
        foliage(stage, x, base - r, r * 1.2, r, depth, foliage_color(rng), tree, blobs=14)


def _box(x0: float, y0: float, x1: float, y1: float) -> list[tuple[float, float]]:
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]
