"""Renders one street scene: samples camera, light and objects, and paints them from far to near."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from seamseg.maps.toy_city import labels
from seamseg.maps.toy_city.canvas import SUPERSAMPLING, Camera, Canvas, Stage
from seamseg.maps.toy_city.furniture import bin_or_box, bonnet, hedge, lamp_post, tree
from seamseg.maps.toy_city.layout import SceneObject, painting_order, plan_scene
from seamseg.maps.toy_city.lighting import Light, add_glow, develop, random_light, sky
from seamseg.maps.toy_city.people import bicycle, person, rider
from seamseg.maps.toy_city.street import Street, house, paint_ground, paint_skyline, random_street
from seamseg.maps.toy_city.textures import Rng, noise_tile, scene_rng, smooth_noise
from seamseg.maps.toy_city.vehicles import car, truck

EMPTY_FRACTION = 0.08
PORTRAIT_FRACTION = 0.2
TINY_FRACTION = 0.001
"""An instance with a smaller visible fraction of the image is labelled as a group."""


def render_scene(
    seed: int, split: str, index: int, size: tuple[int, int] = (256, 512)
) -> tuple[np.ndarray, np.ndarray]:
    """Render one scene, a pure function of the arguments; `size`, `(height, width)`, is swapped for portrait images.

    Returns the image, uint8 `H x W x 3`, and the values of Cityscapes' `instanceIds.png`, uint16 `H x W`.
    """
    rng = scene_rng(seed, split, index)
    portrait = rng.random() < PORTRAIT_FRACTION
    empty = rng.random() < EMPTY_FRACTION
    height, width = (max(size), min(size)) if portrait else (min(size), max(size))
    light, street = random_light(rng), random_street(rng)
    camera = _random_camera(height * SUPERSAMPLING, width * SUPERSAMPLING, street, rng)
    objects = plan_scene(camera, street, empty, rng)
    slots = _slots(rng)

    image = sky(light, camera.height, camera.width, camera.horizon, rng)
    keys = np.zeros((camera.height, camera.width), np.uint8)
    paint_ground(image, keys, camera, light, street, _shadows(camera, light, street, objects, slots), rng)
    canvas = Canvas(
        np.clip(image, 0, 255).astype(np.uint8), keys, [labels.SKY, labels.ROAD, labels.SIDEWALK, labels.BUILDING]
    )
    stage = Stage(camera, light, canvas, rng)
    paint_skyline(stage)
    _paint_houses(stage, street, slots)
    _paint_objects(stage, objects)
    if not portrait and abs(camera.yaw) < 0.5 and rng.random() < 0.35:
        bonnet(stage, canvas.key(labels.EGO_VEHICLE))

    image, ids = canvas.final_image(), canvas.final_ids()
    for value, count in zip(*(part.tolist() for part in np.unique(ids, return_counts=True))):
        if value >= 1000 and count < TINY_FRACTION * ids.size:
            ids[ids == value] = value // 1000
    _add_surface(image, ids, rng)
    if light.night:
        add_glow(image, canvas.glows)
    developed = develop(image, light, rng)
    if rng.random() < 0.12:
        _mask_border(developed, ids, rng)
    return developed, ids


def _random_camera(height: int, width: int, street: Street, rng: Rng) -> Camera:
    kind = rng.random()
    turn = float(rng.choice([-1, 1]))
    if kind < 0.5:
        yaw, x = rng.uniform(0, 0.35), rng.uniform(-0.7, 0.7) * street.half_road
    elif kind < 0.7:
        yaw, x = rng.uniform(0.45, 1.0), -rng.uniform(0.2, 1.1) * street.half_road
    else:
        yaw, x = rng.uniform(1.15, 1.6), -rng.uniform(street.half_road * 0.7, street.edge - 0.8)
    portrait = height > width
    return Camera(
        width=width,
        height=height,
        focal=min(height, width) * (rng.uniform(0.95, 1.2) if portrait else rng.uniform(1.0, 1.3)),
        centre=width * rng.uniform(0.42, 0.58),
        horizon=height * (rng.uniform(0.45, 0.56) if portrait else rng.uniform(0.38, 0.5)),
        eye=rng.uniform(1.8, 2.8),
        x=turn * x,
        yaw=turn * yaw,
    )


Slot = tuple[str, int, float, float, float]
"""A house or garden along the street: kind, side, z from, z to, height."""


def _slots(rng: Rng) -> list[Slot]:
    green = 0.8 if rng.random() < 0.2 else rng.uniform(0.05, 0.3)
    tall = rng.uniform(6, 13)
    slots: list[Slot] = []
    for side in (-1, 1):
        z = -45.0 + rng.uniform(0, 5)
        while z < 60:
            garden = rng.random() < green
            length = rng.uniform(4, 9) if garden else rng.uniform(6, 13)
            height = rng.uniform(1.4, 2.8) if garden else max(4.5, tall * rng.uniform(0.65, 1.35))
            slots.append(("garden" if garden else "house", side, z, z + length, height))
            z += length + (rng.uniform(0.3, 2.0) if rng.random() < 0.2 else 0.0)
    return slots


def _paint_houses(stage: Stage, street: Street, slots: list[Slot]) -> None:
    canvas, rng = stage.canvas, stage.rng
    wall, leaves = canvas.key(labels.BUILDING), canvas.key(labels.VEGETATION)
    for kind, side, z0, z1, height in sorted(slots, key=lambda s: -abs(s[2] + s[3])):
        corners = [stage.camera.ground_to_camera(side * x, z) for x in (street.edge, street.edge + 9) for z in (z0, z1)]
        limit = stage.camera.width / stage.camera.focal
        if all(depth < 0.6 or abs(right) > limit * depth + 8 for right, depth in corners):
            continue
        if kind == "house":
            house(stage, side, street.edge, z0, z1, height, wall)
            continue
        x = side * street.edge
        for z in np.arange(z0 + 1.5, z1, 3.2)[:: 1 if z0 + z1 > 0 else -1][::-1]:
            at = side * (street.edge + rng.uniform(2.0, 4.5)), z
            if stage.camera.ground_to_camera(*at)[1] > 2.5:
                tree(stage, *at, height=rng.uniform(4, 8), crown=rng.uniform(1.6, 2.5), key=leaves)
        hedge(stage, np.array([x, 0.0, z0]), np.array([x, 0.0, z1]), height, leaves)


def _paint_objects(stage: Stage, objects: list[SceneObject]) -> None:
    canvas, rng = stage.canvas, stage.rng
    counts: dict[int, int] = {}
    for i in painting_order(stage.camera, objects):
        obj = objects[i]
        category, pose = obj.category, obj.pose
        if category in labels.THINGS and not obj.group:
            counts[category] = counts.get(category, -1) + 1
            key = canvas.key(category * 1000 + counts[category])
        else:
            key = canvas.key(category)
        if category == labels.CAR:
            car(stage, pose, obj.size, key)
        elif category == labels.TRUCK:
            truck(stage, pose, obj.size, key)
        elif category == labels.PERSON:
            person(stage, pose.x, pose.z, obj.size[2], key)
        elif category == labels.BICYCLE:
            bicycle(stage, pose.x, pose.z, pose.heading, key)
        elif category == labels.RIDER:
            rider(stage, pose.x, pose.z, pose.heading, key)
        elif category == labels.POLE:
            lamp_post(stage, pose.x, pose.z, key, canvas.key(labels.STATIC))
        elif category == labels.VEGETATION:
            tree(stage, pose.x, pose.z, obj.size[2], rng.uniform(1.2, 1.8), key)
        else:
            bin_or_box(stage, pose.x, pose.z, key)


def _shadows(camera: Camera, light: Light, street: Street, objects: list[SceneObject], slots: list[Slot]) -> np.ndarray:
    """Return uint8 `H x W`, 255 where the ground is in the shadow of a house, a tree or an object."""
    image = Image.new("L", (camera.width, camera.height))
    draw = ImageDraw.Draw(image)
    throw = -light.sun[[0, 2]] / max(float(light.sun[1]), 0.15)
    cast = light.kind in ("clear", "dusk")

    def drop(base: np.ndarray, height: float) -> None:
        """Draw the shadow of an upright prism over the ground polygon `base` (`K x 2`, X and Z)."""
        outline = _hull(np.concatenate([base, base + throw * height])) if height > 0 else base
        screen = camera.polygon(np.stack([outline[:, 0], np.zeros(len(outline)), outline[:, 1]], -1))
        if screen is not None:
            draw.polygon(list(map(tuple, screen.tolist())), fill=255)

    if cast:
        for kind, side, z0, z1, height in slots:
            near, far = side * street.edge, side * (street.edge + 9)
            base = np.array([(near, z0), (near, z1), (far, z1), (far, z0)])
            drop(base, height if kind == "house" else height * 0.8)
    for obj in objects:
        length, width, height = obj.size
        sin, cos = math.sin(obj.pose.heading), math.cos(obj.pose.heading)
        grow = 1.08 if obj.category in (labels.CAR, labels.TRUCK) else 0.9
        local = np.array([(1, 1), (1, -1), (-1, -1), (-1, 1)]) * np.array([length, width]) / 2 * grow
        base = np.array([obj.pose.x, obj.pose.z]) + np.stack(
            [local[:, 0] * sin + local[:, 1] * cos, local[:, 0] * cos - local[:, 1] * sin], -1
        )
        if cast:
            drop(base, height * 0.9)
        drop(base, 0.0)
    return np.asarray(image.filter(ImageFilter.BoxBlur(2)))


def _hull(points: np.ndarray) -> np.ndarray:
    ordered = sorted(map(tuple, points.tolist()))

    def half(source) -> list:
        chain: list = []
        for p in source:
            while len(chain) > 1:
                (ax, ay), (bx, by) = chain[-2], chain[-1]
                if (bx - ax) * (p[1] - ay) - (by - ay) * (p[0] - ax) > 0:
                    break
                chain.pop()
            chain.append(p)
        return chain[:-1]

    return np.array(half(ordered) + half(ordered[::-1]))


def _add_surface(image: np.ndarray, ids: np.ndarray, rng: Rng) -> None:
    """Add leaf noise on vegetation, stains and grain on walls, dirt on everything, in place."""
    height, width = ids.shape
    tile = noise_tile(rng)
    grain = np.tile(tile, (height // 256 + 1, width // 256 + 1))[:height, :width]
    stains = smooth_noise(rng, height, width, cells=5) - np.float32(0.5)
    strength = np.full(256, 0.02, np.float32)
    strength[labels.VEGETATION] = 0.13
    strength[labels.BUILDING] = rng.uniform(0.02, 0.05)
    strength[labels.SKY] = 0.0
    category = np.where(ids >= 1000, ids // 1000, ids)
    surface = 1 + strength[category] * grain
    stained = 1 + np.where(category == labels.SKY, 0, np.float32(0.22) * stains)
    for channel in range(3):
        image[..., channel] *= surface
        image[..., channel] *= stained


def _mask_border(image: np.ndarray, ids: np.ndarray, rng: Rng) -> None:
    """Add black margins as rectification produces them, labelled out of roi, in place."""
    height, width = ids.shape
    margin = max(2, int(min(height, width) * rng.uniform(0.015, 0.04)))
    outside = np.zeros(ids.shape, bool)
    sides = rng.random(4) < 0.5
    sides[int(rng.integers(4))] = True
    margins = (outside[:margin], outside[-margin:], outside[:, :margin], outside[:, -margin:])
    for on, part in zip(sides, margins):
        part[:] |= on
    image[outside] = int(rng.integers(0, 12))
    ids[outside] = labels.OUT_OF_ROI
