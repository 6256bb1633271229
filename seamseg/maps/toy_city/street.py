"""The street: ground plan, road and pavements with markings, the skyline, and the houses along it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from seamseg.maps.toy_city import labels
from seamseg.maps.toy_city.canvas import Camera, Stage
from seamseg.maps.toy_city.furniture import foliage
from seamseg.maps.toy_city.lighting import Light
from seamseg.maps.toy_city.textures import Rng, any_color, facade_color, foliage_color, hsv, noise_tile, vary


@dataclass(frozen=True)
class Street:
    """The ground plan: a straight street along Z with a pavement on either side."""

    half_road: float
    """Metres from the middle of the road to the kerb."""
    edge: float
    """Metres from the middle of the road to the house fronts."""

    @property
    def lanes(self) -> tuple[float, float]:
        """X of the middle of the lanes (traffic keeps right)."""
        return self.half_road * 0.5, -self.half_road * 0.5


def random_street(rng: Rng) -> Street:
    """Draw the widths of road and pavements."""
    half_road = rng.uniform(3.0, 4.4)
    return Street(half_road=half_road, edge=half_road + rng.uniform(4.4, 6.2))


def paint_ground(
    image: np.ndarray, ids: np.ndarray, camera: Camera, light: Light, street: Street, shadow: np.ndarray, rng: Rng
) -> None:
    """Paint road and pavements below the horizon of `image`, float32 `H x W x 3`, and their keys 1 and 2, in place.

    `ids` are `H x W` uint8, and so is `shadow`, 255 in cast shadows.
    """
    first, x, z, depth = camera.ground()
    side = np.abs(x)
    road = side < street.half_road
    near = np.exp(-depth / np.float32(14.0))
    fog = 1 - np.exp(-depth / np.float32(light.haze_distance))

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

    joint = rng.uniform(0.5, 1.1)
    lines = ((z % joint) < 0.07) | ((side % (joint * rng.choice([1.0, 1.5, 2.0]))) < 0.06)
    bright -= np.where(lines & ~road, near * np.float32(0.34), 0)
    if rng.random() < 0.25:  # cobbles
        cobble = ((z % 0.22) < 0.05) | (((x + 0.11 * (np.floor(z / 0.22) % 2)) % 0.3) < 0.05)
        bright -= np.where(cobble & road, near * near * np.float32(0.3), 0)
    bright -= np.where(np.abs(side - street.half_road + 0.15) < 0.15, np.float32(0.22), 0)

    kerb = (side > street.half_road) & (side < street.half_road + 0.22)
    stone = np.float32(rng.uniform(110, 190))
    white = np.array([1, 1, rng.uniform(0.75, 1)], np.float32) * 215
    marks = _marks(x, z, side, street, rng) & road

    direct = max(0.0, float(light.sun[1]))
    lit = (light.ambient + light.sun_color * direct * 0.9).astype(np.float32)
    shade = 1 - shadow[first:].astype(np.float32) * np.float32(light.shadow / 255)
    # channel by channel: numpy is slow where the last axis has three values
    for channel, haze in enumerate(light.haze.astype(np.float32)):
        ground = np.where(road, np.float32(asphalt[channel]), np.float32(paving[channel]))
        ground *= bright
        ground[kerb] = ground[kerb] * 0.3 + stone
        ground[marks] = white[channel]
        ground *= lit[channel] * shade
        ground += (haze - ground) * fog
        image[first:, :, channel] = ground
    ids[first:] = np.where(road, 1, 2)


def _marks(x: np.ndarray, z: np.ndarray, side: np.ndarray, street: Street, rng: Rng) -> np.ndarray:
    """Return the mask of road markings: a dashed or solid centre line, edge lines, a zebra crossing."""
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
    """Paint hazy silhouettes at the horizon: a row of distant houses, or wooded hills."""
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
        foliage(stage, (x, base - r), (r * 1.2, r), depth, foliage_color(rng), tree, blobs=14)


def _box(x0: float, y0: float, x1: float, y1: float) -> list[tuple[float, float]]:
    return [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]


LIT = np.array([(255, 214, 140), (255, 232, 180), (235, 190, 120)], float)


def house(stage: Stage, side: int, edge: float, z0: float, z1: float, height: float, key: int) -> None:
    """Paint a house from `z0` to `z1`, its front `edge` metres from the middle of the street on `side` (-1 or 1)."""
    rng = stage.rng
    wall = facade_color(rng)
    x = side * edge
    back = side * (edge + 9.0)
    front = np.array([-side, 0.0, 0.0])

    def wall_quad(xa: float, za: float, xb: float, zb: float, low: float, high: float) -> np.ndarray:
        return np.array([(xa, low, za), (xb, low, zb), (xb, high, zb), (xa, high, za)], float)

    gable = rng.random() < 0.45
    rise = rng.uniform(1.5, 3.0) if gable else 0.0
    middle = side * (edge + 4.5)
    roof = hsv(rng.uniform(0, 0.1), rng.uniform(0, 0.6), rng.uniform(0.2, 0.6))
    for z, direction in ((z0, -1.0), (z1, 1.0)):
        normal = np.array([0.0, 0.0, direction])
        if not stage.faces_camera(np.array([x, 0, z]), normal):
            continue
        end = wall_quad(x, z, back, z, 0, height)
        if gable:
            end = np.insert(end, 3, (middle, height + rise, z), axis=0)
        stage.face(end, wall * 0.92, normal, key)
        spots = _grid(2, max(1, int(height / 3.2)), 9.0, height, 1.1, 1.5)
        points = np.stack([x + side * spots[..., 0], spots[..., 1], np.full(spots.shape[:2], z)], -1)
        stage.quads(points, _glass(stage, len(points)), normal)
    if not stage.faces_camera(np.array([x, 0, z0]), front):
        return
    if gable:
        slope = np.array([(x, height, z0), (x, height, z1), (middle, height + rise, z1), (middle, height + rise, z0)])
        stage.face(slope, roof, np.array([-side * 0.5, 0.85, 0.0]), key)
    stage.face(wall_quad(x, z0, x, z1, 0, height), wall, front, key)
    _front(stage, side, edge, z0, z1, height, wall, front)
    if not gable:
        stage.face(
            wall_quad(x - side * 0.2, z0, x - side * 0.2, z1, height - 0.3, height + 0.25), wall * 0.7, front, key
        )


def _front(
    stage: Stage, side: int, edge: float, z0: float, z1: float, height: float, wall: np.ndarray, normal: np.ndarray
) -> None:
    rng = stage.rng
    x = side * (edge - 0.02)
    width = z1 - z0

    def place(flat: np.ndarray) -> np.ndarray:
        return np.stack([np.full(flat.shape[:2], x), flat[..., 1], z0 + flat[..., 0]], -1)

    pattern = rng.random()
    if pattern < 0.4:  # clapboard or courses of brick
        step = rng.uniform(0.35, 0.7)
        lows = np.arange(0.2, height, step)
        bands = np.array([[(0, y), (width, y), (width, y + 0.08), (0, y + 0.08)] for y in lows])
        stage.quads(place(bands), [wall * 0.86] * len(bands), normal)
    shop = rng.random() < 0.4
    floors = max(1, int((height - 0.6) / rng.uniform(2.7, 3.3)))
    columns = max(2, int(width / rng.uniform(1.9, 2.8)))
    w, h = rng.uniform(0.9, 1.3), rng.uniform(1.2, 1.7)
    spots = _grid(columns, floors, width, height, w, h)
    if shop:
        spots = spots[columns:]
    if len(spots):
        frame = np.clip(wall * rng.uniform(0.6, 1.35), 0, 255) if rng.random() < 0.6 else np.full(3, 225.0)
        grown = spots + np.array([(-0.14, -0.14), (0.14, -0.14), (0.14, 0.14), (-0.14, 0.14)])
        stage.quads(place(grown), [frame] * len(spots), normal)
        glass = _glass(stage, len(spots))
        stage.quads(place(spots), glass, normal)
        upper = spots.copy()
        upper[:, :2, 1] += h * 0.55
        stage.quads(place(upper), [g * 1.25 for g in glass], normal)
        if rng.random() < 0.3:  # shutters
            shutter = any_color(rng, 0.25, 0.7)
            for shift in (-0.75 * w, 0.75 * w):
                flaps = spots + np.array([shift, 0])
                flaps[:, :, 0] += np.array([0.25, -0.25, -0.25, 0.25]) * w
                stage.quads(place(flaps), [shutter] * len(flaps), normal)
    if shop:
        count = max(1, int(width / 3.5))
        panes = _grid(count, 1, width, 3.0, width / count - 0.6, 2.0, low=0.45)
        stage.quads(place(panes), _glass(stage, len(panes)), normal)
        sign = np.array([[(0.2, 2.6), (width - 0.2, 2.6), (width - 0.2, 3.15), (0.2, 3.15)]])
        stage.quads(place(sign), [any_color(rng, 0.2, 0.9)], normal)
        if rng.random() < 0.6:
            _awning(stage, side, edge, z0, z1)
    else:
        at = rng.uniform(0.3, max(0.4, width - 1.5))
        door = np.array([[(at, 0), (at + 1.1, 0), (at + 1.1, 2.2), (at, 2.2)]])
        stage.quads(place(door), [any_color(rng, 0.2, 0.7)], normal)


def _awning(stage: Stage, side: int, edge: float, z0: float, z1: float) -> None:
    rng = stage.rng
    colors = (any_color(rng, 0.4, 0.9), np.full(3, 235.0))
    stripes = max(4, int((z1 - z0) / 0.7))
    cuts = np.linspace(z0 + 0.2, z1 - 0.2, stripes + 1)
    inner, outer = side * (edge - 0.03), side * (edge - 0.9)
    quads = np.array(
        [[(inner, 2.95, a), (inner, 2.95, b), (outer, 2.4, b), (outer, 2.4, a)] for a, b in itertools.pairwise(cuts)]
    )
    normal = np.array([-side * 0.5, 0.85, 0.0])
    stage.quads(quads, [vary(rng, colors[i % 2], 0.03) for i in range(stripes)], normal)


def _grid(
    columns: int, rows: int, width: float, height: float, w: float, h: float, low: float | None = None
) -> np.ndarray:
    """Return `rows * columns x 4 x 2` rectangles of `w x h` metres, spread over a wall; the lowest row first."""
    us = (np.arange(columns) + 0.5) * width / columns - w / 2
    floor = height / rows
    vs = np.arange(rows) * floor + (max(0.5, (floor - h) * 0.55) if low is None else low)
    corners = np.array([(0, 0), (w, 0), (w, h), (0, h)])
    return (np.stack(np.meshgrid(us, vs), -1).reshape(-1, 1, 2) + corners).astype(float)


def _glass(stage: Stage, count: int) -> list[np.ndarray]:
    rng = stage.rng
    base = hsv(rng.uniform(0.5, 0.65), rng.uniform(0, 0.35), rng.uniform(0.2, 0.5))
    panes = base * rng.uniform(0.7, 1.3, (count, 1))
    if stage.light.night:
        lit = rng.random(count) < 0.4
        lamp = LIT[rng.integers(0, len(LIT), count)]
        panes = np.where(lit[:, None], lamp / np.maximum(stage.light.ambient, 0.2) * 0.9, panes)
    return list(panes)
