"""Houses along the street: facades with windows, doors, shops, awnings and roofs."""

from __future__ import annotations

import itertools

import numpy as np

from seamseg.toy_city.canvas import Stage
from seamseg.toy_city.textures import any_color, facade_color, hsv, vary

LIT = np.array([(255, 214, 140), (255, 232, 180), (235, 190, 120)], float)


def house(stage: Stage, side: int, edge: float, z0: float, z1: float, height: float, key: int) -> None:
    """A house from `z0` to `z1` whose front stands `edge` metres from the middle of the street on `side` (-1 or 1)."""
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

    def place(flat: np.ndarray, out: float = 0.0) -> np.ndarray:
        return np.stack([np.full(flat.shape[:2], x - side * out), flat[..., 1], z0 + flat[..., 0]], -1)

    pattern = rng.random()
    if pattern < 0.4:  # clapboard or courses of brick
        step = rng.uniform(0.35, 0.7)
        lows = np.arange(0.2, height, step)
        bands = np.array([[(0, y), (width, y), (width, y + 0.08), (0, y + 0.08)] for y in lows])
        stage.quads(place(bands), [wall * 0.86] * len(bands), normal)
    base = rng.random()
    shop = base < 0.4
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
    """Striped cloth over a shop window."""
    rng = stage.rng
    colors = (any_color(rng, 0.4, 0.9), np.full(3, 235.0))
    stripes = max(4, int((z1 - z0) / 0.7))
    cuts = np.linspace(z0 + 0.2, z1 - 0.2, stripes + 1)
    inner, outer = side * (edge - 0.03), side * (edge - 0.9)
    quads = np.array(
        [[(inner, 2.95, a), (inner, 2.95, b), (outer, 2.4, b), (outer, 2.4, a)] for a, b in itertools.pairwise(cuts)]
    )
    normal = np.array([-side * 0.5, 0.85, 0.0])
    stage.quads(quads, [vary(rng, colors[i % 2], 0.03) for i in range(stripes)], normal, None)


def _grid(
    columns: int, rows: int, width: float, height: float, w: float, h: float, low: float | None = None
) -> np.ndarray:
    """`rows * columns x 4 x 2` rectangles, `w x h` metres, spread over a wall; the lowest row first."""
    us = (np.arange(columns) + 0.5) * width / columns - w / 2
    floor = height / rows
    vs = np.arange(rows) * floor + (max(0.5, (floor - h) * 0.55) if low is None else low)
    corners = np.array([(0, 0), (w, 0), (w, h), (0, h)])
    return (np.stack(np.meshgrid(us, vs), -1).reshape(-1, 1, 2) + corners).astype(float)


def _glass(stage: Stage, count: int) -> list[np.ndarray]:
    """Window panes: dark, reflecting the sky, or lit at night."""
    rng = stage.rng
    base = hsv(rng.uniform(0.5, 0.65), rng.uniform(0, 0.35), rng.uniform(0.2, 0.5))
    panes = base * rng.uniform(0.7, 1.3, (count, 1))
    if stage.light.night:
        lit = rng.random(count) < 0.4
        lamp = LIT[rng.integers(0, len(LIT), count)]
        panes = np.where(lit[:, None], lamp / np.maximum(stage.light.ambient, 0.2) * 0.9, panes)
    return list(panes)
