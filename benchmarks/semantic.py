"""Compare argmax and loss of class logits at a quarter of 1024 x 2048 with plain torch at full resolution.

    python benchmarks/semantic.py
    python benchmarks/semantic.py argmax --threads 1

`scene` are smooth logits, as a network gives; `noise` has another class at every pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from plain import plain_semantic_loss
from timing import Case, options, report
from torch import Tensor
from torch.nn import functional

from seamseg.ops.upsample import upsample_argmax, upsample_ohem_loss

SIZE = (1024, 2048)
OHEM = 0.25


def scene(classes: int, generator: torch.Generator) -> Tensor:
    """Make smooth logits with a little noise, `classes x 256 x 512`."""
    coarse = torch.randn(1, classes, 16, 32, generator=generator) * 3
    smooth = functional.interpolate(coarse, size=(SIZE[0] // 4, SIZE[1] // 4), mode="bicubic")[0]
    return smooth + 0.05 * torch.randn(smooth.shape, generator=generator)


def noise(classes: int, generator: torch.Generator) -> Tensor:
    """Make independent logits, `classes x 256 x 512`."""
    return torch.randn(classes, SIZE[0] // 4, SIZE[1] // 4, generator=generator) * 3


def channels_last(logits: Tensor) -> Tensor:
    """Convert to channels last."""
    return logits.permute(1, 2, 0).contiguous().permute(2, 0, 1)


def plain_upsample(logits: Tensor) -> Tensor:
    """Return the full-resolution logits."""
    return functional.interpolate(logits[None], size=SIZE, mode="bilinear", align_corners=False)[0]


def argmax(classes: int, make: Callable[[int, torch.Generator], Tensor], last: bool, device: str, name: str) -> Case:
    """Compare the class map of one image."""
    logits = make(classes, torch.Generator().manual_seed(0)).to(device)
    if last:
        logits = channels_last(logits)
    return Case(
        name,
        "interpolate + argmax",
        lambda: upsample_argmax(logits, SIZE, SIZE),
        lambda: plain_upsample(logits).argmax(0),
    )


def loss(classes: int, backward: bool, device: str, name: str) -> Case:
    """Compare the loss of one image over its hardest quarter."""
    generator = torch.Generator().manual_seed(0)
    logits = scene(classes, generator).to(device).requires_grad_(backward)
    target = torch.randint(0, classes, SIZE, generator=generator).to(device)

    def step(function: Callable[[], Tensor]) -> Tensor:
        value = function()
        if backward:
            torch.autograd.grad(value, logits)
        return value

    return Case(
        name,
        "interpolate + cross_entropy + topk",
        lambda: step(lambda: upsample_ohem_loss(logits, SIZE, SIZE, target, OHEM)),
        lambda: step(lambda: plain_semantic_loss(logits, SIZE, target, OHEM)),
    )


def cases(device: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name and the factory of each case."""
    for classes in (19, 65):
        for make in (scene, noise):
            for last in (False, True):
                name = f"argmax {classes} classes, {make.__name__}{', channels last' * last}"
                yield name, partial(argmax, classes, make, last, device, name)
        for backward in (False, True):
            name = f"loss {classes} classes{', with backward' * backward}"
            yield name, partial(loss, classes, backward, device, name)


if __name__ == "__main__":
    arguments = options(__doc__).parse_args()
    report(cases(arguments.device), arguments)
