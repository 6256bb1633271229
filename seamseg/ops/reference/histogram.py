"""Counting pairs of labels of two maps, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def joint_histogram(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`seamseg.ops.histogram.joint_histogram`; tensors of one shape with any integers, also negative ones.

    Label maps are made of long runs; only where a run starts is there anything to sort.
    """
    first, second = (x.reshape(-1).to(torch.int64) for x in (a, b))
    total = first.numel()
    if total == 0:
        return first.new_zeros((0, 2)), first.new_zeros(0)
    change = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    start = torch.cat((change.new_ones(1), change)).nonzero().squeeze(1)
    length = torch.cat((start[1:], start.new_tensor([total]))) - start
    # the ranks of two labels fit into one number, whatever the labels are
    left, left_rank = first[start].unique(return_inverse=True)
    right, right_rank = second[start].unique(return_inverse=True)
    keys, where = (left_rank * right.numel() + right_rank).unique(return_inverse=True)
    counts = torch.zeros_like(keys).index_add_(0, where, length)
    ranks = keys.div(right.numel(), rounding_mode="floor"), keys % right.numel()
    return torch.stack((left[ranks[0]], right[ranks[1]]), 1), counts
