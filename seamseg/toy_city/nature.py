"""Trees, hedges and bushes: heaps of leafy blobs."""

from __future__ import annotations

import math

import numpy as np

from seamseg.toy_city.canvas import Stage
from seamseg.toy_city.textures import foliage_color, hsv, vary


def foliage(
    stage: Stage, x: float, y: float, rx: float, ry: float, depth: float, color: np.ndarray, key: int, blobs: int = 60
) -> None:
    """A leafy ellipse around the canvas point `(x, y)`: dark blobs behind, light ones where the sun falls."""
    rng, camera = stage.rng, stage.camera
    angle = rng.uniform(0, math.tau, blobs)
    reach = np.sqrt(rng.random(blobs)) * 0.86
    us, vs = np.cos(angle) * reach, np.sin(angle) * reach
    sizes = rng.uniform(0.17, 0.34, blobs) * math.sqrt(30 / max(blobs, 12))
    right = stage.light.sun[0] * math.cos(camera.yaw) - stage.light.sun[2] * math.sin(camera.yaw)
    bright = np.linspace(0.62, 1.1, blobs) + 0.16 * (us * right - vs * 0.8)
    for u, v, size, b in zip(us.tolist(), vs.tolist(), sizes.tolist(), bright.tolist()):
        shown = stage.light.shade(color * b, None, depth)
        r = max(size, 0.1) * (rx + ry) / 2
        stage.canvas.disc(x + u * rx, y + v * ry, r, r * 0.85, shown, key)


def tree(stage: Stage, x: float, z: float, height: float, crown: float, key: int) -> None:
    """A street tree at ground point `(x, z)`; `crown` is the radius of its head, all in metres."""
    rng, camera = stage.rng, stage.camera
    right, depth = camera.ground_to_camera(x, z)
    scale = camera.scale(depth)
    sx = camera.centre + scale * right
    foot = camera.horizon + scale * camera.eye
    bark = hsv(rng.uniform(0.04, 0.12), rng.uniform(0.15, 0.5), rng.uniform(0.2, 0.45))
    half = rng.uniform(0.13, 0.2) * scale
    top = foot - (height - crown) * scale
    color = stage.light.shade(bark, None, depth)
    stage.canvas.polygon(
        [(sx - half * 1.4, foot), (sx + half * 1.4, foot), (sx + half * 0.8, top), (sx - half * 0.8, top)], color, key
    )
    dark = stage.light.shade(bark * 0.7, None, depth)
    stage.canvas.polygon([(sx, foot), (sx + half * 1.4, foot), (sx + half * 0.8, top), (sx, top)], dark, None)
    leaves = foliage_color(rng)
    if rng.random() < 0.25:  # a conifer: tiers
        for tier in range(5):
            part = 1 - tier / 5
            y = foot - (height * (0.28 + 0.62 * tier / 4)) * scale
            foliage(stage, sx, y, crown * scale * part, crown * 0.45 * scale, depth, leaves, key, blobs=16)
    else:
        blobs = 40 + int(min(80, crown * scale))
        squash = rng.uniform(0.8, 1.15)
        foliage(
            stage,
            sx,
            foot - (height - crown) * scale - crown * 0.4 * scale,
            crown * scale,
            crown * scale * squash,
            depth,
            leaves,
            key,
            blobs=blobs,
        )


def hedge(stage: Stage, start: np.ndarray, end: np.ndarray, height: float, key: int) -> None:
    """A hedge between two ground points (world, Y = 0), with bushes on top."""
    rng, camera = stage.rng, stage.camera
    leaves = foliage_color(rng)
    up = np.array([0.0, height, 0.0])
    normal = np.array([-math.copysign(1.0, start[0]), 0.0, 0.0])
    stage.face(np.array([start, end, end + up, start + up]), leaves * 0.75, normal * 0.5, key)
    steps = max(2, int(np.linalg.norm(end - start) / (0.55 * height + 0.3)))
    order = np.linspace(0, 1, steps)
    spots = start + (end - start) * order[:, None]
    seen = camera.to_camera(spots)
    for i in np.argsort(-seen[:, 2], kind="stable"):
        right, _, depth = seen[i].tolist()
        if depth < 1.0:
            continue
        scale = camera.scale(depth)
        x, foot = camera.centre + scale * right, camera.horizon + scale * camera.eye
        tall = height * rng.uniform(0.85, 1.25)
        if not -2 * tall * scale < x < camera.width + 2 * tall * scale:
            continue
        foliage(
            stage,
            x,
            foot - tall * 0.52 * scale,
            0.55 * tall * scale,
            0.55 * tall * scale,
            depth,
            vary(rng, leaves, 0.12),
            key,
            blobs=26,
        )
