"""Compare operators with torchvision and plain torch, at the sizes of an image of 1024 x 2048.

    python benchmarks/kernels.py [--rounds 7] [--threads N] [--device cuda] [--json FILE] [NAME ...]

`apart` is the worst case of NMS: no box suppresses another. torchvision suppresses above the threshold, seamseg at the
threshold, too; for random boxes the kept indices are the same. `roi_align` is another operation on the same data, with
one sample a bin, one call a level and the boxes split beforehand, contiguous: its numbers are not compared. `scene` are
smooth logits, as a network gives; `noise` has another class at every pixel. The semantic head is that of the finest
level; as it is usually written it takes half a minute a round on a CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import Case, boxes_of_scene, options, report
from torch import Tensor
from torch.nn import functional
from torchvision import ops as torchvision

from seamseg.config.loader import default_config
from seamseg.models.heads.semantic import SemanticHead
from seamseg.ops.nms import nms
from seamseg.ops.norm import ABN
from seamseg.ops.roi_sampling import roi_features
from seamseg.ops.upsample import upsample_argmax, upsample_ohem_loss

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from plain_seamless import PlainSemanticHead, plain_semantic_loss

SIZE, OHEM = (1024, 2048), 0.25
STRIDES, ROIS, CHANNELS, OUT = (4, 8, 16, 32), 512, 256, (14, 14)


def apart(count: int, generator: torch.Generator) -> Tensor:
    """Return boxes in a grid that do not touch, in random order."""
    place = torch.randperm(count, generator=generator)
    corner = torch.stack((place // 128, place % 128), 1) * 10.0
    return torch.cat((corner, corner + 8), 1)


def suppression(
    name: str, device: str, make: Callable[[int, torch.Generator], Tensor], count: int, classes: int
) -> Case:
    """Compare NMS, within each of `classes` classes."""
    generator = torch.Generator().manual_seed(0)
    # torchvision does not define the order of ties
    boxes, scores = make(count, generator).to(device), torch.randperm(count, generator=generator).to(device) / count
    if classes == 1:
        peer = lambda: torchvision.nms(boxes, scores, 0.7)  # noqa: E731
        return Case(name, "torchvision nms", lambda: nms(boxes, scores, 0.7), peer)
    groups = torch.randint(0, classes, (count,), generator=generator).to(device)
    peer = lambda: torchvision.batched_nms(boxes, scores, groups, 0.5)  # noqa: E731
    return Case(name, "torchvision batched_nms", lambda: nms(boxes, scores, 0.5, -1, groups), peer)


def roi(name: str, device: str, backward: bool) -> Case:
    """Compare ROI features of a pyramid, channels last, with roi_align, which is faster contiguous on a CPU."""
    generator = torch.Generator().manual_seed(0)
    levels = [torch.randn(1, CHANNELS, SIZE[0] // s, SIZE[1] // s, generator=generator).to(device) for s in STRIDES]
    last = [x.contiguous(memory_format=torch.channels_last).requires_grad_() for x in levels]
    levels = [x.requires_grad_() for x in levels]
    boxes = boxes_of_scene(ROIS, generator, 120)
    side = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sqrt()
    level = torch.floor(2 + torch.log2(side / 224 + 1e-6)).clamp(0, 3).long()
    parts = [torch.cat((boxes[:, :1] * 0, boxes[:, [1, 0, 3, 2]]), 1)[level == i].to(device) for i in range(4)]
    boxes, level, index = boxes.to(device), level.to(device), torch.zeros(ROIS, dtype=torch.long, device=device)

    def ours() -> Tensor:
        return roi_features(last, boxes, index, level, SIZE, OUT)

    def peer() -> list[Tensor]:
        pairs = zip(levels, parts, STRIDES, strict=True)
        return [torchvision.roi_align(x, part, OUT, 1 / stride, 1, aligned=True) for x, part, stride in pairs]

    if not backward:
        return Case(name, "torchvision roi_align", lambda: untracked(ours), lambda: untracked(peer))
    y, ys = ours(), peer()
    dy = torch.randn_like(y).contiguous(memory_format=torch.channels_last)
    dys = [torch.randn_like(part) for part in ys]

    def gradients(outputs: Any, inputs: list[Tensor], upstream: Any) -> None:
        torch.autograd.grad(outputs, inputs, upstream, retain_graph=True)

    return Case(name, "torchvision roi_align", lambda: gradients(y, last, dy), lambda: gradients(ys, levels, dys))


def untracked(function: Callable[[], object]) -> None:
    """Call without gradients; results are not compared."""
    with torch.no_grad():
        function()


def logits_of(classes: int, smooth: bool, generator: torch.Generator) -> Tensor:
    """Make logits at a quarter of the image, `classes x 256 x 512`."""
    height, width = SIZE[0] // 4, SIZE[1] // 4
    if not smooth:
        return torch.randn(classes, height, width, generator=generator) * 3
    coarse = torch.randn(1, classes, 16, 32, generator=generator) * 3
    large = functional.interpolate(coarse, size=(height, width), mode="bicubic")[0]
    return large + 0.05 * torch.randn(large.shape, generator=generator)


def argmax(name: str, device: str, smooth: bool) -> Case:
    """Compare the class map of one image, 65 classes, channels last."""
    logits = logits_of(65, smooth, torch.Generator().manual_seed(0)).to(device)
    logits = logits.permute(1, 2, 0).contiguous().permute(2, 0, 1)

    def peer() -> Tensor:
        return functional.interpolate(logits[None], size=SIZE, mode="bilinear", align_corners=False)[0].argmax(0)

    return Case(name, "interpolate + argmax", lambda: upsample_argmax(logits, SIZE, SIZE), peer)


def loss(name: str, device: str) -> Case:
    """Compare the loss of one image over its hardest quarter, with its gradient, 19 classes."""
    generator = torch.Generator().manual_seed(0)
    logits = logits_of(19, True, generator).to(device).requires_grad_()
    target = torch.randint(0, 19, SIZE, generator=generator).to(device)

    def step(function: Callable[[], Tensor]) -> Tensor:
        value = function()
        torch.autograd.grad(value, logits)
        return value

    ours = partial(upsample_ohem_loss, logits, SIZE, SIZE, target, OHEM)
    peer = partial(plain_semantic_loss, logits, SIZE, target, OHEM)
    return Case(name, "interpolate + cross_entropy + topk", lambda: step(ours), lambda: step(peer))


def semantic_head(name: str, device: str, layout: torch.memory_format) -> Case:
    """Compare the semantic head on four levels."""
    head = SemanticHead(default_config().sem, 256, 19, ABN).eval().to(device, memory_format=layout)  # type: ignore[call-overload]
    finest = torch.randn(1, 256, 256, 512, generator=torch.Generator().manual_seed(0)).to(device)
    levels = [finest[..., :: 2**i, :: 2**i].contiguous(memory_format=layout) for i in range(4)]
    sides = [torch.inference_mode()(partial(side, levels)) for side in (head, PlainSemanticHead(head))]
    return Case(name, "as usually written", *sides)


def cases(device: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name and the factory of each case."""
    scene = partial(boxes_of_scene, side=150)
    for words, make, count, classes in (
        ("nms 1000, apart", apart, 1000, 1),
        ("nms 6000", scene, 6000, 1),
        ("nms 12000", scene, 12000, 1),
        ("nms 6500 of 65 classes", scene, 6500, 65),
    ):
        yield words, partial(suppression, words, device, make, count, classes)
    for backward in (False, True):
        name = f"roi_features {'backward' if backward else 'forward'}"
        yield name, partial(roi, name, device, backward)
    for smooth in (True, False):
        name = f"argmax 65 classes, {'scene' if smooth else 'noise'}"
        yield name, partial(argmax, name, device, smooth)
    yield "loss 19 classes, with backward", partial(loss, "loss 19 classes, with backward", device)
    for layout, words in ((torch.contiguous_format, "contiguous"), (torch.channels_last, "channels last")):
        name = f"semantic head, {words}"
        yield name, partial(semantic_head, name, device, layout)


if __name__ == "__main__":
    arguments = options(__doc__).parse_args()
    report(cases(arguments.device), arguments)
