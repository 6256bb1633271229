"""A pinhole camera on a straight street.

World axes in metres: X across the street (0 = its middle), Y up (0 = the ground), Z along the street. The camera stands
at `(x, eye, 0)`, looks along the ground plane and turns by `yaw` from +Z towards +X; its horizon may lie at any height
of the picture (a shifted lens), so verticals stay vertical. Screen coordinates are canvas pixels, `(x, y)`, y down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

NEAR = 0.5
"""Nothing closer than this (metres) is drawn."""


@dataclass(frozen=True)
class Camera:
    """Where the picture is taken from; `width`, `height`, `focal`, `centre` and `horizon` are in canvas pixels."""

    width: int
    height: int
    focal: float
    centre: float
    horizon: float
    eye: float
    x: float
    yaw: float

    def to_camera(self, points: np.ndarray) -> np.ndarray:
        """`... x 3` world points as (right, height above the eye, depth)."""
        sin, cos = math.sin(self.yaw), math.cos(self.yaw)
        x, z = points[..., 0] - self.x, points[..., 2]
        return np.stack([x * cos - z * sin, points[..., 1] - self.eye, x * sin + z * cos], axis=-1)

    def ground_to_camera(self, x: float, z: float) -> tuple[float, float]:
        """(right, depth) of the ground point `(x, z)`."""
        sin, cos = math.sin(self.yaw), math.cos(self.yaw)
        return (x - self.x) * cos - z * sin, (x - self.x) * sin + z * cos

    def to_screen(self, points: np.ndarray) -> np.ndarray:
        """`... x 3` camera points, all in front of the camera, as `... x 2` pixels."""
        depth = points[..., 2]
        return np.stack(
            [self.centre + self.focal * points[..., 0] / depth, self.horizon - self.focal * points[..., 1] / depth],
            axis=-1,
        )

    def polygon(self, points: np.ndarray) -> np.ndarray | None:
        """Project a `K x 3` world polygon, clipped at the near plane: `M x 2` pixels, None if nothing is left."""
        inside = clip_near(self.to_camera(points))
        return None if inside is None else self.to_screen(inside)

    def scale(self, depth: float) -> float:
        """Pixels per metre at this depth."""
        return self.focal / depth

    def ground(self) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        """The ground seen by every pixel under the horizon.

        Returns
        -------
        first row; X, Z and depth (metres) of the pixels of the rows from there on, each `rows x width`
        """
        first = max(0, min(self.height - 1, math.floor(self.horizon) + 1))
        rows = np.arange(first, self.height, dtype=np.float32) + np.float32(0.5) - np.float32(self.horizon)
        columns = (np.arange(self.width, dtype=np.float32) + np.float32(0.5) - np.float32(self.centre)) / self.focal
        depth = np.minimum(self.focal * self.eye / np.maximum(rows, 0.25), 400.0)[:, None]
        sin, cos = math.sin(self.yaw), math.cos(self.yaw)
        x = self.x + depth * (columns[None] * cos + sin)
        z = depth * (cos - columns[None] * sin)
        return first, x.astype(np.float32), z.astype(np.float32), np.broadcast_to(depth, x.shape)


def clip_near(points: np.ndarray) -> np.ndarray | None:
    """The part of a `K x 3` camera-space polygon with depth >= NEAR (Sutherland-Hodgman), None if empty."""
    ahead = points[:, 2] >= NEAR
    if ahead.all():
        return points
    if not ahead.any():
        return None
    kept = []
    for i in range(len(points)):
        here, there = points[i], points[(i + 1) % len(points)]
        if ahead[i]:
            kept.append(here)
        if ahead[i] != ahead[(i + 1) % len(points)]:
            t = (NEAR - here[2]) / (there[2] - here[2])
            kept.append(here + t * (there - here))
    return np.array(kept) if len(kept) >= 3 else None
