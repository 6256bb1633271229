"""The painter's order of objects that stand close together."""

from __future__ import annotations

import math

import numpy as np

from .camera import Camera
from .layout import Item


def painting_order(camera: Camera, items: list[Item]) -> list[int]:
    """Indices of the items so that whatever hides another comes after it.

    The centre of a long vehicle may be farther away than someone who stands behind its bonnet, so depth alone does not
    do: two upright boxes on the ground are parted by a side of one of them, and the box on the camera's side of it is
    the one in front. Where nothing parts them, the farther centre comes first, then the earlier item.
    """
    count = len(items)
    depths = [camera.ground_to_camera(item.pose.x, item.pose.z)[1] for item in items]
    bases = [_base(item) for item in items]
    eye = np.array([camera.x, 0.0])
    may_hide = [[not _is_clear_of(bases[a], bases[b], eye) for b in range(count)] for a in range(count)]
    left = sorted(range(count), key=lambda i: (-depths[i], i))
    order = []
    while left:
        free = (a for a in left if not any(may_hide[a][b] and not may_hide[b][a] for b in left if b != a))
        order.append(next(free, left[0]))
        left.remove(order[-1])
    return order


def _base(item: Item) -> np.ndarray:
    """`4 x 2` corners (X, Z) of the ground an item takes up, in turn."""
    length, width, _ = item.size
    sin, cos = math.sin(item.pose.heading), math.cos(item.pose.heading)
    ahead, right = np.array([sin, cos]) * length / 2, np.array([cos, -sin]) * width / 2
    middle = np.array([item.pose.x, item.pose.z])
    return middle + np.array([ahead + right, ahead - right, -ahead - right, -ahead + right])


def _is_clear_of(one: np.ndarray, other: np.ndarray, eye: np.ndarray) -> bool:
    """True if a side of one of two boxes parts them with the eye on the side of `other`: `one` cannot hide it."""
    for box, rest, is_one in ((one, other, True), (other, one, False)):
        middle = box.mean(0)
        for i in range(4):
            corner, normal = box[i], (box[i] + box[(i + 1) % 4]) / 2 - middle
            outside = bool((eye - corner) @ normal > 0)
            if outside == is_one and ((rest - corner) @ normal > -1e-3).all():
                return True
    return False
