"""Where a scene is painted: a photo and its labels side by side, both larger than the final picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image, ImageDraw

from seamseg.toy_city.camera import NEAR, Camera
from seamseg.toy_city.lighting import Color, Light
from seamseg.toy_city.textures import Rng

SUPERSAMPLING = 2
"""The canvas has this many pixels per final pixel along each axis: the photo is averaged, the labels are picked."""

Points = Sequence[tuple[float, float]]


class Canvas:
    """Photo and labels of `width x height` canvas pixels; a drawing call paints the labels too, with the given key."""

    def __init__(self, base: np.ndarray, labels: np.ndarray, keys: list[int]) -> None:
        self.photo = Image.fromarray(base)
        self.labels = Image.fromarray(labels)
        self._photo = ImageDraw.Draw(self.photo)
        self._labels = ImageDraw.Draw(self.labels)
        self._ids = keys
        self.glows: list[tuple[float, float, float, Color]] = []

    def key(self, official_id: int) -> int:
        """The key (1-255) that stands for an official id in the drawing calls."""
        if official_id not in self._ids:
            self._ids.append(official_id)
        return self._ids.index(official_id)

    def polygon(self, points: Points, color: Color | None, key: int | None) -> None:
        """Fill a polygon; `color` None leaves the photo alone, `key` None the labels."""
        if color is not None:
            self._photo.polygon(points, fill=color)
        if key is not None:
            self._labels.polygon(points, fill=key)

    def disc(self, x: float, y: float, rx: float, ry: float, color: Color | None, key: int | None) -> None:
        """Fill an upright ellipse."""
        box = (x - rx, y - ry, x + rx, y + ry)
        if color is not None:
            self._photo.ellipse(box, fill=color)
        if key is not None:
            self._labels.ellipse(box, fill=key)

    def stroke(self, points: Points, width: float, color: Color | None, key: int | None) -> None:
        """A line with round joints and ends."""
        w = max(1, round(width))
        for draw, fill in ((self._photo, color), (self._labels, key)):
            if fill is None:
                continue
            draw.line(points, fill=fill, width=w)
            if w > 2:
                r = w / 2 - 0.5
                for x, y in points:
                    draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)

    def glow(self, x: float, y: float, radius: float, color: Color) -> None:
        """A soft light, added when the picture is developed."""
        self.glows.append((x / SUPERSAMPLING, y / SUPERSAMPLING, radius / SUPERSAMPLING, color))

    def final_photo(self) -> np.ndarray:
        """The averaged photo, float32."""
        return np.asarray(self.photo.reduce(SUPERSAMPLING)).astype(np.float32)

    def final_ids(self) -> np.ndarray:
        """The picked labels as official ids, uint16."""
        table = np.array(self._ids, np.uint16)
        middle = SUPERSAMPLING // 2
        return table[np.asarray(self.labels)[middle::SUPERSAMPLING, middle::SUPERSAMPLING]]


class Stage:
    """Camera, light and canvas together: paints shaded faces that are given in the world."""

    def __init__(self, camera: Camera, light: Light, canvas: Canvas, rng: Rng) -> None:
        self.camera = camera
        self.light = light
        self.canvas = canvas
        self.rng = rng
        self.eye = np.array([camera.x, camera.eye, 0.0])

    def face(self, points: np.ndarray, color, normal: np.ndarray | None, key: int | None) -> None:
        """A flat `K x 3` face of one base colour."""
        screen = self.camera.polygon(points)
        if screen is None:
            return
        depth = float(self.camera.to_camera(points)[:, 2].mean())
        shown = None if color is None else self.light.shade(color, normal, max(depth, 0.0))
        self.canvas.polygon(list(map(tuple, screen.tolist())), shown, key)

    def quads(self, points: np.ndarray, colors: Iterable, normal: np.ndarray | None, key: int | None = None) -> None:
        """Many `K x 4 x 3` faces at once (details of a facade); those that reach behind the camera are left out."""
        seen = self.camera.to_camera(points)
        ahead = (seen[..., 2] > NEAR).all(axis=1)
        seen[~ahead, :, 2] = 1.0
        screen = self.camera.to_screen(seen)
        inside = ahead & (screen[..., 0].max(1) > 0) & (screen[..., 0].min(1) < self.camera.width)
        for quad, depth, color, show in zip(screen.tolist(), seen[..., 2].mean(1), colors, inside):
            if show:
                shown = self.light.shade(color, normal, float(depth))
                self.canvas.polygon(list(map(tuple, quad)), shown, key)

    def faces_camera(self, point: np.ndarray, normal: np.ndarray) -> bool:
        """True if a face through `point` shows its front."""
        return bool((self.eye - point) @ normal > 0)


class Board:
    """A flat upright drawing in the world, given in metres: `u` along its direction, `v` up from the ground.

    `heading` is the world direction of +u as an angle from +Z towards +X; None turns the board to the camera.
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
        """Screen position of a point of the board."""
        camera = self.stage.camera
        u *= self.mirror
        depth = max(self._depth + u * self._step[1], NEAR)
        return (
            camera.centre + camera.focal * (self._right + u * self._step[0]) / depth,
            camera.horizon + camera.focal * (camera.eye - v) / depth,
        )

    def shade(self, color) -> Color:
        """The colour as the scene's light shows it at the board's depth."""
        return self.stage.light.shade(color, None, self._depth)

    def limb(self, points: Points, width: float, color) -> None:
        """A chain of round-ended strokes, `width` in metres."""
        shown = None if color is None else self.shade(color)
        self.stage.canvas.stroke([self.at(*p) for p in points], width * self.scale, shown, self.key)

    def shape(self, points: Points, color) -> None:
        """A filled polygon."""
        shown = None if color is None else self.shade(color)
        self.stage.canvas.polygon([self.at(*p) for p in points], shown, self.key)

    def ball(self, u: float, v: float, radius: float, color, tall: float = 1.0) -> None:
        """A disc seen flat from anywhere; `tall` stretches it."""
        x, y = self.at(u, v)
        r = radius * self.scale
        self.stage.canvas.disc(x, y, r, r * tall, self.shade(color), self.key)
