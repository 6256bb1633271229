"""Compare the panoptic fusion of a 1024 x 2048 image with a fusion of whole-image masks.

    python benchmarks/fusion.py [--rounds 7] [--threads N] [--device cuda] [--json FILE] [NAME ...]

100 detections, 19 classes. The plain way samples each mask over the whole image, N x H x W points. On a GPU the fusion
is also compared with that of the CPU, both with the download of the prediction as in `seamseg predict`: ids must not
differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import Case, boxes_of_scene, options, report
from torch import Tensor
from torch.nn import functional

from seamseg.fusion import download, fuse, to_result
from seamseg.maps.predictions import Prediction
from seamseg.ops.labels import paste_masks_into
from seamseg.ops.reference.labels import paste_masks_into as plain_form

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from plain_seamless import paste_masks, plain_fusion

HEIGHT, WIDTH, CLASSES, STUFF, COUNT = 1024, 2048, 19, 11, 100
ON_CPU = "the same on the CPU"


def scene(device: str) -> Prediction[torch.Tensor]:
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


def cases(device: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name and the factory of each case."""

    def paste(name: str, peer: str) -> Case:
        p = scene(device)
        masks, boxes = p.mask_logits, p.boxes
        assert masks is not None

        def empty() -> Tensor:
            return torch.zeros(HEIGHT, WIDTH, dtype=torch.long, device=device)

        def ours() -> Tensor:
            paste_masks_into(ids := empty(), masks.sigmoid(), boxes, 0.5, 1, False)
            return ids

        def cropped() -> Tensor:
            plain_form(ids := empty(), masks.sigmoid(), boxes, 0.5, 1, False)
            return ids

        return Case(
            name, peer, ours, cropped if peer == "plain form" else lambda: paste_masks(masks, boxes, (HEIGHT, WIDTH))[0]
        )

    def fusion(name: str, peer: str) -> Case:
        p = scene(device)

        def ours(prediction: Prediction[Any] = p) -> np.ndarray:
            return to_result(fuse(prediction, STUFF), (HEIGHT, WIDTH), STUFF).id_map

        if peer == ON_CPU:
            return Case(name, peer, lambda: ours(download(p)()), lambda: ours(p.on_cpu()))
        return Case(name, peer, ours, lambda: plain_fusion(p.on_cpu(), STUFF).ids)

    name = f"paste_masks_into {COUNT} masks"
    for peer in ("plain form", "grid_sample, whole image"):
        yield name, partial(paste, name, peer)
    name = "fuse + to_result"
    yield name, partial(fusion, name, "grid_sample, whole image")
    if device != "cpu":
        name = f"download + {name}"
        yield name, partial(fusion, name, ON_CPU)


def main() -> None:
    """Time the cases in turns and print a table."""
    arguments = options(__doc__).parse_args()
    report(cases(arguments.device), arguments)


if __name__ == "__main__":
    main()
