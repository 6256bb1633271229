"""Each op against the plain way to get the same numbers, timed in turns: medians, ratios, largest difference.

    python benchmarks/ops.py [--rounds 7] [--threads N] [--json FILE] [NAME ...]

`plain` is native PyTorch or numpy (torchvision where it has the op); inputs have the sizes of a 1024 x 2048 picture.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from seamseg.ops.boxes import invert_boxes
from seamseg.ops.extract_boxes import extract_boxes
from seamseg.ops.nms import nms
from seamseg.ops.norm import InPlaceABN
from seamseg.ops.paste import paste_masks_into
from seamseg.ops.pooling import box_filter_pool
from seamseg.ops.roi_sampling import roi_sampling

HEIGHT, WIDTH = 1024, 2048
Pair = tuple[Callable[[], object], Callable[[], object]]


def boxes_of_scene(count: int, generator: torch.Generator, side: float) -> Tensor:
    """Boxes with a wide spread of sizes, inside the picture."""
    centre = torch.rand(count, 2, generator=generator) * torch.tensor([HEIGHT, WIDTH])
    half = torch.exp(torch.randn(count, 2, generator=generator) * 0.7) * side / 2
    boxes = torch.cat((centre - half, centre + half), 1)
    return torch.stack([boxes[:, i].clamp(0, (HEIGHT, WIDTH)[i % 2]) for i in range(4)], 1)


def plain_pool(x: Tensor) -> Tensor:
    """Separable average pooling with the native kernels, which already is 32 times less work than 64 x 64."""
    pooled = functional.avg_pool2d(functional.avg_pool2d(x, (64, 1), stride=1), (1, 64), stride=1)
    return functional.pad(pooled, (31, 32, 31, 32), mode="replicate")


def plain_roi(x: Tensor, boxes: Tensor) -> Tensor:
    """The same samples through `grid_sample`."""
    step = (torch.arange(14) + 0.5) / 14
    y = boxes[:, :1] + step * (boxes[:, 2:3] - boxes[:, :1])
    x_ = boxes[:, 1:2] + step * (boxes[:, 3:] - boxes[:, 1:2])
    grid = torch.stack((x_[:, None, :].expand(-1, 14, 14), y[:, :, None].expand(-1, 14, 14)), -1)
    grid = grid / torch.tensor([x.shape[3], x.shape[2]]) * 2 - 1
    out = functional.grid_sample(x, grid.view(1, -1, 14, 2), padding_mode="border", align_corners=False)
    return out[0].view(x.shape[1], -1, 14, 14).transpose(0, 1)


def plain_paste(masks: Tensor, boxes: Tensor) -> Tensor:
    """Every mask sampled over the whole picture."""
    ids = torch.zeros(HEIGHT, WIDTH, dtype=torch.long)
    inverted = invert_boxes(boxes, (28, 28), (HEIGHT, WIDTH))
    number = 1
    for mask, box in zip(masks, inverted):
        plane, _ = roi_sampling(
            mask.sigmoid()[None, None], box[None], torch.zeros(1).long(), (HEIGHT, WIDTH), padding="zero"
        )
        pixels = plane[0, 0] > 0.5
        taken = pixels & (ids != 0)
        if pixels.any() and taken.sum() / pixels.sum() <= 0.5 and not torch.equal(taken, pixels):
            ids[pixels & ~taken] = number
            number += 1
    return ids


def plain_extract(ids: Tensor, count: int) -> Tensor:
    """Each id looked for."""
    out = torch.full((count, 4), -1.0)
    for i in range(count):
        y, x = (ids == i).nonzero(as_tuple=True)
        if len(y):
            out[i] = torch.stack((y.min(), x.min(), y.max() + 1, x.max() + 1)).float()
    return out


def training_step(layer: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor) -> Tensor:
    """Forward and backward of a normalisation layer."""
    return torch.autograd.grad(layer(x), x, dy)[0]


def cases() -> Iterator[tuple[str, Callable[[], Pair]]]:
    """Names, and what makes the two functions of each."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    def pool() -> Pair:
        x = normal(1, 128, 256, 512).contiguous(memory_format=torch.channels_last)
        return lambda: box_filter_pool(x, (64, 64)), lambda: plain_pool(x)

    def suppression(count: int, limit: int) -> Pair:
        from torchvision.ops import nms as peer

        boxes, scores = boxes_of_scene(count, generator, 150), torch.rand(count, generator=generator)
        return lambda: nms(boxes, scores, 0.7, limit), lambda: peer(boxes, scores, 0.7)[:limit]

    def roi(backward: bool) -> Pair:
        x = normal(1, 256, 256, 512).contiguous(memory_format=torch.channels_last).requires_grad_(backward)
        boxes, index = boxes_of_scene(512, generator, 120) / 4, torch.zeros(512, dtype=torch.long)
        if not backward:
            return lambda: roi_sampling(x, boxes, index, (14, 14))[0], lambda: plain_roi(x, boxes)
        ours, plain = roi_sampling(x, boxes, index, (14, 14))[0], plain_roi(x, boxes)
        dy = torch.randn_like(ours)
        return (
            lambda: torch.autograd.grad(ours, x, dy, retain_graph=True)[0],
            lambda: torch.autograd.grad(plain, x, dy, retain_graph=True)[0],
        )

    def instances() -> tuple[Tensor, Tensor]:
        masks = functional.interpolate(normal(20, 1, 5, 5), size=(28, 28), mode="bicubic")[:, 0] * 4
        return masks, boxes_of_scene(20, generator, 150)

    def paste() -> Pair:
        masks, boxes = instances()

        def ours() -> Tensor:
            ids = torch.zeros(HEIGHT, WIDTH, dtype=torch.long)
            paste_masks_into(ids, masks, boxes, 0.5)
            return ids

        return ours, lambda: plain_paste(masks, boxes)

    def id_map() -> Tensor:
        masks, boxes = instances()
        ids = torch.zeros(HEIGHT, WIDTH, dtype=torch.long)
        paste_masks_into(ids, masks, boxes, 0.5)
        return ids

    def extract() -> Pair:
        ids = id_map()
        return lambda: extract_boxes(ids, 30), lambda: plain_extract(ids, 30)

    def norm() -> Pair:
        x = normal(1, 256, 128, 256).contiguous(memory_format=torch.channels_last).requires_grad_()
        dy = torch.randn_like(x)
        layer, plain = InPlaceABN(256), torch.nn.BatchNorm2d(256)
        return (
            lambda: training_step(layer, x, dy),
            lambda: training_step(lambda t: functional.leaky_relu(plain(t), 0.01), x, dy),
        )

    yield "box_filter_pool 64x64, 128 x 256 x 512", pool
    yield "nms 6000 -> 1000", lambda: suppression(6000, 1000)
    yield "nms 12000 -> 2000", lambda: suppression(12000, 2000)
    yield "roi_sampling 512 x 256 x 14 x 14 forward", lambda: roi(False)
    yield "roi_sampling 512 x 256 x 14 x 14 backward", lambda: roi(True)
    yield "paste_masks_into 20 masks", paste
    yield "extract_boxes 30 ids", extract
    yield "InPlaceABN training step 256 x 128 x 256", norm


def difference(a: object, b: object) -> float:
    """Largest difference relative to the range; for index-like results the part that differs."""
    x, y = (torch.as_tensor(t).detach() for t in (a, b))
    if x.shape != y.shape:
        return float("inf")
    if not x.is_floating_point():
        return float((x != y).double().mean())
    return float((x - y).abs().max() / y.abs().max())


def main() -> None:
    """Time the cases in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only the cases that contain one of these words")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    rows = []
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print(f"{'op':<46}{'ours ms':>10}{'plain ms':>10}{'ratio':>8}{'difference':>12}")
    for name, make in cases():
        if arguments.names and not any(word in name for word in arguments.names):
            continue
        ours, plain = make()
        gap = difference(ours(), plain())
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(arguments.rounds):
            for function, record in zip((ours, plain), times):
                start = time.perf_counter()
                function()
                record.append((time.perf_counter() - start) * 1e3)
        mine, theirs = (statistics.median(t) for t in times)
        rows.append({"op": name, "ours_ms": mine, "plain_ms": theirs, "ratio": theirs / mine, "difference": gap})
        print(f"{name:<46}{mine:>10.2f}{theirs:>10.2f}{theirs / mine:>8.2f}{gap:>12.1e}", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
