"""Compare the large stride-1 average pool and the semantic head with native kernels and the plain form.

    python benchmarks/pooling.py [--rounds 7] [--threads N] [--device cuda] [--json FILE] [NAME ...]

The map is the finest level of a 1024 x 2048 image. The head as it is usually written (`head`) takes minutes a round
on a CPU: `--rounds 1 head`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from plain import PlainSemanticHead
from timing import Case, options, report
from torch import Tensor
from torch.nn import functional

from seamseg.config.loader import default_config
from seamseg.models.backbones.base import NormFactory
from seamseg.models.heads.semantic import SemanticHead
from seamseg.ops.norm import ABN
from seamseg.ops.pooling import box_filter_pool
from seamseg.ops.reference.pooling import box_filter_pool as plain_form
from seamseg.ops.reference.pooling import box_filter_pool_backward as plain_backward

WINDOW = (64, 64)


def padded(pooled: Tensor) -> Tensor:
    """Pad to the size of the map."""
    return functional.pad(pooled, (31, 32, 31, 32), mode="replicate")


def separable(x: Tensor) -> Tensor:
    """Pool along one axis after the other with native kernels: 32 times less work than 64 x 64."""
    return padded(functional.avg_pool2d(functional.avg_pool2d(x, (64, 1), stride=1), (1, 64), stride=1))


def cases(device: str) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield the name and the factory of each case."""

    def feature_map(dtype: torch.dtype, layout: torch.memory_format, channels: int = 128) -> Tensor:
        x = torch.randn(1, channels, 256, 512, generator=torch.Generator().manual_seed(0))
        return x.to(device, dtype).contiguous(memory_format=layout)

    def forward(name: str, dtype: torch.dtype, layout: torch.memory_format, native: bool) -> Case:
        x = feature_map(dtype, layout)
        if native:
            return Case(
                name, "avg_pool2d, one axis at a time", lambda: box_filter_pool(x, WINDOW), lambda: separable(x)
            )
        return Case(name, "plain form", lambda: box_filter_pool(x, WINDOW), lambda: plain_form(x, *WINDOW))

    def backward(name: str, dtype: torch.dtype, layout: torch.memory_format) -> Case:
        dy = feature_map(dtype, layout)
        ours = torch.ops.seamseg.box_filter_pool_backward
        return Case(name, "plain form", lambda: ours(dy, *WINDOW), lambda: plain_backward(dy, *WINDOW))

    def semantic_head(name: str, layout: torch.memory_format) -> Case:
        norm: NormFactory = ABN
        head = SemanticHead(default_config().sem, 256, 19, norm).eval().to(device).to(memory_format=layout)
        usual = PlainSemanticHead(head)
        finest = feature_map(torch.float32, layout, 256)
        levels = [finest[..., :: 2**i, :: 2**i].contiguous(memory_format=layout) for i in range(4)]

        def run(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
            return torch.inference_mode()(function)

        return Case(name, "as usually written", run(lambda: head(levels)), run(lambda: usual(levels)))

    for layout, layout_name in ((torch.contiguous_format, "contiguous"), (torch.channels_last, "channels last")):
        for dtype in (torch.float32, torch.bfloat16):
            kind = f"{layout_name}, {str(dtype).removeprefix('torch.')}"
            for native in (False, True):
                name = f"pool forward, {kind}"
                yield name, partial(forward, name, dtype, layout, native)
            name = f"pool backward, {kind}"
            yield name, partial(backward, name, dtype, layout)
        name = f"semantic head 256 x 256 x 512, {layout_name}"
        yield name, partial(semantic_head, name, layout)


def main() -> None:
    """Time the cases in turns and print a table."""
    arguments = options(__doc__).parse_args()
    report(cases(arguments.device), arguments)


if __name__ == "__main__":
    main()
