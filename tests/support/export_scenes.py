"""A small city with crowds and void, and a network that guesses: what the tests of exports write and read."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from seamseg.maps.formats.metadata import ImageInfo, Metadata, write_metadata
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.predictions import Prediction
from seamseg.structures import PackedSequence
from support.onnx_scenes import CLASSES
from support.predictors import StandIn

OBJECTS = [
    (3, 0.5, 0.05, 0.8, 0.35),
    (3, 0.45, 0.3, 0.6, 0.5),
    (3, 0.4, 0.75, 0.55, 0.98),
    (2, 0.3, 0.55, 0.7, 0.7),
    (2, 0.7, 0.4, 0.95, 0.5),
    (2, 0.7, 0.75, 0.97, 0.95),
]
"""Class and box `(y0, x0, y1, x1)` of each, in parts of the size; the third and the last may be crowds."""
CROWDS = (2, 5)


def street(size: tuple[int, int]) -> np.ndarray:
    """Ids of the scene: 0 void, 1 road, 2 sky, then the objects."""
    height, width = size
    ids = np.ones(size, np.int64)
    ids[: height // 2] = 2
    for number, (_, *box) in enumerate(OBJECTS):
        y0, x0, y1, x1 = (round(part * side) for part, side in zip(box, (height, width) * 2))
        ids[y0:y1, x0:x1] = 3 + number
    ids[-5:, :40] = 0
    return ids


def make_city(root: Path, crowds: bool = True, count: int = 3, classes: Metadata = CLASSES) -> Path:
    """A dataset folder of images of several sizes, `val` all of them; every class is in every image."""
    for folder in ("img", "msk", "lst"):
        (root / folder).mkdir(parents=True)
    rng = np.random.default_rng(7)
    cat = [VOID, 0, 1, *(category for category, *_ in OBJECTS)]
    iscrowd = [0, 0, 0, *(int(crowds and k in CROWDS) for k in range(len(OBJECTS)))]
    images = []
    for k in range(count):
        size = (64, 96) if k % 2 == 0 else (81, 70)
        name = f"bonn_{k:06d}_000019"
        Image.fromarray(rng.integers(0, 255, (*size, 3)).astype(np.uint8)).save(root / "img" / f"{name}.png")
        Image.fromarray(street(size).astype(np.uint8)).save(root / "msk" / f"{name}.png")
        images.append(ImageInfo(name, cat, size, iscrowd))
    (root / "lst" / "val.txt").write_text("".join(f"{i.id}\n" for i in images))
    write_metadata(root / "metadata.bin", Metadata(**{**vars(classes), "images": images}))
    return root


class Guesser(StandIn):
    """Knows the street more or less: boxes that are a little off, a few too many, and semantic classes with noise.

    The same image gets the same guess.
    """

    def predict(self, images: PackedSequence, least_score: float = 0.0) -> list[Prediction]:
        return [self._guess(image) for image in images]

    def _guess(self, image: torch.Tensor) -> Prediction:
        size = int(image.shape[1]), int(image.shape[2])
        rng = np.random.default_rng(int(image.double().abs().sum() * 10) % 2**31)
        chosen = [*range(len(OBJECTS)), 1, 3]
        boxes = np.array([OBJECTS[k][1:] for k in chosen]) + rng.normal(0, 0.015, (len(chosen), 4))
        scores = np.sort(rng.uniform(0.4, 1, len(chosen)))[::-1].copy()
        masks = np.full((len(chosen), 28, 28), 2.0)
        masks[:, :4, :6] = -2.0
        semantic = np.array([0, 0, 1, *(category for category, *_ in OBJECTS)])[street(size)]
        for category in range(4):
            y, x = (int(rng.integers(0, side - 12)) for side in size)
            semantic[y : y + 9, x : x + 11] = category
        return Prediction(
            torch.from_numpy(boxes * (*size, *size)).float(),
            torch.tensor([OBJECTS[k][0] - 2 for k in chosen]),
            torch.from_numpy(scores).float(),
            torch.from_numpy(masks).float(),
            torch.from_numpy(semantic),
            size,
        )
