"""Compare the panoptic fusion of a 1024 x 2048 image with a fusion of whole-image masks.

    python benchmarks/fusion.py [--rounds 7] [--threads N] [--device cuda] [--json FILE] [NAME ...]

100 detections, 19 classes. The plain way samples each mask over the whole image, N x H x W points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from timing import Case, boxes_of_scene, options, report
from torch import Tensor
from torch.nn import functional

from seamseg.models.fusion import fuse, to_result
from seamseg.ops.paste import paste_masks_into
from seamseg.ops.reference.paste import paste_masks_into as plain_form
from seamseg.structures import Prediction

HEIGHT, WIDTH, CLASSES, STUFF, COUNT = 1024, 2048, 19, 11, 100


def scene(device: str) -> Prediction:
    """Make overlapping detections of many sizes, and a smooth class map."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(COUNT, 1, 5, 5, generator=generator)
    masks = functional.interpolate(coarse, size=(28, 28), mode="bicubic")[:, 0] * 4
    classes = torch.randn(1, CLASSES, 16, 32, generator=generator)
    semantic = functional.interpolate(classes, size=(HEIGHT, WIDTH), mode="bicubic")[0].argmax(0)
    return Prediction(
        boxes_of_scene(COUNT, generator, 150, HEIGHT, WIDTH).to(device),
        torch.randint(0, CLASSES - STUFF, (COUNT,), generator=generator).to(device),
        (torch.rand(COUNT, generator=generator).sort(descending=True).values * 0.4 + 0.55).to(device),
        masks.to(device),
        semantic.to(device),
        (HEIGHT, WIDTH),
    )


def whole_picture(masks: Tensor, boxes: Tensor) -> tuple[Tensor, list[int]]:
    """Sample every mask over the whole image with the native kernel; return the id map and the masks on it."""
    ids = torch.zeros(HEIGHT, WIDTH, dtype=torch.long, device=masks.device)
    y = torch.arange(HEIGHT, device=masks.device) + 0.5
    x = torch.arange(WIDTH, device=masks.device) + 0.5
    kept: list[int] = []
    for number, (mask, box) in enumerate(zip(masks, boxes)):
        rows, columns = (2 * (y - box[0]) / (box[2] - box[0]) - 1, 2 * (x - box[1]) / (box[3] - box[1]) - 1)
        grid = torch.stack((columns.expand(HEIGHT, WIDTH), rows[:, None].expand(HEIGHT, WIDTH)), -1)
        plane = functional.grid_sample(mask.sigmoid()[None, None], grid[None], align_corners=False)
        pixels = plane[0, 0] > 0.5
        taken = pixels & (ids != 0)
        if pixels.any() and taken.sum() / pixels.sum() <= 0.5 and not torch.equal(taken, pixels):
            kept.append(number)
            ids[pixels & ~taken] = len(kept)
    return ids, kept


def plain_fusion(prediction: Prediction) -> np.ndarray:
    """Fuse with masks of the whole image."""
    assert prediction.mask_logits is not None and prediction.semantic is not None
    ids, kept = whole_picture(prediction.mask_logits, prediction.boxes)
    number = len(kept)
    for category in torch.unique(prediction.semantic).tolist():
        free = (prediction.semantic == category) & (ids == 0)
        if int(free.sum()) >= 4096:
            number += 1
            ids[free] = number
    return ids.cpu().numpy().astype(np.int32)


def cases(device: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name and the factory of each case."""

    def paste(name: str, peer: str) -> Case:
        p = scene(device)
        masks, boxes = p.mask_logits, p.boxes
        assert masks is not None

        def empty() -> Tensor:
            return torch.zeros(HEIGHT, WIDTH, dtype=torch.long, device=device)

        def ours() -> Tensor:
            paste_masks_into(ids := empty(), masks, boxes, 0.5)
            return ids

        def cropped() -> Tensor:
            plain_form(ids := empty(), masks.sigmoid(), boxes, 0.5, 1, False)
            return ids

        return Case(name, peer, ours, cropped if peer == "plain form" else lambda: whole_picture(masks, boxes)[0])

    def fusion(name: str) -> Case:
        p = scene(device)

        def ours() -> np.ndarray:
            return to_result(fuse(p, STUFF), (HEIGHT, WIDTH), STUFF).id_map

        return Case(name, "grid_sample, whole picture", ours, lambda: plain_fusion(p))

    name = f"paste_masks_into {COUNT} masks"
    for peer in ("plain form", "grid_sample, whole picture"):
        yield name, partial(paste, name, peer)
    yield "fuse + to_result", lambda: fusion("fuse + to_result")


def main() -> None:
    """Time the cases in turns and print a table."""
    arguments = options(__doc__).parse_args()
    report(cases(arguments.device), arguments)


if __name__ == "__main__":
    main()
