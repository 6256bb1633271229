"""Lamp posts and signs (pole), bins and boxes (static), and the car the camera rides in (ego vehicle)."""

from __future__ import annotations

import math

import numpy as np

from seamseg.toy_city.canvas import Board, Stage
from seamseg.toy_city.textures import any_color, hsv


def lamp_post(stage: Stage, x: float, z: float, pole: int, static: int) -> None:
    """A stout post: a street lamp, or a sign whose plate is void (`static`)."""
    rng = stage.rng
    board = Board(stage, x, z, None, pole)
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
    """Something that stands about: a bin, a crate, a planter, an advertising board."""
    rng = stage.rng
    board = Board(stage, x, z, None, static)
    color = any_color(rng, 0.25, 0.85)
    w, h = rng.uniform(0.3, 0.6), rng.uniform(0.6, 1.3)
    board.shape([(-w, 0), (w, 0), (w * 1.1, h), (-w * 1.1, h)], color)
    board.shape([(w * 0.3, 0), (w, 0), (w * 1.1, h), (w * 0.3, h)], color * 0.75)
    board.shape([(-w * 1.15, h), (w * 1.15, h), (w, h + 0.12), (-w, h + 0.12)], color * 0.55)
    board.shape([(-w * 0.6, h * 0.45), (w * 0.6, h * 0.45), (w * 0.6, h * 0.7), (-w * 0.6, h * 0.7)], any_color(rng))


def bonnet(stage: Stage, key: int) -> None:
    """The bonnet of the camera's own car along the lower edge."""
    rng, camera, canvas = stage.rng, stage.camera, stage.canvas
    color = hsv(rng.random(), 0.5 * rng.random(), rng.uniform(0.05, 0.5))
    rise = rng.uniform(0.07, 0.13) * camera.height
    middle = camera.width * rng.uniform(0.45, 0.55)
    xs = np.linspace(-0.02 * camera.width, 1.02 * camera.width, 30)
    for lift, bright in ((1.0, 1.0), (0.72, 0.72), (0.35, 0.5)):
        ys = camera.height - rise * lift * np.cos((xs - middle) / camera.width * math.pi * 0.8)
        outline = [*zip(xs.tolist(), ys.tolist()), (camera.width * 1.02, camera.height), (0, camera.height)]
        canvas.polygon(outline, stage.light.shade(color * bright, np.array([0.0, 1.0, 0.0])), key)
