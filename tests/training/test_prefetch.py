"""Upload of training batches to a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from seamseg.structures import Batch, PackedSequence
from seamseg.training.prefetch import prefetched


def batches(count: int, device: str = "cpu") -> Iterator[Batch]:
    """Batches of random sizes that hold their number."""
    for number in range(count):
        size = 500 + 37 * number
        fill = [torch.full((3, size, size), float(number)), torch.full((3, 400, 300), float(number))]
        ones = [torch.full((n, 4), float(number)) for n in (1, 2)]
        packed = PackedSequence([t.pin_memory() for t in fill] if device == "cuda" else fill)
        boxes = PackedSequence(ones)
        yield Batch(packed, boxes, boxes, boxes, boxes, [str(number)] * 2, [(1, 1)] * 2)


@pytest.mark.gpu
def test_concurrent_uploads_are_complete() -> None:
    device = torch.device("cuda")
    weight = torch.randn(4096, 4096, device=device)
    ranges = []
    for batch, _ in prefetched(batches(20, "cuda"), device):
        assert batch.images.device == torch.device("cuda", torch.cuda.current_device())
        for _ in range(5):
            weight = torch.tanh(weight @ weight)  # keeps the device busy, so that uploads run ahead of it
        ranges.append(torch.stack([torch.stack(t.aminmax()).float() for t in batch.tensors()]))
        del batch
    for number, found in enumerate(ranges):
        assert torch.equal(found.cpu(), torch.full((10, 2), float(number)))
