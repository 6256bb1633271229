"""NMS: goldens, plain form, groups, ties, failures, speed."""

import re

import pytest
import torch
from support.golden_files import golden, names

from seamseg.ops.nms import nms, nms_fixed


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


def test_wrong_arguments():
    boxes = torch.rand(3, 4)
    with pytest.raises(ValueError, match="nms: scores must have one entry for each of 3 boxes, got float32 tensor"):
        nms(boxes, torch.rand(2), 0.5)
    with pytest.raises(ValueError, match="nms: groups must be 3 integers"):
        nms(boxes, torch.rand(3), 0.5, groups=torch.rand(3))
    for count in (2, 4):
        with pytest.raises(ValueError, match="nms: groups must be 3 integers"):
            nms(boxes, torch.rand(3), 0.5, groups=torch.zeros(count, dtype=torch.long))
    with pytest.raises(ValueError, match="boxes must be N x 4"):
        nms(torch.rand(3, 5), torch.rand(3), 0.5)


def test_without_a_limit_all_boxes_that_overlap_none_are_kept():
    corners = torch.arange(4.0)[:, None] * 10
    boxes = torch.cat([corners, corners, corners + 5, corners + 5], 1)
    scores = torch.tensor([0.1, 0.4, 0.2, 0.3])
    assert nms(boxes, scores, 0.5).tolist() == [1, 3, 2, 0]
    indices, count = nms_fixed(boxes, scores, 0.5)
    assert indices.tolist() == [1, 3, 2, 0]
    assert count == 4


@pytest.mark.parametrize(("n_max", "grouped", "size"), [(-1, False, 7), (3, False, 3), (9, False, 7), (3, True, 7)])
def test_a_traced_fixed_result_has_the_size_of_the_real_one(n_max, grouped, size):
    groups = torch.zeros(7, dtype=torch.long) if grouped else None
    assert nms_fixed(torch.rand(7, 4), torch.rand(7), 0.5, n_max, groups)[0].shape == (size,)
    traced = torch.rand(7, 4, device="meta"), torch.rand(7, device="meta")
    assert nms_fixed(*traced, 0.5, n_max, None if groups is None else groups.to("meta"))[0].shape == (size,)
