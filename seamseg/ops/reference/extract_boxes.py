"""Bounding boxes of the ids of a map, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def extract_boxes(id_map: Tensor, n: int) -> Tensor:
    """See :func:`seamseg.ops.extract_boxes.extract_boxes`; arguments are taken as checked."""
    absent = id_map.new_full((n, 4), -1, dtype=torch.float32)
    if n == 0 or id_map.numel() == 0:
        return absent
    # Runs of equal ids along the rows: thousands of them where there are millions of pixels
    height, width = id_map.shape[-2:]
    rows = id_map.reshape(-1, width)
    starts_run = torch.ones_like(rows, dtype=torch.bool)
    torch.ne(rows[:, 1:], rows[:, :-1], out=starts_run[:, 1:])
    start = starts_run.flatten().nonzero().squeeze(1)
    end = torch.cat((start[1:], start.new_tensor([rows.numel()])))
    ids = rows.flatten()[start].long()
    wanted = (ids >= 0) & (ids < n)
    start, end, ids = start[wanted], end[wanted], ids[wanted]
    row = start.div(width, rounding_mode="floor")
    y, x0, x1 = row % height, start - row * width, end - row * width
    low = torch.full((n, 2), max(height, width) + 1, dtype=torch.int64, device=id_map.device)
    high = torch.full_like(low, -1)
    index = ids[:, None].expand(-1, 2)
    low.scatter_reduce_(0, index, torch.stack((y, x0), 1), "amin")
    high.scatter_reduce_(0, index, torch.stack((y + 1, x1), 1), "amax")
    boxes = torch.cat((low, high), 1).to(torch.float32)
    return torch.where(high[:, :1] < 0, absent, boxes)
