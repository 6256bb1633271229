"""Cars, vans and trucks: extruded side profiles with glass, lamps and wheels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seamseg.maps.toy_city.canvas import Stage
from seamseg.maps.toy_city.textures import Rng, any_color, hsv, paint_color

BODY, GLASS, ROOF, FRONT, REAR = "body", "glass", "roof", "front", "rear"


@dataclass(frozen=True)
class Pose:
    """Position and direction of a vehicle: centre on the ground, and heading from +Z towards +X."""

    x: float
    z: float
    heading: float

    def world(self, local: np.ndarray) -> np.ndarray:
        """Convert `... x 3` vehicle coordinates (ahead, up, right) to world coordinates."""
        sin, cos = math.sin(self.heading), math.cos(self.heading)
        ahead, up, right = local[..., 0], local[..., 1], local[..., 2]
        return np.stack([self.x + ahead * sin + right * cos, up, self.z + ahead * cos - right * sin], -1)


def corners(pose: Pose, length: float, width: float, height: float) -> np.ndarray:
    """Return the `8 x 3` corners of the box around a vehicle."""
    signs = np.array([(a, b, c) for a in (-0.5, 0.5) for b in (0, 1) for c in (-0.5, 0.5)])
    return pose.world(signs * np.array([length, height, width]))


def _extrude(stage: Stage, pose: Pose, profile: list, colors: dict, side_color: np.ndarray, key: int) -> list[int]:
    """Paint a body whose side view is `profile`: (ahead, up, half width, surface of the strip to the next point).

    Points run from the rear bottom over the roof to the front bottom. Returns the sides (-1, 1) that face the camera.
    """
    flat = np.array([(p[0], p[1], p[2]) for p in profile])
    right, left = flat.copy(), flat.copy()
    left[:, 2] *= -1
    right, left = pose.world(right), pose.world(left)
    strips = []
    for i in range(len(profile) - 1):
        quad = np.array([left[i], left[i + 1], right[i + 1], right[i]])
        normal = np.cross(quad[1] - quad[0], quad[3] - quad[0])
        norm = np.linalg.norm(normal)
        if norm < 1e-6:
            continue
        normal = normal / norm
        middle = quad.mean(0)
        # profile runs rear, top, front: the outer normal is the one that points up or away from the centre
        outward = middle - pose.world(np.array([0.0, 0.5, 0.0]))
        if normal @ outward < 0:
            normal = -normal
        if stage.faces_camera(middle, normal):
            strips.append((-float(np.linalg.norm(middle - stage.eye)), i, quad, normal))
    for _, i, quad, normal in sorted(strips, key=lambda s: s[:2]):
        stage.face(quad, colors[profile[i][3]], normal, key)
    shown = []
    for sign, points in ((1, right), (-1, left)):
        normal = pose.world(np.array([0.0, 0, sign])) - pose.world(np.zeros(3))
        if stage.faces_camera(points[0], normal):
            stage.face(points, side_color, normal, key)
            shown.append(sign)
    return shown


def _patch(stage: Stage, pose: Pose, points: list, color, normal_local: tuple, key: int | None = None) -> None:
    """Paint a detail given by `K x 3` vehicle coordinates if its front faces the camera."""
    world = pose.world(np.array(points, float))
    normal = pose.world(np.array(normal_local, float)) - pose.world(np.zeros(3))
    if stage.faces_camera(world[0], normal):
        stage.face(world, color, normal, key)


def _wheels(
    stage: Stage, pose: Pose, axles: list[float], half: float, radius: float, sides: list[int], key: int
) -> None:
    """Paint tyres and hubs on the given sides."""
    angles = np.linspace(0, math.tau, 15)[:-1]
    hub = hsv(0.6, 0.05, stage.rng.uniform(0.3, 0.8))
    for sign in sides:
        for axle in axles:
            for r, color in ((radius, np.full(3, 28.0)), (radius * 0.58, hub), (radius * 0.2, hub * 0.5)):
                ring = [(axle + r * math.cos(a), radius + r * math.sin(a), sign * (half + 0.01)) for a in angles]
                _patch(stage, pose, ring, color, (0, 0, sign), key)


def _underside(
    stage: Stage, pose: Pose, length: float, half: float, floor: float, radius: float, axles: list, key: int
) -> None:
    """Paint the dark gap between the wheels, and the tyres visible through it."""
    dark = np.full(3, 22.0)
    reach, top, inner = length / 2 - 0.25, floor + 0.1, half * 0.9
    for sign in (-1, 1):
        w = sign * half * 0.92
        _patch(
            stage, pose, [(-reach, 0.1, w), (reach, 0.1, w), (reach, top, w), (-reach, top, w)], dark, (0, 0, sign), key
        )
    for ahead in (-1, 1):
        u = ahead * reach
        for side in (-1, 1):  # front or rear tyres below the bumper
            a, b = sorted((side * half * 0.95, side * (half * 0.95 - 0.24)))
            _patch(stage, pose, [(u, 0, a), (u, 0, b), (u, top, b), (u, top, a)], dark, (ahead, 0, 0), key)
        gap = [(u, 0.12, -inner), (u, 0.12, inner), (u, top, inner), (u, top, -inner)]
        _patch(stage, pose, gap, dark * 0.8, (ahead, 0, 0), key)


def _lamps(stage: Stage, pose: Pose, length: float, half: float, low: float, high: float) -> None:
    """Paint head and tail lamps and number plates; head lamps glow at night."""
    rng, night = stage.rng, stage.light.night
    head = np.array([255.0, 250, 225]) * (1.8 if night else 0.95)
    tail = np.array([200.0, 25, 25]) * (1.6 if night else 0.9)
    inner = half * rng.uniform(0.5, 0.66)
    for ahead, color in ((1, head), (-1, tail)):
        u = ahead * (length / 2 + 0.01)
        for sign in (-1, 1):
            near, far = sign * inner, sign * half * 0.94
            quad = [(u, low, near), (u, low, far), (u, high, far), (u, high, near)]
            _patch(stage, pose, quad, color, (ahead, 0, 0))
        plate = [(u, low - 0.22, -0.26), (u, low - 0.22, 0.26), (u, low - 0.08, 0.26), (u, low - 0.08, -0.26)]
        _patch(stage, pose, plate, np.full(3, 225.0), (ahead, 0, 0))
    u, w = length / 2 + 0.01, inner * 0.85
    grille = [(u, low - 0.05, -w), (u, low - 0.05, w), (u, high, w), (u, high, -w)]
    _patch(stage, pose, grille, np.full(3, 40.0), (1, 0, 0))
    front = pose.world(np.array([length / 2, (low + high) / 2, 0.0]))
    if night and stage.faces_camera(front, pose.world(np.array([1.0, 0, 0])) - pose.world(np.zeros(3))):
        for sign in (-1, 1):
            at = stage.camera.to_camera(pose.world(np.array([length / 2, (low + high) / 2, sign * half * 0.8])))
            if at[2] > 1:
                x, y = stage.camera.to_screen(at).tolist()
                stage.canvas.glow(x, y, stage.camera.scale(float(at[2])) * 0.8, (120, 115, 90))


def car_size(rng: Rng) -> tuple[float, float, float]:
    """Sample length, width and height of a car in metres."""
    return rng.uniform(3.6, 4.7), rng.uniform(1.7, 1.9), rng.uniform(1.42, 1.75)


def car(stage: Stage, pose: Pose, size: tuple[float, float, float], key: int) -> None:
    """Paint a saloon, hatchback, estate or small van of any colour."""
    rng = stage.rng
    length, width, height = size
    half, floor, belt = width / 2, rng.uniform(0.24, 0.34), height * rng.uniform(0.58, 0.66)
    nose, tail = length / 2, -length / 2
    style = rng.random()
    hood = nose - length * (rng.uniform(0.22, 0.3) if style < 0.85 else 0.1)
    screen = hood - length * rng.uniform(0.12, 0.18)
    if style < 0.4:  # saloon
        deck = tail + length * rng.uniform(0.12, 0.2)
        back = deck + length * rng.uniform(0.1, 0.15)
    else:  # hatchback, estate, van
        deck = tail + 0.04
        back = tail + length * rng.uniform(0.04, 0.14)
    up = half * rng.uniform(0.74, 0.86)
    shoulder = belt * 0.94
    profile = [
        (tail, floor, half, REAR), (tail, shoulder, half, BODY), (deck, belt, half, GLASS),
        (back, height, up, ROOF), (screen, height, up, GLASS), (hood, belt, half, BODY),
        (nose - 0.06, shoulder * 0.88, half, FRONT), (nose, shoulder * 0.8, half, FRONT), (nose, floor, half, FRONT),
    ]  # fmt: skip
    paint = paint_color(rng)
    glass = hsv(rng.uniform(0.5, 0.65), rng.uniform(0, 0.3), rng.uniform(0.15, 0.5))
    roof = paint if rng.random() < 0.8 else any_color(rng)
    colors = {BODY: paint, GLASS: glass, ROOF: roof, FRONT: paint * 0.92, REAR: paint * 0.92}
    radius = rng.uniform(0.3, 0.36)
    axles = [tail + length * 0.2, nose - length * 0.2]
    _underside(stage, pose, length, half, floor, radius, axles, key)
    sides = _extrude(stage, pose, profile, colors, paint, key)
    for sign in sides:
        _side_windows(stage, pose, sign, (deck, back, screen, hood), (belt, height), (half, up), glass, paint)
    _lamps(stage, pose, length, half, shoulder * 0.62, shoulder * 0.78)
    _wheels(stage, pose, axles, half, radius, sides, key)


def _side_windows(
    stage: Stage, pose: Pose, sign: int, us: tuple, vs: tuple, ws: tuple, glass: np.ndarray, paint: np.ndarray
) -> None:
    """Paint door windows between the pillars, door gaps, handles and a stripe."""
    deck, back, screen, hood = us
    belt, height = vs
    half, up = ws

    def patch(points: list[tuple[float, float]], color: np.ndarray) -> None:
        quad = []
        for u, v in points:
            part = (v - belt) / (height - belt)
            quad.append((u, v, sign * (half + (up - half) * max(part, 0.0) + 0.005)))
        _patch(stage, pose, quad, color, (0, 0, sign))

    low, high = belt + 0.03, height - 0.09
    middle = (deck + hood) / 2 - 0.1
    for a, b, c, d in (
        (deck + 0.14, back + 0.12, middle - 0.05, middle - 0.05),
        (middle + 0.05, middle + 0.05, screen - 0.04, hood - 0.18),
    ):
        patch([(a, low), (b, high), (c, high), (d, low)], glass * 0.9)
        w = (c - b) * 0.3
        patch([(b, high), (b + w, high), (a + w * 0.6, low), (a, low)], glass * 1.3)
    for u in (middle, hood - 0.1):
        patch([(u, 0.4), (u + 0.03, 0.4), (u + 0.03, belt), (u, belt)], paint * 0.55)
    for u in (middle - 0.3, hood - 0.4):
        patch([(u, belt - 0.16), (u + 0.18, belt - 0.16), (u + 0.18, belt - 0.1), (u, belt - 0.1)], paint * 0.5)
    stripe = [(deck, belt * 0.55), (hood + 0.4, belt * 0.55), (hood + 0.4, belt * 0.62), (deck, belt * 0.62)]
    patch(stripe, paint * 0.8)


def truck_size(rng: Rng) -> tuple[float, float, float]:
    """Sample length, width and height of a truck in metres."""
    return rng.uniform(5.4, 7.2), rng.uniform(2.1, 2.4), rng.uniform(2.7, 3.3)


def truck(stage: Stage, pose: Pose, size: tuple[float, float, float], key: int) -> None:
    """Paint a truck: a cab and a box, tarpaulin, tipper or tank behind it."""
    rng = stage.rng
    length, width, height = size
    half, floor = width / 2, 0.55
    nose, tail = length / 2, -length / 2
    cab_back = nose - rng.uniform(1.6, 2.0)
    cab_top = min(height - 0.1, rng.uniform(2.2, 2.7))
    radius = rng.uniform(0.42, 0.5)
    axles = [tail + length * 0.18, nose - 0.9]
    if length > 6.3:
        axles.insert(1, axles[0] + 2.3 * radius)
    _underside(stage, pose, length, half, floor, radius, axles, key)

    paint, cargo = paint_color(rng), paint_color(rng)
    glass = hsv(rng.uniform(0.5, 0.65), rng.uniform(0, 0.3), rng.uniform(0.15, 0.45))
    chassis = np.full(3, 45.0)
    frame = [(tail, floor - 0.1, half * 0.9, BODY), (tail, floor + 0.25, half * 0.9, BODY),
             (nose - 0.3, floor + 0.25, half * 0.9, BODY), (nose - 0.3, floor - 0.1, half * 0.9, BODY)]  # fmt: skip
    top = height if rng.random() < 0.75 else floor + rng.uniform(0.9, 1.3)
    _extrude(stage, pose, frame, {BODY: chassis}, chassis, key)

    def paint_box() -> None:
        _truck_box(stage, pose, (tail, cab_back - 0.12), (floor + 0.22, top), half, cargo, key)

    def paint_cab() -> None:
        _truck_cab(stage, pose, (cab_back, nose), (floor, cab_top), half, (paint, glass), key)

    parts = [
        (pose.world(np.array([(tail + cab_back) / 2, 1.0, 0.0])), paint_box),
        (pose.world(np.array([nose - 0.8, 1.0, 0.0])), paint_cab),
    ]
    for _, paint_part in sorted(parts, key=lambda p: -float(np.linalg.norm(p[0] - stage.eye))):
        paint_part()
    _lamps(stage, pose, length, half, floor + 0.12, floor + 0.36)
    _wheels(stage, pose, axles, half, radius, [s for s in (-1, 1) if _side_visible(stage, pose, s, half)], key)


def _truck_box(
    stage: Stage, pose: Pose, us: tuple[float, float], vs: tuple[float, float], half: float, cargo: np.ndarray, key: int
) -> None:
    (tail, front), (low, top) = us, vs
    box = [(tail, low, half, REAR), (tail, top, half, ROOF), (front, top, half, FRONT), (front, low, half, FRONT)]
    colors = {ROOF: cargo * 0.95, FRONT: cargo * 0.8, REAR: cargo * 0.9}
    for sign in _extrude(stage, pose, box, colors, cargo, key):
        _cargo_side(stage, pose, sign, us, vs, half, cargo)
    u = tail - 0.01
    gap = [(u, low + 0.1, -0.02), (u, low + 0.1, 0.02), (u, top - 0.1, 0.02), (u, top - 0.1, -0.02)]
    _patch(stage, pose, gap, cargo * 0.5, (-1, 0, 0))


def _truck_cab(
    stage: Stage,
    pose: Pose,
    us: tuple[float, float],
    vs: tuple[float, float],
    half: float,
    paint_and_glass: tuple[np.ndarray, np.ndarray],
    key: int,
) -> None:
    (back, nose), (floor, top), (paint, glass) = us, vs, paint_and_glass
    sill = floor + (top - floor) * 0.5
    profile = [
        (back, floor, half, REAR), (back, top, half * 0.94, ROOF),
        (nose - 0.35, top, half * 0.94, GLASS), (nose - 0.08, sill, half, FRONT),
        (nose, sill - 0.1, half, FRONT), (nose, floor - 0.2, half, FRONT),
    ]  # fmt: skip
    colors = {GLASS: glass, ROOF: paint, FRONT: paint * 0.92, REAR: paint * 0.7}
    for sign in _extrude(stage, pose, profile, colors, paint, key):
        w = sign * (half + 0.005)
        window = [
            (back + 0.35, sill, w),
            (back + 0.35, top - 0.2, w),
            (nose - 0.5, top - 0.2, w),
            (nose - 0.25, sill, w),
        ]
        _patch(stage, pose, window, glass, (0, 0, sign))
        gap = [(back + 0.3, floor, w), (back + 0.34, floor, w), (back + 0.34, sill, w), (back + 0.3, sill, w)]
        _patch(stage, pose, gap, paint * 0.55, (0, 0, sign))


def _cargo_side(
    stage: Stage,
    pose: Pose,
    sign: int,
    us: tuple[float, float],
    vs: tuple[float, float],
    half: float,
    cargo: np.ndarray,
) -> None:
    """Paint ribs, stripes or a sign on the side of the load."""
    rng = stage.rng
    (tail, front), (low, top) = us, vs
    w = sign * (half + 0.006)
    length, tall = front - tail, top - low

    def quad(a: float, b: float, c: float, d: float) -> list:
        return [
            (tail + a * length, low + b * tall, w),
            (tail + c * length, low + b * tall, w),
            (tail + c * length, low + d * tall, w),
            (tail + a * length, low + d * tall, w),
        ]

    kind = rng.random()
    if kind < 0.4:
        for a in np.linspace(0.05, 0.95, 9):
            _patch(stage, pose, quad(a, 0.02, a + 0.02, 0.98), cargo * 0.75, (0, 0, sign))
    elif kind < 0.7:
        low_v = rng.uniform(0.15, 0.5)
        _patch(stage, pose, quad(0, low_v, 1, low_v + 0.2), any_color(rng), (0, 0, sign))
    if kind > 0.3:
        a, b = rng.uniform(0.15, 0.3), rng.uniform(0.35, 0.5)
        _patch(stage, pose, quad(a, b, a + 0.45, b + 0.3), any_color(rng), (0, 0, sign))
        _patch(stage, pose, quad(a + 0.05, b + 0.09, a + 0.4, b + 0.2), any_color(rng), (0, 0, sign))


def _side_visible(stage: Stage, pose: Pose, sign: int, half: float) -> bool:
    point = pose.world(np.array([0.0, 0.5, sign * half]))
    normal = pose.world(np.array([0.0, 0, sign])) - pose.world(np.zeros(3))
    return stage.faces_camera(point, normal)
