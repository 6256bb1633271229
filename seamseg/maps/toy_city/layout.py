"""The objects of a scene and their places: large enough to see, and none hidden completely by another."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from seamseg.maps.toy_city import labels
from seamseg.maps.toy_city.canvas import NEAR, Camera
from seamseg.maps.toy_city.street import Street
from seamseg.maps.toy_city.textures import Rng
from seamseg.maps.toy_city.vehicles import Pose, car_size, corners, truck_size


@dataclass(frozen=True)
class SceneObject:
    """One object to paint; `category` is a label id, `group` marks a member of a crowd without an instance id."""

    category: int
    pose: Pose
    size: tuple[float, float, float]
    """Length, width, height in metres."""
    group: bool = False
    with_rider: bool = False

    def footprint(self) -> list[tuple[float, float, float]]:
        """Return circles `(x, z, radius)` that cover its ground area."""
        length, width, _ = self.size
        reach = max(0.0, (length - width) / 2)
        sin, cos = math.sin(self.pose.heading), math.cos(self.pose.heading)
        steps = (-1.0, -0.33, 0.33, 1.0) if reach > 0 else (0.0,)
        return [(self.pose.x + s * reach * sin, self.pose.z + s * reach * cos, width / 2 + 0.12) for s in steps]


@dataclass
class Plan:
    """The objects placed so far, with their screen boxes `(y0, x0, y1, x1)` and depths."""

    camera: Camera
    street: Street
    rng: Rng
    objects: list[SceneObject] = field(default_factory=list)
    _boxes: list[tuple[np.ndarray, float]] = field(default_factory=list)

    def depth(self, obj: SceneObject) -> float:
        """Return the depth of an object in the camera."""
        return self.camera.ground_to_camera(obj.pose.x, obj.pose.z)[1]

    def box(self, obj: SceneObject) -> np.ndarray | None:
        """Return the screen box in canvas pixels, None if a part is behind or too close to the camera."""
        length, width, height = obj.size
        if obj.category in (labels.PERSON, labels.POLE, labels.STATIC, labels.VEGETATION):
            right, depth = self.camera.ground_to_camera(obj.pose.x, obj.pose.z)
            if depth < 1.5:
                return None
            in_camera = np.array(
                [(right + a * width / 2, v - self.camera.eye, depth) for a in (-1, 1) for v in (0, height)]
            )
        else:
            in_camera = self.camera.to_camera(corners(obj.pose, length, width, height))
            if in_camera[:, 2].min() < max(2.2, 4 * NEAR):
                return None
        screen = self.camera.to_screen(in_camera)
        return np.array([*screen.min(0)[::-1], *screen.max(0)[::-1]])

    def add(self, obj: SceneObject, min_height: float, inside: float = 0.6, overlap: float = 0.25) -> bool:
        """Add an object, unless it is too small, too far out of the image, or overlaps others; return whether it was.

        `min_height` is in canvas pixels, `inside` the smallest fraction of its box within the image, and `overlap` the
        largest fraction of the farther of two boxes that the nearer may cover.
        """
        box = self.box(obj)
        if box is None or box[2] - box[0] < min_height:
            return False
        cut = np.clip(box, 0, [self.camera.height, self.camera.width] * 2)
        if _area(cut) < inside * _area(box):
            return False
        own = obj.footprint()
        others = (circle for other in self.objects for circle in other.footprint())
        if any((x - u) ** 2 + (z - v) ** 2 < (r + s) ** 2 for u, v, s in others for x, z, r in own):
            return False
        depth = self.depth(obj)
        hidden = 0.0
        for other_box, other_depth in self._boxes:
            common = _area(np.concatenate([np.maximum(cut[:2], other_box[:2]), np.minimum(cut[2:], other_box[2:])]))
            if depth >= other_depth:
                hidden += common / _area(cut)
            elif common > overlap * _area(other_box):
                return False
        if hidden > overlap:
            return False
        self.objects.append(obj)
        self._boxes.append((cut, depth))
        return True

    def spot(self, near: float, far: float) -> tuple[float, float]:
        """Return a random visible ground point with depth between `near` and `far`."""
        camera, rng = self.camera, self.rng
        depth = near + (far - near) * rng.random() ** 1.3
        column = rng.uniform(0.03, 0.97) * camera.width
        right = (column - camera.centre) / camera.focal * depth
        sin, cos = math.sin(camera.yaw), math.cos(camera.yaw)
        return camera.x + right * cos + depth * sin, depth * cos - right * sin


def _area(box: np.ndarray) -> float:
    return max(0.0, float(box[2] - box[0])) * max(0.0, float(box[3] - box[1]))


def plan_scene(camera: Camera, street: Street, empty: bool, rng: Rng) -> list[SceneObject]:
    """Choose the objects of a scene; `empty` omits all thing classes, but not street furniture and trees."""
    plan = Plan(camera, street, rng)
    unit = min(camera.width, camera.height)
    if not empty:
        _place(plan, _truck, int(rng.random() < 0.5), unit * 0.2, inside=0.8)
        _place(plan, _cyclist, int(rng.choice(3, p=[0.26, 0.54, 0.2])), unit * 0.33, inside=0.8)
        _place(plan, _person, int(rng.choice(4, p=[0.14, 0.32, 0.34, 0.2])), unit * 0.33, inside=0.75)
        _place(plan, _car, int(rng.choice(4, p=[0.1, 0.34, 0.36, 0.2])), unit * 0.16, inside=0.75)
        _place(plan, _parked_bicycle, int(rng.choice(3, p=[0.5, 0.38, 0.12])), unit * 0.19, inside=0.8)
        if rng.random() < 0.14:
            _crowd_of_people(plan, unit * 0.13)
        if rng.random() < 0.09:
            _crowd_of_cars(plan, unit * 0.06)
    _place(plan, _static, int(rng.choice(3, p=[0.55, 0.3, 0.15])), unit * 0.05)
    _place(plan, _post, int(rng.choice(4, p=[0.14, 0.44, 0.32, 0.1])), unit * 0.45, inside=0.3)
    _place(plan, _tree, int(rng.integers(0, 4)), unit * 0.4, inside=0.3)
    return plan.objects


def _place(plan: Plan, make, count: int, min_height: float, inside: float = 0.6) -> None:
    for _ in range(count):
        for _ in range(40):
            obj = make(plan)
            if obj is None or not plan.add(obj, min_height, inside):
                continue
            if obj.with_rider:  # the rider has the same pose
                plan.objects.append(SceneObject(labels.RIDER, obj.pose, obj.size))
            break


def _vehicle_pose(plan: Plan, width: float, near: float, far: float) -> Pose | None:
    rng, street = plan.rng, plan.street
    x, z = plan.spot(near, far)
    if abs(x) > street.half_road + 0.5:
        return None
    kind = rng.random()
    if kind < 0.3:  # turning or crossing
        return Pose(x, z, rng.uniform(0, math.tau))
    kerb = street.half_road - width / 2 - 0.15
    stops = (*street.lanes, kerb, -kerb)
    x = min(stops, key=lambda s: abs(s - x))
    heading = (0.0 if x > 0 else math.pi) + rng.normal(0, 0.05)
    return Pose(x, z, heading)


def _car(plan: Plan) -> SceneObject | None:
    size = car_size(plan.rng)
    pose = _vehicle_pose(plan, size[1], 4.3, 11.0)
    return None if pose is None else SceneObject(labels.CAR, pose, size)


def _truck(plan: Plan) -> SceneObject | None:
    size = truck_size(plan.rng)
    pose = _vehicle_pose(plan, size[1], 6.0, 13.5)
    return None if pose is None else SceneObject(labels.TRUCK, pose, size)


def _sideways(plan: Plan, least: float) -> float:
    """Return a heading that shows a bicycle from its side; `least` is the smallest sine of its angle to the view."""
    turn = math.asin(plan.rng.uniform(least, 1.0)) * plan.rng.choice([-1, 1])
    return plan.camera.yaw + turn + (math.pi if plan.rng.random() < 0.5 else 0.0)


def _cyclist(plan: Plan) -> SceneObject | None:
    x, z = plan.spot(2.9, 5.8)
    if abs(x) > plan.street.half_road + 1.0:
        return None
    return SceneObject(labels.BICYCLE, Pose(x, z, _sideways(plan, 0.8)), (1.8, 0.5, 1.75), with_rider=True)


def _parked_bicycle(plan: Plan) -> SceneObject | None:
    x, z = plan.spot(2.8, 5.6)
    if not plan.street.half_road - 0.4 < abs(x) < plan.street.edge - 0.5:
        return None
    return SceneObject(labels.BICYCLE, Pose(x, z, _sideways(plan, 0.8)), (1.8, 0.4, 1.05))


def _person(plan: Plan) -> SceneObject | None:
    rng = plan.rng
    x, z = plan.spot(2.8, 6.5)
    if abs(x) > plan.street.edge - 0.4 or (abs(x) < plan.street.half_road and rng.random() < 0.4):
        return None
    height = rng.uniform(1.1, 1.4) if rng.random() < 0.12 else rng.uniform(1.55, 1.95)
    return SceneObject(labels.PERSON, Pose(x, z, 0.0), (0.6, 0.6, height))


def _static(plan: Plan) -> SceneObject | None:
    x, z = plan.spot(3.5, 11.0)
    if not plan.street.half_road + 0.3 < abs(x) < plan.street.edge - 0.3:
        return None
    return SceneObject(labels.STATIC, Pose(x, z, 0.0), (0.8, 0.8, 1.0))


def _post(plan: Plan) -> SceneObject | None:
    x, z = plan.spot(4.0, 8.0)
    x = math.copysign(plan.street.half_road + 0.45, x)
    return SceneObject(labels.POLE, Pose(x, z, 0.0), (0.4, 0.4, 4.5))


def _tree(plan: Plan) -> SceneObject | None:
    rng = plan.rng
    x, z = plan.spot(4.5, 16.0)
    x = math.copysign(plan.street.half_road + rng.uniform(0.7, 1.4), x)
    return SceneObject(labels.VEGETATION, Pose(x, z, 0.0), (0.5, 0.5, rng.uniform(3.6, 5.2)))


def _crowd_of_people(plan: Plan, min_height: float) -> None:
    rng = plan.rng
    for _ in range(20):
        x, z = plan.spot(6.5, 12.0)
        if abs(x) > plan.street.edge - 1.0:
            continue
        area = SceneObject(labels.PERSON, Pose(x, z, 0.0), (1.8, 1.8, 1.7), group=True)
        if not plan.add(area, min_height, overlap=0.2):
            continue
        plan.objects.pop()
        for _ in range(int(rng.integers(5, 9))):
            pose = Pose(x + rng.uniform(-0.75, 0.75), z + rng.uniform(-0.75, 0.75), 0.0)
            plan.objects.append(SceneObject(labels.PERSON, pose, (0.6, 0.6, rng.uniform(1.5, 1.9)), group=True))
        return


def _crowd_of_cars(plan: Plan, min_height: float) -> None:
    rng, street = plan.rng, plan.street
    for _ in range(20):
        x, z = plan.spot(15.0, 24.0)
        if abs(x) > street.edge:
            continue
        x = min(street.lanes, key=lambda s: abs(s - x))
        area = SceneObject(labels.CAR, Pose(x, z, 0.0), (8.0, 1.9, 1.6), group=True)
        if not plan.add(area, min_height, overlap=0.2):
            continue
        plan.objects.pop()
        heading = 0.0 if x > 0 else math.pi
        for shift in (-4.8, 0.0, 4.8):
            pose = Pose(x + rng.uniform(-0.2, 0.2), z + shift, heading)
            plan.objects.append(SceneObject(labels.CAR, pose, car_size(rng), group=True))
        return


def painting_order(camera: Camera, objects: list[SceneObject]) -> list[int]:
    """Return the indices of the objects in painting order: an object that hides another comes after it.

    The centre of a long vehicle may be farther away than a person behind its bonnet, so depth alone is not enough: two
    upright boxes on the ground are separated by a side of one of them, and the box on the camera's side of it is in
    front. Where no side separates them, the farther centre comes first, then the earlier object.
    """
    count = len(objects)
    depths = [camera.ground_to_camera(obj.pose.x, obj.pose.z)[1] for obj in objects]
    bases = []
    for obj in objects:  # the corners (X, Z) of its ground area, in order
        length, width, _ = obj.size
        sin, cos = math.sin(obj.pose.heading), math.cos(obj.pose.heading)
        ahead, right = np.array([sin, cos]) * length / 2, np.array([cos, -sin]) * width / 2
        corners_of = np.array([ahead + right, ahead - right, -ahead - right, -ahead + right])
        bases.append(np.array([obj.pose.x, obj.pose.z]) + corners_of)
    eye = np.array([camera.x, 0.0])
    may_hide = [[not _is_clear_of(bases[a], bases[b], eye) for b in range(count)] for a in range(count)]
    left = sorted(range(count), key=lambda i: (-depths[i], i))
    order = []
    while left:
        free = (a for a in left if not any(may_hide[a][b] and not may_hide[b][a] for b in left if b != a))
        order.append(next(free, left[0]))
        left.remove(order[-1])
    return order


def _is_clear_of(one: np.ndarray, other: np.ndarray, eye: np.ndarray) -> bool:
    """Return whether a side of one of two boxes separates `one` from `other` and the camera: it cannot hide `other`."""
    for box, rest, is_one in ((one, other, True), (other, one, False)):
        middle = box.mean(0)
        for i in range(4):
            corner, normal = box[i], (box[i] + box[(i + 1) % 4]) / 2 - middle
            outside = bool((eye - corner) @ normal > 0)
            if outside == is_one and ((rest - corner) @ normal > -1e-3).all():
                return True
    return False
