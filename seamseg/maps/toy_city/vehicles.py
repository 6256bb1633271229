"""Cars, vans and trucks: extruded side profiles with glass, lamps and wheels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from seamseg.maps.toy_city.canvas import Stage
from seamseg.maps.toy_city.textures import Rng, any_color, hsv, paint_color

Point = tuple[float, float, float]
"""Ahead, up, right, in metres of a vehicle."""

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


def _across(u: float, low: float, high: float, left: float, right: float) -> list[Point]:
    return [(u, low, left), (u, low, right), (u, high, right), (u, high, left)]


def _along(rear: float, front: float, low: float, high: float, w: float) -> list[Point]:
    return [(rear, low, w), (front, low, w), (front, high, w), (rear, high, w)]


@dataclass(frozen=True)
class _Vehicle:
    """Paints the parts of a vehicle, given in its coordinates (ahead, up, right), labelled with `key`."""

    stage: Stage
    pose: Pose
    key: int

    def normal(self, ahead: float, up: float, right: float) -> np.ndarray:
        """Return a direction of the vehicle in the world."""
        return self.pose.world(np.array([ahead, up, right], float)) - self.pose.world(np.zeros(3))

    def patch(self, points: list[Point], color, normal: Point, key: int | None = None) -> None:
        """Paint a flat detail if its front faces the camera; without `key` the labels stay."""
        world, outward = self.pose.world(np.array(points, float)), self.normal(*normal)
        if self.stage.faces_camera(world[0], outward):
            self.stage.face(world, color, outward, key)

    def extrude(self, profile: list, colors: dict, side_color: np.ndarray) -> list[int]:
        """Paint a body whose side view is `profile`: (ahead, up, half width, surface of the strip to the next point).

        Points run from the rear bottom over the roof to the front bottom. Returns the sides (-1, 1) that face the
        camera.
        """
        stage, pose = self.stage, self.pose
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
            stage.face(quad, colors[profile[i][3]], normal, self.key)
        shown = []
        for sign, points in ((1, right), (-1, left)):
            normal = self.normal(0, 0, sign)
            if stage.faces_camera(points[0], normal):
                stage.face(points, side_color, normal, self.key)
                shown.append(sign)
        return shown

    def wheels(self, axles: list[float], half: float, radius: float, sides: list[int]) -> None:
        """Paint tyres and hubs on the given sides."""
        angles = np.linspace(0, math.tau, 15)[:-1]
        hub = hsv(0.6, 0.05, self.stage.rng.uniform(0.3, 0.8))
        for sign in sides:
            for axle in axles:
                for r, color in ((radius, np.full(3, 28.0)), (radius * 0.58, hub), (radius * 0.2, hub * 0.5)):
                    ring = [(axle + r * math.cos(a), radius + r * math.sin(a), sign * (half + 0.01)) for a in angles]
                    self.patch(ring, color, (0, 0, sign), self.key)

    def underside(self, length: float, half: float, floor: float) -> None:
        """Paint the dark gap between the wheels, and the tyres visible through it."""
        dark = np.full(3, 22.0)
        reach, top, inner = length / 2 - 0.25, floor + 0.1, half * 0.9
        for sign in (-1, 1):
            self.patch(_along(-reach, reach, 0.1, top, sign * half * 0.92), dark, (0, 0, sign), self.key)
        for ahead in (-1, 1):
            u = ahead * reach
            for side in (-1, 1):  # front or rear tyres below the bumper
                a, b = sorted((side * half * 0.95, side * (half * 0.95 - 0.24)))
                self.patch(_across(u, 0, top, a, b), dark, (ahead, 0, 0), self.key)
            self.patch(_across(u, 0.12, top, -inner, inner), dark * 0.8, (ahead, 0, 0), self.key)

    def lamps(self, length: float, half: float, low: float, high: float) -> None:
        """Paint head and tail lamps and number plates; head lamps glow at night."""
        stage, night = self.stage, self.stage.light.night
        head = np.array([255.0, 250, 225]) * (1.8 if night else 0.95)
        tail = np.array([200.0, 25, 25]) * (1.6 if night else 0.9)
        inner = half * stage.rng.uniform(0.5, 0.66)
        for ahead, color in ((1, head), (-1, tail)):
            u = ahead * (length / 2 + 0.01)
            for sign in (-1, 1):
                self.patch(_across(u, low, high, sign * inner, sign * half * 0.94), color, (ahead, 0, 0))
            self.patch(_across(u, low - 0.22, low - 0.08, -0.26, 0.26), np.full(3, 225.0), (ahead, 0, 0))
        w = inner * 0.85
        self.patch(_across(length / 2 + 0.01, low - 0.05, high, -w, w), np.full(3, 40.0), (1, 0, 0))
        front = self.pose.world(np.array([length / 2, (low + high) / 2, 0.0]))
        if night and stage.faces_camera(front, self.normal(1, 0, 0)):
            for sign in (-1, 1):
                lamp = self.pose.world(np.array([length / 2, (low + high) / 2, sign * half * 0.8]))
                at = stage.camera.to_camera(lamp)
                if at[2] > 1:
                    x, y = stage.camera.to_screen(at).tolist()
                    stage.canvas.glow(x, y, stage.camera.scale(float(at[2])) * 0.8, (120, 115, 90))


def car_size(rng: Rng) -> tuple[float, float, float]:
    """Sample length, width and height of a car in metres."""
    return rng.uniform(3.6, 4.7), rng.uniform(1.7, 1.9), rng.uniform(1.42, 1.75)


def car(stage: Stage, pose: Pose, size: tuple[float, float, float], key: int) -> None:
    """Paint a saloon, hatchback, estate or small van of any colour."""
    rng, vehicle = stage.rng, _Vehicle(stage, pose, key)
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
    vehicle.underside(length, half, floor)
    sides = vehicle.extrude(profile, colors, paint)
    for sign in sides:
        _side_windows(vehicle, sign, (deck, back, screen, hood), (belt, height), (half, up), glass, paint)
    vehicle.lamps(length, half, shoulder * 0.62, shoulder * 0.78)
    vehicle.wheels(axles, half, radius, sides)


def _side_windows(
    vehicle: _Vehicle, sign: int, us: tuple, vs: tuple, ws: tuple, glass: np.ndarray, paint: np.ndarray
) -> None:
    deck, back, screen, hood = us
    belt, height = vs
    half, up = ws

    def patch(points: list[tuple[float, float]], color: np.ndarray) -> None:
        quad = []
        for u, v in points:
            part = (v - belt) / (height - belt)
            quad.append((u, v, sign * (half + (up - half) * max(part, 0.0) + 0.005)))
        vehicle.patch(quad, color, (0, 0, sign))

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
    rng, vehicle = stage.rng, _Vehicle(stage, pose, key)
    length, width, height = size
    half, floor = width / 2, 0.55
    nose, tail = length / 2, -length / 2
    cab_back = nose - rng.uniform(1.6, 2.0)
    cab_top = min(height - 0.1, rng.uniform(2.2, 2.7))
    radius = rng.uniform(0.42, 0.5)
    axles = [tail + length * 0.18, nose - 0.9]
    if length > 6.3:
        axles.insert(1, axles[0] + 2.3 * radius)
    vehicle.underside(length, half, floor)

    paint, cargo = paint_color(rng), paint_color(rng)
    glass = hsv(rng.uniform(0.5, 0.65), rng.uniform(0, 0.3), rng.uniform(0.15, 0.45))
    chassis = np.full(3, 45.0)
    frame = [(tail, floor - 0.1, half * 0.9, BODY), (tail, floor + 0.25, half * 0.9, BODY),
             (nose - 0.3, floor + 0.25, half * 0.9, BODY), (nose - 0.3, floor - 0.1, half * 0.9, BODY)]  # fmt: skip
    top = height if rng.random() < 0.75 else floor + rng.uniform(0.9, 1.3)
    vehicle.extrude(frame, {BODY: chassis}, chassis)
    box, cab = (pose.world(np.array([u, 1.0, 0.0])) for u in ((tail + cab_back) / 2, nose - 0.8))
    box_first = np.linalg.norm(box - stage.eye) >= np.linalg.norm(cab - stage.eye)
    paint_box = partial(_truck_box, vehicle, (tail, cab_back - 0.12), (floor + 0.22, top), half, cargo)
    if box_first:
        paint_box()
    _truck_cab(vehicle, (cab_back, nose), (floor, cab_top), half, paint, glass)
    if not box_first:
        paint_box()
    vehicle.lamps(length, half, floor + 0.12, floor + 0.36)
    sides = [
        sign
        for sign in (-1, 1)
        if stage.faces_camera(pose.world(np.array([0.0, 0.5, sign * half])), vehicle.normal(0, 0, sign))
    ]
    vehicle.wheels(axles, half, radius, sides)


Range = tuple[float, float]


def _truck_box(vehicle: _Vehicle, us: Range, vs: Range, half: float, cargo: np.ndarray) -> None:
    (tail, front), (low, top) = us, vs
    box = [(tail, low, half, REAR), (tail, top, half, ROOF), (front, top, half, FRONT), (front, low, half, FRONT)]
    colors = {ROOF: cargo * 0.95, FRONT: cargo * 0.8, REAR: cargo * 0.9}
    for sign in vehicle.extrude(box, colors, cargo):
        _cargo_side(vehicle, sign, us, vs, half, cargo)
    vehicle.patch(_across(tail - 0.01, low + 0.1, top - 0.1, -0.02, 0.02), cargo * 0.5, (-1, 0, 0))


def _truck_cab(vehicle: _Vehicle, us: Range, vs: Range, half: float, paint: np.ndarray, glass: np.ndarray) -> None:
    (back, nose), (floor, top) = us, vs
    sill = floor + (top - floor) * 0.5
    profile = [
        (back, floor, half, REAR), (back, top, half * 0.94, ROOF),
        (nose - 0.35, top, half * 0.94, GLASS), (nose - 0.08, sill, half, FRONT),
        (nose, sill - 0.1, half, FRONT), (nose, floor - 0.2, half, FRONT),
    ]  # fmt: skip
    colors = {GLASS: glass, ROOF: paint, FRONT: paint * 0.92, REAR: paint * 0.7}
    for sign in vehicle.extrude(profile, colors, paint):
        w = sign * (half + 0.005)
        window = [
            (back + 0.35, sill, w),
            (back + 0.35, top - 0.2, w),
            (nose - 0.5, top - 0.2, w),
            (nose - 0.25, sill, w),
        ]
        vehicle.patch(window, glass, (0, 0, sign))
        vehicle.patch(_along(back + 0.3, back + 0.34, floor, sill, w), paint * 0.55, (0, 0, sign))


def _cargo_side(vehicle: _Vehicle, sign: int, us: Range, vs: Range, half: float, cargo: np.ndarray) -> None:
    rng = vehicle.stage.rng
    (tail, front), (low, top) = us, vs
    w = sign * (half + 0.006)
    length, tall = front - tail, top - low

    def patch(a: float, b: float, c: float, d: float, color: np.ndarray) -> None:
        """Paint a rectangle from (a, b) to (c, d), in fractions of the side."""
        quad = _along(tail + a * length, tail + c * length, low + b * tall, low + d * tall, w)
        vehicle.patch(quad, color, (0, 0, sign))

    kind = rng.random()
    if kind < 0.4:
        for a in np.linspace(0.05, 0.95, 9):
            patch(a, 0.02, a + 0.02, 0.98, cargo * 0.75)
    elif kind < 0.7:
        low_v = rng.uniform(0.15, 0.5)
        patch(0, low_v, 1, low_v + 0.2, any_color(rng))
    if kind > 0.3:
        a, b = rng.uniform(0.15, 0.3), rng.uniform(0.35, 0.5)
        patch(a, b, a + 0.45, b + 0.3, any_color(rng))
        patch(a + 0.05, b + 0.09, a + 0.4, b + 0.2, any_color(rng))
