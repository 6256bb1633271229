"""The camera and the canvas that a scene is painted on: image and labels, both larger than the final image.

World axes in metres: X across the street (0 = its middle), Y up (0 = the ground), Z along the street. The camera is at
`(x, eye, 0)`, points along the ground plane and is turned by `yaw` from +Z towards +X; its horizon may be at any height
of the image (a shifted lens), so verticals stay vertical. Screen coordinates are canvas pixels, `(x, y)`, y down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from seamseg.maps.toy_city.lighting import Color, Light
from seamseg.maps.toy_city.textures import Rng

NEAR = 0.5
"""Distance of the near plane in metres."""


@dataclass(frozen=True)
class Camera:
    """A pinhole camera; `width`, `height`, `focal`, `centre` and `horizon` are in canvas pixels."""

    width: int
    height: int
    focal: float
    centre: float
    horizon: float
    eye: float
    x: float
    yaw: float

    def to_camera(self, points: np.ndarray) -> np.ndarray:
        """Convert `... x 3` world points to (right, height above the eye, depth)."""
        sin, cos = math.sin(self.yaw), math.cos(self.yaw)
        x, z = points[..., 0] - self.x, points[..., 2]
        return np.stack([x * cos - z * sin, points[..., 1] - self.eye, x * sin + z * cos], axis=-1)

    def ground_to_camera(self, x: float, z: float) -> tuple[float, float]:
        """Return (right, depth) of the ground point `(x, z)`."""
        sin, cos = math.sin(self.yaw), math.cos(self.yaw)
        return (x - self.x) * cos - z * sin, (x - self.x) * sin + z * cos

    def to_screen(self, points: np.ndarray) -> np.ndarray:
        """Project `... x 3` camera points, all in front of the camera, to `... x 2` pixels."""
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
        """Return pixels per metre at a depth."""
        return self.focal / depth

    def ground(self) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        """Return the ground points of the pixels below the horizon.

        These are the first row, X and Z (metres) of the pixels from there on, `rows x width`, and depth, `rows x 1`.
        """
        first = max(0, min(self.height - 1, math.floor(self.horizon) + 1))
        rows = np.arange(first, self.height, dtype=np.float32) + np.float32(0.5) - np.float32(self.horizon)
        columns = (np.arange(self.width, dtype=np.float32) + np.float32(0.5) - np.float32(self.centre)) / self.focal
        depth = np.minimum(self.focal * self.eye / np.maximum(rows, 0.25), 400.0)[:, None]
        sin, cos = math.sin(self.yaw), math.cos(self.yaw)
        x = self.x + depth * (columns[None] * cos + sin)
        z = depth * (cos - columns[None] * sin)
        return first, x.astype(np.float32), z.astype(np.float32), depth


def clip_near(points: np.ndarray) -> np.ndarray | None:
    """Clip a `K x 3` camera-space polygon to depth >= NEAR (Sutherland-Hodgman); None if nothing is left."""
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


SUPERSAMPLING = 2
"""Canvas pixels per final pixel along each axis: the image is averaged, the labels are subsampled."""

Points = Sequence[tuple[float, float]]


class Canvas:
    """Image and labels of `width x height` canvas pixels; each drawing call paints both, the labels with a key."""

    def __init__(self, base: np.ndarray, labels: np.ndarray, keys: list[int]) -> None:
        self.image = Image.fromarray(base)
        self.labels = Image.fromarray(labels)
        self._image = ImageDraw.Draw(self.image)
        self._labels = ImageDraw.Draw(self.labels)
        self._ids = keys
        self.glows: list[tuple[float, float, float, Color]] = []

    def key(self, official_id: int) -> int:
        """Return the key (1-255) of an official id for the drawing calls."""
        if official_id not in self._ids:
            self._ids.append(official_id)
        return self._ids.index(official_id)

    def _changed(self, color: Color | None, key: int | None) -> Iterator[tuple[ImageDraw.ImageDraw, Any]]:
        """Iterate over image and labels with what to draw; `color` None does not change one, `key` None the other."""
        return ((draw, fill) for draw, fill in ((self._image, color), (self._labels, key)) if fill is not None)

    def polygon(self, points: Points, color: Color | None, key: int | None) -> None:
        """Fill a polygon."""
        for draw, fill in self._changed(color, key):
            draw.polygon(points, fill=fill)

    def disc(self, x: float, y: float, rx: float, ry: float, color: Color | None, key: int | None) -> None:
        """Fill an upright ellipse."""
        for draw, fill in self._changed(color, key):
            draw.ellipse((x - rx, y - ry, x + rx, y + ry), fill=fill)

    def stroke(self, points: Points, width: float, color: Color | None, key: int | None) -> None:
        """Draw a line with round joints and ends."""
        w = max(1, round(width))
        for draw, fill in self._changed(color, key):
            draw.line(points, fill=fill, width=w)
            if w > 2:
                r = w / 2 - 0.5
                for x, y in points:
                    draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)

    def glow(self, x: float, y: float, radius: float, color: Color) -> None:
        """Add a soft light, which is applied to the final image."""
        self.glows.append((x / SUPERSAMPLING, y / SUPERSAMPLING, radius / SUPERSAMPLING, color))

    def final_image(self) -> np.ndarray:
        """Return the averaged image, float32."""
        return np.asarray(self.image.reduce(SUPERSAMPLING)).astype(np.float32)

    def final_ids(self) -> np.ndarray:
        """Return the subsampled labels as official ids, uint16."""
        table = np.array(self._ids, np.uint16)
        middle = SUPERSAMPLING // 2
        return table[np.asarray(self.labels)[middle::SUPERSAMPLING, middle::SUPERSAMPLING]]


class Stage:
    """Camera, light and canvas together: paints shaded faces given in world coordinates."""

    def __init__(self, camera: Camera, light: Light, canvas: Canvas, rng: Rng) -> None:
        self.camera = camera
        self.light = light
        self.canvas = canvas
        self.rng = rng
        self.eye = np.array([camera.x, camera.eye, 0.0])

    def face(self, points: np.ndarray, color, normal: np.ndarray | None, key: int | None) -> None:
        """Paint a flat `K x 3` face of one base colour."""
        screen = self.camera.polygon(points)
        if screen is None:
            return
        depth = float(self.camera.to_camera(points)[:, 2].mean())
        shown = None if color is None else self.light.shade(color, normal, max(depth, 0.0))
        self.canvas.polygon(list(map(tuple, screen.tolist())), shown, key)

    def quads(self, points: np.ndarray, colors: Iterable, normal: np.ndarray) -> None:
        """Paint details of a facade, `K x 4 x 3`, except those that reach behind the camera; the labels stay."""
        in_camera = self.camera.to_camera(points)
        ahead = (in_camera[..., 2] > NEAR).all(axis=1)
        in_camera[~ahead, :, 2] = 1.0
        screen = self.camera.to_screen(in_camera)
        inside = ahead & (screen[..., 0].max(1) > 0) & (screen[..., 0].min(1) < self.camera.width)
        for quad, depth, color, show in zip(screen.tolist(), in_camera[..., 2].mean(1), colors, inside):
            if show:
                shown = self.light.shade(color, normal, float(depth))
                self.canvas.polygon(list(map(tuple, quad)), shown, None)

    def faces_camera(self, point: np.ndarray, normal: np.ndarray) -> bool:
        """Return whether the front of a face through `point` is visible."""
        return bool((self.eye - point) @ normal > 0)


class Billboard:
    """A flat upright drawing in the world, in metres: `u` along its direction, `v` up from the ground.

    `heading` is the world direction of +u as an angle from +Z towards +X; None turns it to the camera.
    """

    def __init__(self, stage: Stage, x: float, z: float, heading: float | None, key: int) -> None:
        camera = stage.camera
        self.stage, self.key = stage, key
        self._right, self._depth = camera.ground_to_camera(x, z)
        if heading is None:
            self._step = (1.0, 0.0)
        else:
            ahead = camera.ground_to_camera(x + float(np.sin(heading)), z + float(np.cos(heading)))
            self._step = (ahead[0] - self._right, ahead[1] - self._depth)
        self.scale = camera.scale(self._depth)
        self.mirror = 1.0

    def at(self, u: float, v: float) -> tuple[float, float]:
        """Return the screen position of a point."""
        camera = self.stage.camera
        u *= self.mirror
        depth = max(self._depth + u * self._step[1], NEAR)
        return (
            camera.centre + camera.focal * (self._right + u * self._step[0]) / depth,
            camera.horizon + camera.focal * (camera.eye - v) / depth,
        )

    def shade(self, color) -> Color | None:
        """Return a colour lit by the scene's light at the depth of the billboard; None for None."""
        return None if color is None else self.stage.light.shade(color, None, self._depth)

    def limb(self, points: Points, width: float, color) -> None:
        """Draw a chain of round-ended strokes, `width` in metres."""
        self.stage.canvas.stroke([self.at(*p) for p in points], width * self.scale, self.shade(color), self.key)

    def shape(self, points: Points, color) -> None:
        """Draw a filled polygon."""
        self.stage.canvas.polygon([self.at(*p) for p in points], self.shade(color), self.key)

    def ball(self, u: float, v: float, radius: float, color, tall: float = 1.0) -> None:
        """Draw a disc that faces the camera; `tall` stretches it."""
        x, y = self.at(u, v)
        r = radius * self.scale
        self.stage.canvas.disc(x, y, r, r * tall, self.shade(color), self.key)
