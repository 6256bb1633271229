"""Suppression and matching of boxes against torchvision and against plain torch, at the sizes of a 1024 x 2048 picture.

    python benchmarks/boxes.py [--rounds 7] [--threads N] [--device cuda] [--json FILE] [NAME ...]

`apart` is the worst case: no box suppresses another. torchvision suppresses above the threshold, we from it on: with
boxes at random the same indices stay.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import torch
from timing import Case, boxes_of_scene, options, report
from torch import Tensor
from torchvision import ops as torchvision

from seamseg.models.heads.rpn import AnchorGenerator
from seamseg.ops.boxes import box_iou, crowd_overlap, match_boxes
from seamseg.ops.nms import nms, nms_fixed
from seamseg.ops.reference import boxes as plain
from seamseg.ops.reference import nms as plain_nms

HEIGHT, WIDTH = 1024, 2048


def boxes_apart(count: int, generator: torch.Generator) -> Tensor:
    """Boxes in rows and columns that do not touch, in random order."""
    place = torch.randperm(count, generator=generator)
    corner = torch.stack((place // 128, place % 128), 1) * 10.0
    return torch.cat((corner, corner + 8), 1)


def cases(device: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Names, and what makes each case."""
    generator = torch.Generator().manual_seed(0)

    def scored(boxes: Tensor) -> tuple[Tensor, Tensor]:
        # no two alike: torchvision leaves the order of ties open
        return boxes.to(device), torch.randperm(len(boxes), generator=generator).to(device) / len(boxes)

    def suppression(name: str, boxes: Tensor, threshold: float, limit: int | None = None) -> Case:
        boxes, scores = scored(boxes)
        return Case(
            name,
            "torchvision nms, then cut" if limit else "torchvision nms",
            lambda: nms(boxes, scores, threshold, limit or -1),
            lambda: torchvision.nms(boxes, scores, threshold)[:limit],
        )

    def classes(name: str, count: int, number: int, against: str) -> Case:
        boxes, scores = scored(boxes_of_scene(count, generator, 150))
        groups = torch.randint(0, number, (count,), generator=generator).to(device)
        peers = {
            "torchvision batched_nms": lambda: torchvision.batched_nms(boxes, scores, groups, 0.5),
            "plain torch": lambda: plain_nms.nms(boxes, scores, 0.5, -1, groups),
        }
        return Case(name, against, lambda: nms(boxes, scores, 0.5, -1, groups), peers[against])

    def fixed(name: str) -> Case:
        boxes, scores = scored(boxes_of_scene(12000, generator, 150))
        return Case(
            name,
            "plain torch",
            lambda: nms_fixed(boxes, scores, 0.7, 2000)[0],
            lambda: plain_nms.nms_fixed(boxes, scores, 0.7, 2000, None)[0],
        )

    def overlaps(name: str) -> Case:
        a, b = (boxes_of_scene(2000, generator, 150).to(device) for _ in range(2))
        return Case(name, "torchvision box_iou", lambda: box_iou(a, b), lambda: torchvision.box_iou(a, b))

    def matching(name: str, a: Tensor) -> Case:
        a, b = a.to(device), boxes_of_scene(60, generator, 150).to(device)
        return Case(
            name,
            "plain torch",
            lambda: torch.cat(match_boxes(a, b)[1::2]),
            lambda: torch.cat(plain.match_boxes(a, b)[1::2]),
        )

    def crowd(name: str, boxes: Tensor) -> Case:
        boxes, mask = boxes.to(device), torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
        for y0, x0, y1, x1 in boxes_of_scene(4, generator, 200).int().tolist():
            mask[y0:y1, x0:x1] = True
        mask = mask.to(device)
        return Case(
            name,
            "plain torch",
            lambda: crowd_overlap(boxes, mask),
            lambda: plain.crowd_count(boxes, mask) / plain.area(boxes),
        )

    for count in (1000, 6000, 12000):
        name = f"nms {count}"
        yield name, partial(suppression, name, boxes_of_scene(count, generator, 150), 0.7)
        name = f"nms {count}, low threshold"
        yield name, partial(suppression, name, boxes_of_scene(count, generator, 150), 0.3)
        name = f"nms {count}, apart"
        yield name, partial(suppression, name, boxes_apart(count, generator), 0.7)
    for count, limit in ((6000, 1000), (12000, 2000)):
        name = f"nms {count} -> {limit}"
        yield name, partial(suppression, name, boxes_of_scene(count, generator, 150), 0.7, limit)
    for count, number in ((1000, 65), (6500, 65), (65000, 65)):
        for against in ("torchvision batched_nms", "plain torch"):
            name = f"nms {count} of {number} classes"
            yield name, partial(classes, name, count, number, against)
    yield "nms_fixed 12000 -> 2000", partial(fixed, "nms_fixed 12000 -> 2000")
    yield "box_iou 2000 x 2000", partial(overlaps, "box_iou 2000 x 2000")
    anchors = AnchorGenerator([4, 8, 16, 32, 64], 8, (1.0, 0.5, 2.0))(
        [(HEIGHT // s, WIDTH // s) for s in (4, 8, 16, 32, 64)]
    )
    proposals = boxes_of_scene(2000, generator, 150)
    for name, boxes in ((f"{len(anchors)} anchors", anchors), ("2000 proposals", proposals)):
        yield f"match_boxes {name}, 60 boxes", partial(matching, f"match_boxes {name}, 60 boxes", boxes)
        yield f"crowd_overlap {name}", partial(crowd, f"crowd_overlap {name}", boxes)


def main() -> None:
    """Time the cases in turns and print a table."""
    arguments: argparse.Namespace = options(__doc__).parse_args()
    report(cases(arguments.device), arguments)


if __name__ == "__main__":
    main()
