"""Compare NMS and matching of boxes with torchvision and plain torch, at the sizes of a 1024 x 2048 image.

    python benchmarks/boxes.py [--rounds 7] [--threads N] [--device cuda] [--json FILE] [NAME ...]

`apart` is the worst case: no box suppresses another. torchvision suppresses above the threshold, seamseg at the
threshold, too; for random boxes the kept indices are the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import torch
from timing import Case, boxes_of_scene, options, report
from torch import Tensor
from torchvision import ops as torchvision

from seamseg.config.loader import default_config
from seamseg.models.heads.rpn import AnchorGenerator
from seamseg.ops.boxes import box_iou, crowd_overlap, match_boxes
from seamseg.ops.nms import nms, nms_fixed
from seamseg.ops.reference import boxes as plain
from seamseg.ops.reference import nms as plain_nms

HEIGHT, WIDTH = 1024, 2048


def boxes_apart(count: int, generator: torch.Generator) -> Tensor:
    """Return boxes in a grid that do not touch, in random order."""
    place = torch.randperm(count, generator=generator)
    corner = torch.stack((place // 128, place % 128), 1) * 10.0
    return torch.cat((corner, corner + 8), 1)


class Inputs:
    """Make cases on a device from random boxes."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.generator = torch.Generator().manual_seed(0)

    def scored(self, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes on the device with distinct scores."""
        # torchvision does not define the order of ties
        return boxes.to(self.device), torch.randperm(len(boxes), generator=self.generator).to(self.device) / len(boxes)

    def suppression(self, name: str, boxes: Tensor, threshold: float, limit: int | None = None) -> Case:
        """Compare NMS of one class, optionally of the first `limit` boxes."""
        boxes, scores = self.scored(boxes)
        return Case(
            name,
            "torchvision nms, then cut" if limit else "torchvision nms",
            lambda: nms(boxes, scores, threshold, limit or -1),
            lambda: torchvision.nms(boxes, scores, threshold)[:limit],
        )

    def classes(self, name: str, count: int, number: int, against: str) -> Case:
        """Compare NMS within each of `number` classes."""
        boxes, scores = self.scored(boxes_of_scene(count, self.generator, 150))
        groups = torch.randint(0, number, (count,), generator=self.generator).to(self.device)
        peers = {
            "torchvision batched_nms": lambda: torchvision.batched_nms(boxes, scores, groups, 0.5),
            "plain torch": lambda: plain_nms.nms(boxes, scores, 0.5, -1, groups),
        }
        return Case(name, against, lambda: nms(boxes, scores, 0.5, -1, groups), peers[against])

    def fixed(self, name: str) -> Case:
        """Compare NMS with an output of fixed size."""
        boxes, scores = self.scored(boxes_of_scene(12000, self.generator, 150))
        return Case(
            name,
            "plain torch",
            lambda: nms_fixed(boxes, scores, 0.7, 2000)[0],
            lambda: plain_nms.nms_fixed(boxes, scores, 0.7, 2000, None)[0],
        )

    def overlaps(self, name: str) -> Case:
        """Compare IoU of all pairs."""
        a, b = (boxes_of_scene(2000, self.generator, 150).to(self.device) for _ in range(2))
        return Case(name, "torchvision box_iou", lambda: box_iou(a, b), lambda: torchvision.box_iou(a, b))

    def matching(self, name: str, a: Tensor) -> Case:
        """Compare assignment of boxes to 60 others."""
        a, b = a.to(self.device), boxes_of_scene(60, self.generator, 150).to(self.device)
        return Case(
            name,
            "plain torch",
            lambda: torch.cat(match_boxes(a, b)[1::2]),
            lambda: torch.cat(plain.match_boxes(a, b)[1::2]),
        )

    def crowd(self, name: str, boxes: Tensor) -> Case:
        """Compare part of each box that is covered by crowd regions."""
        boxes, mask = boxes.to(self.device), torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
        for y0, x0, y1, x1 in boxes_of_scene(4, self.generator, 200).int().tolist():
            mask[y0:y1, x0:x1] = True
        mask = mask.to(self.device)
        return Case(
            name,
            "plain torch",
            lambda: crowd_overlap(boxes, mask),
            lambda: plain.crowd_count(boxes, mask) / plain.area(boxes),
        )


def suppression_cases(inputs: Inputs) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name and the factory of each case of NMS of one class."""
    for count in (1000, 6000, 12000):
        name = f"nms {count}"
        yield name, partial(inputs.suppression, name, boxes_of_scene(count, inputs.generator, 150), 0.7)
        name = f"nms {count}, low threshold"
        yield name, partial(inputs.suppression, name, boxes_of_scene(count, inputs.generator, 150), 0.3)
        name = f"nms {count}, apart"
        yield name, partial(inputs.suppression, name, boxes_apart(count, inputs.generator), 0.7)
    for count, limit in ((6000, 1000), (12000, 2000)):
        name = f"nms {count} -> {limit}"
        yield name, partial(inputs.suppression, name, boxes_of_scene(count, inputs.generator, 150), 0.7, limit)


def cases(device: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name and the factory of each case."""
    inputs = Inputs(device)
    yield from suppression_cases(inputs)
    for count, number in ((1000, 65), (6500, 65), (65000, 65)):
        for against in ("torchvision batched_nms", "plain torch"):
            name = f"nms {count} of {number} classes"
            yield name, partial(inputs.classes, name, count, number, against)
    yield "nms_fixed 12000 -> 2000", partial(inputs.fixed, "nms_fixed 12000 -> 2000")
    yield "box_iou 2000 x 2000", partial(inputs.overlaps, "box_iou 2000 x 2000")
    anchors = AnchorGenerator(default_config().rpn, [4, 8, 16, 32, 64])(
        [(HEIGHT // s, WIDTH // s) for s in (4, 8, 16, 32, 64)]
    )
    proposals = boxes_of_scene(2000, inputs.generator, 150)
    for name, boxes in ((f"{len(anchors)} anchors", anchors), ("2000 proposals", proposals)):
        yield f"match_boxes {name}, 60 boxes", partial(inputs.matching, f"match_boxes {name}, 60 boxes", boxes)
        yield f"crowd_overlap {name}", partial(inputs.crowd, f"crowd_overlap {name}", boxes)


def main() -> None:
    """Time the cases in turns and print the table."""
    arguments: argparse.Namespace = options(__doc__).parse_args()
    report(cases(arguments.device), arguments)


if __name__ == "__main__":
    main()
