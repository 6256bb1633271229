"""People on foot, bicycles, and people on bicycles."""

from __future__ import annotations

import math

import numpy as np

from seamseg.maps.toy_city.canvas import Billboard, Stage
from seamseg.maps.toy_city.textures import Rng, any_color, hsv


def skin_color(rng: Rng) -> np.ndarray:
    """Sample a skin colour."""
    return hsv(rng.uniform(0.03, 0.09), rng.uniform(0.25, 0.6), rng.uniform(0.35, 0.95))


def hair_color(rng: Rng) -> np.ndarray:
    """Sample a hair colour: black to blond to grey, sometimes dyed."""
    if rng.random() < 0.1:
        return any_color(rng)
    return hsv(rng.uniform(0.03, 0.13), rng.uniform(0.05, 0.6), rng.uniform(0.08, 0.75))


def person(stage: Stage, x: float, z: float, height: float, key: int) -> None:
    """Paint a standing or walking person in any direction, with clothes of any colour."""
    rng = stage.rng
    board = Billboard(stage, x, z, None, key)
    board.mirror = float(rng.choice([-1, 1]))
    s = height / 1.75
    build = rng.uniform(0.9, 1.2)
    top, trousers, skin = any_color(rng), any_color(rng, 0.1, 0.8), skin_color(rng)
    shoes, hair = any_color(rng, 0.1, 0.6, 0.5), hair_color(rng)
    sideways = rng.random() < 0.55
    stride = rng.uniform(0.06, 0.34) if sideways else rng.uniform(0.05, 0.14)
    bend = rng.uniform(0, 0.08) if sideways else 0.0
    hip, shoulder, neck = 0.88 * s, 1.40 * s, 1.47 * s
    half = (0.13 if sideways else 0.19) * s * build

    leg = 0.15 * s * build
    for sign, shade in ((-1, 0.72), (1, 1.0)):
        knee = (sign * stride * 0.5 + bend, 0.48 * s)
        foot = (sign * stride - (0.05 * s if sign < 0 else 0), 0.07 * s)
        root = (sign * half * (0.2 if sideways else 0.5), hip)
        board.limb([root, knee, foot], leg, trousers * shade)
        board.limb([foot, (foot[0] + 0.09 * s, 0.05 * s)], 0.10 * s, shoes * shade)

    swing = rng.uniform(-0.3, 0.3) if sideways else rng.uniform(0.02, 0.16)
    arm = 0.105 * s * build
    root = (0.0, shoulder - 0.06 * s) if sideways else (half, shoulder - 0.06 * s)
    elbow_v, hand_v = 1.12 * s, rng.choice([0.85, 0.9, 1.2]) * s
    sleeve = skin if rng.random() < 0.3 else top * 0.8

    def draw_arm(sign: float, shade: float) -> None:
        r = (root[0] * sign, root[1])
        elbow = (r[0] + sign * abs(swing) * 0.45 + sign * 0.03, elbow_v)
        hand = (r[0] + sign * abs(swing) + sign * 0.02, hand_v)
        board.limb([r, elbow], arm, top * 0.85 * shade)
        board.limb([elbow, hand], arm * 0.85, sleeve * shade)
        board.ball(*hand, 0.055 * s, skin * shade)

    draw_arm(-1.0, 0.75)
    long_coat = rng.random() < 0.3
    low = (0.55 if long_coat else 0.84) * s
    flare = 1.35 if long_coat else 1.0
    left = [(-half * 0.5, neck), (-half * 1.1, shoulder)]
    board.shape([(-half * flare, low), (half * flare, low), (half * 1.1, shoulder), (half * 0.5, neck), *left], top)
    board.ball(0, shoulder - 0.03 * s, half * 1.08, top, tall=0.5)
    board.shape([(half * 0.25, low), (half * flare, low), (half * 1.1, shoulder), (half * 0.25, shoulder)], top * 0.82)
    _luggage(board, rng, s, half, -1.0 if sideways else 0.0)
    draw_arm(1.0, 1.0)
    _head(board, rng, 0.0, 1.58 * s, 0.125 * s, skin, hair, helmet=False)


def _luggage(board: Billboard, rng: Rng, s: float, half: float, side: float) -> None:
    kind = rng.random()
    if kind < 0.25:
        board.limb([(side * half * 1.1, 1.28 * s), (side * half * 1.1, 1.02 * s)], 0.24 * s, any_color(rng))
    elif kind < 0.4:
        u = half + 0.12
        board.shape(
            [(u - 0.16, 0.5 * s), (u + 0.16, 0.5 * s), (u + 0.13, 0.8 * s), (u - 0.13, 0.8 * s)], any_color(rng)
        )


