"""Compare ROI features of a pyramid with `roi_align` of torchvision, forward and backward.

    python benchmarks/roi.py [--rounds 7] [--threads N] [--device cpu|cuda] [--json FILE] [NAME ...]

512 boxes, 14 x 14 samples, four levels of 256 channels of a 1024 x 2048 image. The peer takes one sample a bin too
(`sampling_ratio=1`), one call a level with the boxes split beforehand, in the memory format that it is faster in
(contiguous on the CPU). It is another operation on the same data: no numbers are compared, except with our own plain
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from timing import Case, boxes_of_scene, options, report
from torch import Tensor

from seamseg.ops.reference.roi_sampling import roi_sampling as plain
from seamseg.ops.reference.roi_sampling import roi_sampling_backward as plain_backward
from seamseg.ops.roi_sampling import roi_features, roi_sampling

SIZE = (1024, 2048)
STRIDES = (4, 8, 16, 32)
COUNT, CHANNELS, OUT = 512, 256, (14, 14)


class Scene:
    """Levels, boxes, and which level each box is looked up on."""

    def __init__(self, device: str, memory_format: torch.memory_format, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(0)
        self.levels = [
            torch.randn(1, CHANNELS, SIZE[0] // stride, SIZE[1] // stride, generator=generator)
            .to(device, dtype)
            .contiguous(memory_format=memory_format)
            .requires_grad_()
            for stride in STRIDES
        ]
        boxes = boxes_of_scene(COUNT, generator, 120)
        side = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).sqrt()
        self.level = torch.floor(2 + torch.log2(side / 224 + 1e-6)).clamp(0, 3).long().to(device)
        self.boxes = boxes.to(device)
        self.index = torch.zeros(COUNT, dtype=torch.long, device=device)
        self.dy = torch.randn(COUNT, CHANNELS, *OUT, generator=generator).to(device, dtype)

    def ours(self) -> Tensor:
        """Compute the features in one call."""
        return roi_features(self.levels, self.boxes, self.index, self.level, SIZE, OUT)

    def peer(self) -> Callable[[], list[Tensor]]:
        """Return a function that computes the features of the peer, one call per level."""
        from torchvision.ops import roi_align

        corners = torch.cat((self.index[:, None].to(self.boxes), self.boxes[:, [1, 0, 3, 2]]), 1)
        parts = [corners[self.level == i].to(self.dy.dtype) for i in range(len(STRIDES))]
        return lambda: [
            roi_align(x, part, OUT, 1 / stride, 1, aligned=True) for x, part, stride in zip(self.levels, parts, STRIDES)
        ]

    def plain(self) -> Tensor:
        """Compute the features in plain torch."""
        levels = [x.detach() for x in self.levels]
        return plain(levels, self.boxes, self.index, self.level, SIZE, *OUT, False, False)

    def plain_backward(self) -> Tensor:
        """Return the gradients of the levels in plain torch."""
        shapes = [side for x in self.levels for side in x.shape]
        last = [not x.is_contiguous() for x in self.levels]
        arguments = (self.boxes, self.index, self.level, SIZE, False, False, True)
        return joined(plain_backward(self.dy, shapes, last, *arguments))


def joined(gradients: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """Concatenate gradients for the comparison."""
    return torch.cat([g.permute(0, 2, 3, 1).reshape(-1) for g in gradients])


def against_peer(
    device: str, name: str, memory_format: torch.memory_format, backward: bool, dtype: torch.dtype
) -> Case:
    """Compare with roi_align of torchvision, which is given its best memory format."""
    mine, other = Scene(device, memory_format, dtype), Scene(device, torch.contiguous_format, dtype)
    features, dy = other.peer(), mine.dy.contiguous(memory_format=torch.channels_last)
    peer = "torchvision roi_align"
    if not backward:

        def forward(function: Callable[[], object]) -> None:
            with torch.no_grad():
                function()

        return Case(name, peer, lambda: forward(mine.ours), lambda: forward(features))
    y, peers = mine.ours(), features()
    dys = [other.dy[: part.shape[0]].contiguous() for part in peers]

    def ours() -> None:
        torch.autograd.grad(y, mine.levels, dy, retain_graph=True)

    def theirs() -> None:
        torch.autograd.grad(peers, other.levels, dys, retain_graph=True)

    return Case(name, peer, ours, theirs)


def against_plain(device: str, name: str, memory_format: torch.memory_format, backward: bool) -> Case:
    """Compare with plain torch, also the results."""
    scene = Scene(device, memory_format)
    if not backward:
        return Case(name, "plain torch", scene.ours, scene.plain)
    y, dy = scene.ours(), scene.dy
    gradients = lambda: joined(torch.autograd.grad(y, scene.levels, dy, retain_graph=True))  # noqa: E731
    return Case(name, "plain torch", gradients, scene.plain_backward)


def masks(device: str) -> Case:
    """Compare the sampling of id maps with plain torch."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 40, (1, 1, *SIZE), generator=generator).to(device)
    boxes = boxes_of_scene(128, generator, 150).to(device)
    index = torch.zeros(128, dtype=torch.long, device=device)
    return Case(
        "roi_sampling of ids, nearest 28 x 28",
        "plain torch",
        lambda: roi_sampling(ids, boxes, index, (28, 28), "nearest")[0],
        lambda: plain([ids], boxes, index, None, (0, 0), 28, 28, True, False),
    )


def cases(device: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name and the factory of each case."""
    formats = {"channels last": torch.channels_last, "contiguous": torch.contiguous_format}
    for layout, memory_format in formats.items():
        for backward in (False, True):
            for dtype in (torch.float32, torch.float16) if device == "cuda" else (torch.float32,):
                kind = "" if dtype == torch.float32 else ", float16"
                name = f"roi_features {layout} {'backward' if backward else 'forward'}{kind}"
                yield name, partial(against_peer, device, name, memory_format, backward, dtype)
    for backward in (False, True):
        name = f"roi_features {'backward' if backward else 'forward'}, numbers"
        yield name, partial(against_plain, device, name, torch.channels_last, backward)

    yield "roi_sampling of ids, nearest 28 x 28", partial(masks, device)


if __name__ == "__main__":
    arguments = options(__doc__).parse_args()
    report(cases(arguments.device), arguments)
