"""Street furniture (lamp posts, signs, bins, the bonnet of the ego vehicle) and vegetation (trees, hedges)."""

from __future__ import annotations

import math

import numpy as np

from seamseg.maps.toy_city.canvas import Billboard, Stage
from seamseg.maps.toy_city.textures import any_color, foliage_color, hsv, vary


def lamp_post(stage: Stage, x: float, z: float, pole: int, static: int) -> None:
    """Paint a thick post: a street lamp, or a sign whose plate is void (`static`)."""
    rng = stage.rng
    board = Billboard(stage, x, z, None, pole)
    color = hsv(rng.random(), rng.uniform(0, 0.4), rng.uniform(0.2, 0.7))
    width = rng.uniform(0.36, 0.52)
    height = rng.uniform(3.8, 5.6)
    half = width / 2
    board.shape([(-half * 1.6, 0), (half * 1.6, 0), (half * 1.5, 0.5), (-half * 1.5, 0.5)], color * 0.8)
    board.shape([(-half, 0), (half, 0), (half * 0.85, height), (-half * 0.85, height)], color)
    board.shape([(half * 0.2, 0), (half, 0), (half * 0.85, height), (half * 0.2, height)], color * 0.7)
    bands = any_color(rng, 0.15, 0.95)
    for low in np.arange(rng.uniform(0.5, 0.8), height - 0.6, rng.uniform(0.5, 0.9)):
        board.shape([(-half, low), (half, low), (half, low + 0.25), (-half, low + 0.25)], bands)
    kind = rng.random()
    if kind < 0.5:
        reach = rng.choice([-1.0, 1.0]) * rng.uniform(0.6, 1.3)
        board.limb([(0, height - 0.1), (reach, height)], width * 0.7, color)
        lamp = np.array([255.0, 240, 200]) if stage.light.night else color * 0.6
        board.ball(reach, height - 0.05, 0.3, lamp, tall=0.6)
        glow_at = board.at(reach, height - 0.1)
    elif kind < 0.75:
        lamp = np.array([255.0, 240, 200]) * (2 if stage.light.night else 0.9)
        board.ball(0, height, 0.38, lamp)
        glow_at = board.at(0, height)
    else:
        board.key = static
        plate, mark = any_color(rng, 0.3, 0.95), any_color(rng, 0.3, 0.95)
        low = height - rng.uniform(0.2, 1.2)
        if rng.random() < 0.5:
            board.ball(0, low, 0.45, plate)
            board.ball(0, low, 0.3, mark)
        else:
            board.shape([(-0.5, low - 0.35), (0.5, low - 0.35), (0.5, low + 0.35), (-0.5, low + 0.35)], plate)
            board.shape([(-0.38, low - 0.1), (0.38, low - 0.1), (0.38, low + 0.1), (-0.38, low + 0.1)], mark)
        return
    if stage.light.night:
        stage.canvas.glow(*glow_at, board.scale * 2.2, (110, 95, 60))


def bin_or_box(stage: Stage, x: float, z: float, static: int) -> None:
    """Paint a bin, a crate, a planter or an advertising board."""
    rng = stage.rng
    board = Billboard(stage, x, z, None, static)
    color = any_color(rng, 0.25, 0.85)
    w, h = rng.uniform(0.3, 0.6), rng.uniform(0.6, 1.3)
    board.shape([(-w, 0), (w, 0), (w * 1.1, h), (-w * 1.1, h)], color)
    board.shape([(w * 0.3, 0), (w, 0), (w * 1.1, h), (w * 0.3, h)], color * 0.75)
    board.shape([(-w * 1.15, h), (w * 1.15, h), (w, h + 0.12), (-w, h + 0.12)], color * 0.55)
    board.shape([(-w * 0.6, h * 0.45), (w * 0.6, h * 0.45), (w * 0.6, h * 0.7), (-w * 0.6, h * 0.7)], any_color(rng))


def bonnet(stage: Stage, key: int) -> None:
    """Paint the bonnet of the ego vehicle along the lower edge."""
    rng, camera, canvas = stage.rng, stage.camera, stage.canvas
    color = hsv(rng.random(), 0.5 * rng.random(), rng.uniform(0.05, 0.5))
    rise = rng.uniform(0.07, 0.13) * camera.height
    middle = camera.width * rng.uniform(0.45, 0.55)
    xs = np.linspace(-0.02 * camera.width, 1.02 * camera.width, 30)
    for lift, bright in ((1.0, 1.0), (0.72, 0.72), (0.35, 0.5)):
        ys = camera.height - rise * lift * np.cos((xs - middle) / camera.width * math.pi * 0.8)
        outline = [*zip(xs.tolist(), ys.tolist()), (camera.width * 1.02, camera.height), (0, camera.height)]
        canvas.polygon(outline, stage.light.shade(color * bright, np.array([0.0, 1.0, 0.0])), key)


def foliage(
    stage: Stage,
    centre: tuple[float, float],
    radii: tuple[float, float],
    depth: float,
    color: np.ndarray,
    key: int,
    blobs: int = 60,
) -> None:
    """Paint a leafy ellipse on the canvas: dark blobs behind, light ones towards the sun."""
    rng, camera = stage.rng, stage.camera
    (x, y), (rx, ry) = centre, radii
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
    """Paint a street tree at ground point `(x, z)`; `crown` is the radius of its crown, all in metres."""
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
            foliage(stage, (sx, y), (crown * scale * part, crown * 0.45 * scale), depth, leaves, key, blobs=16)
    else:
        blobs = 40 + int(min(80, crown * scale))
        squash = rng.uniform(0.8, 1.15)
        centre = (sx, foot - (height - crown) * scale - crown * 0.4 * scale)
        foliage(stage, centre, (crown * scale, crown * scale * squash), depth, leaves, key, blobs)


def hedge(stage: Stage, start: np.ndarray, end: np.ndarray, height: float, key: int) -> None:
    """Paint a hedge between two ground points (world, Y = 0), with bushes on top."""
    rng, camera = stage.rng, stage.camera
    leaves = foliage_color(rng)
    up = np.array([0.0, height, 0.0])
    normal = np.array([-math.copysign(1.0, start[0]), 0.0, 0.0])
    stage.face(np.array([start, end, end + up, start + up]), leaves * 0.75, normal * 0.5, key)
    steps = max(2, int(np.linalg.norm(end - start) / (0.55 * height + 0.3)))
    order = np.linspace(0, 1, steps)
    spots = start + (end - start) * order[:, None]
    in_camera = camera.to_camera(spots)
    for i in np.argsort(-in_camera[:, 2], kind="stable"):
        right, _, depth = in_camera[i].tolist()
        if depth < 1.0:
            continue
        scale = camera.scale(depth)
        x, foot = camera.centre + scale * right, camera.horizon + scale * camera.eye
        tall = height * rng.uniform(0.85, 1.25)
        if not -2 * tall * scale < x < camera.width + 2 * tall * scale:
            continue
        radius = 0.55 * tall * scale
        centre = (x, foot - tall * 0.52 * scale)
        foliage(stage, centre, (radius, radius), depth, vary(rng, leaves, 0.12), key, blobs=26)