def _head(
    board: Billboard, rng: Rng, u: float, v: float, r: float, skin: np.ndarray, hair: np.ndarray, helmet: bool
) -> None:
    board.limb([(u, v - r * 1.6), (u, v)], r * 0.9, skin * 0.85)
    if helmet:
        board.ball(u, v, r, skin, tall=1.12)
        color = any_color(rng, 0.4, 0.95)
        board.shape(
            [(u + 1.2 * r * math.cos(a), v + 0.15 * r + 1.2 * r * math.sin(a)) for a in np.linspace(0, math.pi, 9)],
            color,
        )
        return
    behind = rng.random() < 0.3
    if rng.random() < 0.4:  # long hair
        board.limb([(u - r * 0.3, v + r * 0.2), (u - r * 0.4, v - r * 1.2)], r * 1.9, hair)
    board.ball(u, v + r * 0.12, r * 1.08, hair, tall=1.12)
    if not behind:
        board.ball(u + r * 0.2, v - r * 0.12, r * 0.86, skin, tall=1.1)
    if rng.random() < 0.2:
        hat = any_color(rng)
        board.limb([(u - r, v + r * 0.55), (u + r * 1.2, v + r * 0.55)], r * 0.45, hat)
        board.ball(u, v + r * 0.8, r * 0.85, hat, tall=0.8)


WHEEL = 0.36
BASE = 0.56
"""Wheel radius and half the wheelbase of a bicycle in metres."""


def bicycle(stage: Stage, x: float, z: float, heading: float, key: int) -> None:
    """Paint a bicycle; its label covers the gaps in wheels and frame, as in Cityscapes."""
    rng = stage.rng
    board = Billboard(stage, x, z, heading, key)
    frame, tyre = any_color(rng, 0.2, 0.95), hsv(0.1, 0.1, rng.uniform(0.08, 0.3))
    thick = 0.085
    rear, front = [(-BASE, WHEEL), (-BASE, 1.8 * WHEEL)], [(BASE, 1.8 * WHEEL), (BASE, WHEEL)]
    outline = [*rear, (-0.32, 0.93), (0.44, 1.04), *front, (0, 0.2)]
    board.shape(outline, None)
    angles = np.linspace(0, math.tau, 19)
    for u in (-BASE, BASE):
        ring = [(u + WHEEL * math.cos(a), WHEEL + WHEEL * math.sin(a)) for a in angles]
        board.shape(ring, None)
        spoke = np.full(3, 150.0)
        for a in np.linspace(0, math.pi, 5)[:-1] + 0.3:
            c, s = WHEEL * math.cos(a), WHEEL * math.sin(a)
            board.limb([(u - c, WHEEL - s), (u + c, WHEEL + s)], 0.02, spoke)
        board.limb(ring, thick, tyre)
    crank, seat, head = (-0.06, 0.32), (-0.2, 0.86), (0.4, 0.84)
    for chain in (
        [(-BASE, WHEEL), crank, head],
        [(-BASE, WHEEL), (-0.17, 0.74), (0.38, 0.76)],
        [crank, seat],
        [(BASE, WHEEL), (0.36, 0.98)],
    ):
        board.limb(chain, thick, frame)
    board.limb([(-0.32, 0.9), (-0.1, 0.9)], 0.09, np.full(3, 35.0))
    board.limb([(0.36, 0.98), (0.3, 1.02), (0.44, 1.03)], 0.05, np.full(3, 45.0))
    if rng.random() < 0.35:  # a basket
        board.shape([(0.46, 0.72), (0.78, 0.72), (0.82, 0.98), (0.44, 0.98)], any_color(rng, 0.3, 0.7))


def rider(stage: Stage, x: float, z: float, heading: float, key: int) -> None:
    """Paint a rider that fits the bicycle of the same position and heading."""
    rng = stage.rng
    board = Billboard(stage, x, z, heading, key)
    top, trousers, skin = any_color(rng), any_color(rng, 0.1, 0.8), skin_color(rng)
    lean = rng.uniform(0.05, 0.3)
    hip, shoulder = (-0.2, 0.98), (-0.1 + lean, 1.48 - lean * 0.3)
    phase = rng.uniform(0, math.tau)

    def leg(turn: float, shade: float) -> None:
        foot = (-0.06 + 0.16 * math.cos(turn), 0.3 + 0.16 * math.sin(turn))
        knee = (0.16 + 0.05 * math.cos(turn), 0.68 + 0.1 * math.sin(turn))
        board.limb([hip, knee, foot], 0.17, trousers * shade)
        board.limb([foot, (foot[0] + 0.14, foot[1] - 0.02)], 0.11, np.full(3, 60.0) * shade)

    leg(phase + math.pi, 0.7)
    board.limb([shoulder, (0.2, 1.18), (0.36, 1.05)], 0.11, top * 0.7)
    board.limb([hip, shoulder], 0.34, top)
    board.limb([(hip[0] + 0.07, hip[1] + 0.05), (shoulder[0] + 0.08, shoulder[1] - 0.04)], 0.16, top * 0.85)
    if rng.random() < 0.25:
        board.limb([(shoulder[0] - 0.24, shoulder[1] - 0.08), (hip[0] - 0.14, hip[1] + 0.2)], 0.22, any_color(rng))
    leg(phase, 1.0)
    board.limb([(shoulder[0] + 0.03, shoulder[1] - 0.05), (0.22, 1.2), (0.38, 1.06)], 0.12, top * 0.9)
    board.ball(0.38, 1.06, 0.06, skin)
    _head(
        board, rng, shoulder[0] + 0.05, shoulder[1] + 0.27, 0.13, skin, hair_color(rng), helmet=bool(rng.random() < 0.6)
    )
