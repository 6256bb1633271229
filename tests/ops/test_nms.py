"""NMS: goldens, plain form, groups, ties, failures, speed."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import op_oracles as oracles
from support.golden_files import golden, names

from ops.test_boxes import random_boxes
from seamseg.ops.nms import nms


def portable(name: str) -> bool:
    """Not the order that an unstable sort happened to give ties."""
    return not re.match(r"nms/ties/out_t", name)


@pytest.mark.parametrize("name", [n for n in names("nms/") if re.search(r"out_.*t[\d.]+_n", n) and portable(n)])
def test_golden(name):
    case = name.split("/")[1]
    threshold, n_max = re.search(r"_t([\d.]+)_n(-?\d+)", name).groups()
    kept = nms(golden(f"nms/{case}/bbx"), golden(f"nms/{case}/scores"), float(threshold), int(n_max))
    assert torch.equal(kept, golden(name))


def test_empty_and_single():
    assert torch.equal(nms(torch.zeros(0, 4), torch.zeros(0), 0.5), golden("nms/empty/out"))
    assert torch.equal(nms(torch.rand(1, 4), torch.rand(1), 0.5), golden("nms/single/out"))
    assert nms(torch.zeros(0, 4), torch.zeros(0), 0.5, groups=torch.zeros(0, dtype=torch.long)).shape == (0,)


@given(
    st.integers(0, 40),
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.3, 0.5, 0.9]),
    st.sampled_from([-1, 0, 1, 5]),
    st.sampled_from([0, 1, 3]),
)
def test_against_plain(n, seed, threshold, n_max, n_groups):
    # corners on a grid and few scores: exact thresholds, duplicates, empty boxes and ties
    generator = torch.Generator().manual_seed(seed)
    boxes = random_boxes(n, seed, 12).round().double()
    scores = torch.randint(0, 6, (n,), generator=generator) / 5
    groups = torch.randint(-1, n_groups, (n,), generator=generator) if n_groups else None
    assert nms(boxes, scores, threshold, n_max, groups).tolist() == oracles.nms(boxes, scores, threshold, n_max, groups)


def test_nan_iou_never_suppresses():
    boxes = torch.tensor([[5.0, 5.0, 5.0, 9.0]]).repeat(3, 1)
    assert nms(boxes, torch.tensor([1.0, 3.0, 2.0]), 0.0).tolist() == [1, 2, 0]


def test_wrong_arguments():
    boxes = torch.rand(3, 4)
    with pytest.raises(ValueError, match="nms: scores must have one entry for each of 3 boxes, got float32 tensor"):
        nms(boxes, torch.rand(2), 0.5)
    with pytest.raises(ValueError, match="nms: groups must be 3 integers"):
        nms(boxes, torch.rand(3), 0.5, groups=torch.rand(3))
    with pytest.raises(ValueError, match="boxes must be N x 4"):
        nms(torch.rand(3, 5), torch.rand(3), 0.5)
