"""Boxes and smooth L1: goldens, plain forms, failures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.golden_files import golden
from torch.testing import assert_close

from seamseg.ops.boxes import (
    box_area,
    box_iou,
    box_overlap,
    clip_boxes,
    crowd_overlap,
    decode_boxes,
    encode_boxes,
    smooth_l1,
)


def random_boxes(n: int, seed: int, size: float = 50.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(n, 2, generator=generator) * size - 5
    return torch.cat((corner, corner + torch.rand(n, 2, generator=generator) * size / 2), 1)


@pytest.mark.parametrize(("function", "name"), [(box_iou, "ious/out"), (box_overlap, "bbx_overlap/out")])
def test_iou_and_overlap_golden(function, name):
    assert_close(function(golden("ious/b0"), golden("ious/b1")), golden(name), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("sigma", [1, 3])
def test_smooth_l1_golden(sigma):
    x = golden("smooth_l1/x1").requires_grad_()
    loss = smooth_l1(x, golden("smooth_l1/x2"), sigma)
    loss.sum().backward()
    assert_close(loss, golden(f"smooth_l1/sigma{sigma}/loss"), rtol=1e-6, atol=1e-6)
    assert_close(x.grad, golden(f"smooth_l1/sigma{sigma}/grad"), rtol=1e-6, atol=1e-6)


def test_encode_golden():
    codes = encode_boxes(golden("shift/b0"), golden("shift/b1"))
    assert_close(codes, golden("shift/calculate"), rtol=1e-6, atol=1e-6, equal_nan=True)


def test_decode_golden():
    boxes = golden("shift/b0")
    assert_close(decode_boxes(boxes, golden("shift/shift")), golden("shift/shift_boxes"), rtol=1e-6, atol=1e-5)
    per_class = decode_boxes(boxes[:5, None], golden("shift/shift3"))
    assert_close(per_class, golden("shift/shift_boxes3"), rtol=1e-6, atol=1e-5)


def test_crowd_overlap_golden():
    result = crowd_overlap(golden("mask_overlap/bbx"), golden("mask_overlap/mask"))
    assert_close(result, golden("mask_overlap/out"), rtol=0, atol=0, equal_nan=True)
    same = crowd_overlap(golden("mask_overlap/bbx"), golden("mask_overlap/mask").bool())
    assert_close(same, result, rtol=0, atol=0, equal_nan=True)


@given(st.integers(1, 10), st.integers(0, 1000))
def test_decoding_inverts_encoding(n, seed):
    anchors, targets = random_boxes(n, seed).double(), random_boxes(n, seed + 7).double()
    anchors[:, 2:] += 1
    assert_close(decode_boxes(anchors, encode_boxes(anchors, targets)), targets)


def test_clip_and_area():
    boxes = torch.tensor([[-3.0, 2.0, 5.0, 99.0], [1.0, 1.0, 2.0, 2.0]])
    assert clip_boxes(boxes, (4, 10)).tolist() == [[0, 2, 4, 10], [1, 1, 2, 2]]
    assert box_area(clip_boxes(boxes, (4, 10))).tolist() == [32, 1]
    assert clip_boxes(torch.rand(2, 3, 4), (4, 10)).shape == (2, 3, 4)


def test_decoding_clamps_scales_only():
    far = decode_boxes(torch.tensor([[0.0, 0.0, 16.0, 16.0]]), torch.tensor([[0.0, 0.0, 50.0, -50.0]]))
    assert_close(far[0, 2] - far[0, 0], torch.tensor(1000.0), rtol=1e-5, atol=0)
    assert far[0, 3] - far[0, 1] < 1e-6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: box_iou(torch.rand(3, 5), torch.rand(2, 4)), "a must be N x 4, got float32 tensor of shape 3x5"),
        (lambda: box_iou(torch.rand(3, 4), torch.rand(4)), "box_iou: b must be N x 4"),
        (lambda: box_area(torch.zeros(2, 3)), "box_area: boxes must be ... x 4"),
        (lambda: crowd_overlap(torch.rand(1, 4), torch.rand(4, 4)), "crowd_mask must be a bool or integer H x W"),
        (lambda: box_iou(torch.rand(3, 4), torch.rand(3, 4, device="meta")), "a on cpu, b on meta"),
        (lambda: smooth_l1(torch.rand(3, 4), torch.rand(1, 4), 1), "one shape, got float32 tensor of shape 3x4 and"),
        (lambda: smooth_l1(torch.rand(3, 4), torch.rand(3, 4), 0), "sigma must be positive, got 0"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_integer_boxes_are_refused():
    with pytest.raises(TypeError, match="boxes must be a floating point tensor, got int64 tensor of shape 2x4"):
        box_area(torch.zeros(2, 4, dtype=torch.long))
