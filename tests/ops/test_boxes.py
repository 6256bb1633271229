"""Boxes and smooth L1: goldens, plain forms, failures."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.golden_files import golden, names
from support.op_contract import same_with_threads
from torch.testing import assert_close

from seamseg.ops.boxes import (
    box_area,
    box_iou,
    box_overlap,
    clip_boxes,
    crowd_overlap,
    decode_boxes,
    encode_boxes,
    match_boxes,
    smooth_l1,
)
from seamseg.ops.nms import nms, nms_fixed
from seamseg.ops.reference import boxes as plain


def random_boxes(n, seed, size=50.0):
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
    assert plain.crowd_count(torch.tensor([[-torch.inf, 1, torch.inf, 3]]), torch.ones(4, 5)).tolist() == [8]


@given(st.integers(1, 10), st.integers(0, 1000))
def test_decoding_inverts_encoding(n, seed):
    anchors, targets = random_boxes(n, seed).double(), random_boxes(n, seed + 7).double()
    anchors[:, 2:] += 1
    assert_close(decode_boxes(anchors, encode_boxes(anchors, targets)), targets)


def test_clip_and_area():
    boxes = torch.tensor([[-3.0, 2.0, 5.0, 99.0], [1.0, -1.0, 2.0, 2.0]])
    assert clip_boxes(boxes, (4, 10)).tolist() == [[0, 2, 4, 10], [1, 0, 2, 2]]
    assert box_area(clip_boxes(boxes, (4, 10))).tolist() == [32, 2]
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
        (lambda: box_area(torch.zeros(2, 4).long()), "boxes must be a floating point tensor, got int64"),
        (lambda: crowd_overlap(torch.rand(1, 4), torch.rand(4, 4)), "crowd_mask must be a bool or integer H x W"),
        (lambda: smooth_l1(torch.rand(3, 4), torch.rand(1, 4), 1), "one shape, got float32 tensor of shape 3x4 and"),
        (lambda: smooth_l1(torch.rand(3, 4), torch.rand(3, 4), 0), "sigma must be positive, got 0"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


# nms/ties/out_t: the order that an unstable sort happened to give ties
@pytest.mark.parametrize("name", [n for n in names("nms/") if re.search(r"(?<!ties/)out_.*t[\d.]+_n", n)])
def test_golden(name):
    case = name.split("/")[1]
    threshold, n_max = re.search(r"_t([\d.]+)_n(-?\d+)", name).groups()
    kept = nms(golden(f"nms/{case}/bbx"), golden(f"nms/{case}/scores"), float(threshold), int(n_max))
    assert torch.equal(kept, golden(name))


def test_empty_and_single():
    assert torch.equal(nms(torch.zeros(0, 4), torch.zeros(0), 0.5), golden("nms/empty/out"))
    assert torch.equal(nms(torch.rand(1, 4), torch.rand(1), 0.5), golden("nms/single/out"))
    assert nms(torch.zeros(0, 4), torch.zeros(0), 0.5, groups=torch.zeros(0, dtype=torch.long)).shape == (0,)


def test_wrong_arguments_of_nms():
    boxes, scores, groups = torch.rand(3, 4), torch.rand(3), torch.zeros(4, dtype=torch.long)
    for wrong, words in (
        ((boxes[:, :3], scores, None), "boxes must be N x 4"),
        ((boxes, scores[:2], None), "scores must be N"),
        ((boxes, scores, groups), "groups must be N int64"),
    ):
        with pytest.raises(RuntimeError, match=f"nms: {words}"):
            nms(*wrong[:2], 0.5, groups=wrong[2])
        with pytest.raises(RuntimeError, match="nms: boxes must be N x 4, scores and groups N"):
            plain.nms(*wrong[:2], 0.5, 0, wrong[2])


def test_without_a_limit_all_boxes_that_overlap_none_are_kept():
    corners = torch.arange(4.0)[:, None] * 10
    boxes = torch.cat([corners, corners, corners + 5, corners + 5], 1)
    scores = torch.tensor([0.1, 0.4, 0.2, 0.3])
    assert nms(boxes, scores, 0.5).tolist() == nms_fixed(boxes, scores, 0.5)[0].tolist() == [1, 3, 2, 0]
    assert nms_fixed(boxes, scores, 0.5)[1] == 4


@pytest.mark.parametrize(("n_max", "grouped", "size"), [(-1, False, 7), (3, False, 3), (9, False, 7), (3, True, 7)])
def test_a_traced_fixed_result_has_the_size_of_the_real_one(n_max, grouped, size):
    groups = torch.zeros(7, dtype=torch.long) if grouped else None
    assert nms_fixed(torch.rand(7, 4), torch.rand(7), 0.5, n_max, groups)[0].shape == (size,)
    traced = torch.rand(7, 4, device="meta"), torch.rand(7, device="meta")
    assert nms_fixed(*traced, 0.5, n_max, None if groups is None else groups.to("meta"))[0].shape == (size,)


FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
THRESHOLDS = (-0.5, 0.0, 0.3, 0.5, 0.7, 1.0, float("nan"), float("inf"))
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -1e30, 1e-40)
seeds = st.integers(0, 2**20)


def odd_boxes(count, generator, dtype=torch.float32):
    """Boxes on a grid, so that overlaps meet thresholds and repeat; some are empty, inverted, NaN or infinite."""
    corner = torch.randint(0, 30, (count, 2), generator=generator)
    boxes = torch.cat((corner, corner + torch.randint(-1, 12, (count, 2), generator=generator)), 1).to(dtype)
    fate = torch.rand(count, 4, generator=generator)
    draw = torch.randint(0, len(SPECIAL), (count, 4), generator=generator)
    boxes = torch.where(fate < 0.02, torch.tensor(SPECIAL, dtype=dtype)[draw], boxes)
    return boxes.repeat(1, 2)[:, 2:6].roll(2, 1) if count % 2 else boxes  # or a view that is not contiguous


def exactly(result, wanted):
    assert_close(result, wanted, rtol=0, atol=0, equal_nan=True)


@given(st.integers(0, 300), st.sampled_from(THRESHOLDS), st.sampled_from([-1, 0, 1, 7]), st.data())
def test_nms_equals_plain(count, threshold, n_max, data):
    generator = torch.Generator().manual_seed(data.draw(seeds))
    boxes = odd_boxes(count, generator, data.draw(st.sampled_from(FLOATING)))
    scores = torch.randint(-9, 10, (count,), generator=generator).to(data.draw(st.sampled_from(FLOATING))) / 7
    scores[torch.rand(count, generator=generator) < 0.05] = -0.0
    scores[torch.rand(count, generator=generator) < 0.02] = float("nan")
    n_groups = data.draw(st.sampled_from([0, 1, 3, 90]))
    groups = torch.randint(-2, n_groups, (count,), generator=generator) if n_groups else None
    if groups is not None and n_groups == 3:
        groups = groups * 2**61
    wanted = plain.nms(boxes, scores, threshold, n_max, groups)
    assert nms(boxes, scores, threshold, n_max, groups).tolist() == wanted.tolist()
    indices, number = nms_fixed(boxes, scores, threshold, n_max, groups)
    assert indices[: int(number)].tolist() == wanted.tolist()
    assert (indices[int(number) :] == -1).all()
    exactly((indices, number), plain.nms_fixed(boxes, scores, threshold, n_max, groups))


@pytest.mark.parametrize("n_groups", [1, 65])
def test_nms_of_many_boxes_for_any_number_of_threads(n_groups):
    generator = torch.Generator().manual_seed(1)
    boxes = torch.rand(4000, 4, generator=generator) * 300
    boxes[:, 2:] = boxes[:, :2] + 5 + boxes[:, 2:] / 5
    scores, groups = torch.rand(4000, generator=generator), torch.randint(0, n_groups, (4000,), generator=generator)
    wanted = plain.nms(boxes, scores, 0.5, 1000, groups)
    assert torch.equal(same_with_threads(lambda: nms(boxes, scores, 0.5, 1000, groups)), wanted)


def test_nms_of_nan_and_of_integers():
    boxes = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 9], [0, float("nan"), 9, 9]])
    assert nms(boxes, torch.tensor([1.0, float("nan"), 0.5]), 0.5).tolist() == [1, 2], "such scores first"
    groups = torch.tensor([0, 1, 0], dtype=torch.uint8)
    assert nms(boxes[[0, 0, 0]], torch.tensor([1, 2, 3]), 0.5, groups=groups).tolist() == [2, 1]


@given(st.integers(0, 300), st.integers(0, 40), st.sampled_from(FLOATING), st.booleans(), seeds)
def test_matching_equals_the_maxima_of_the_matrix(n, m, dtype, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = odd_boxes(n, generator, dtype), odd_boxes(m, generator, dtype)
    if spread:
        # neighbours in the list are neighbours in the plane, far from most others
        a = a + torch.arange(n, dtype=dtype)[:, None] // 8 * 16
    exactly(match_boxes(a, b), plain.match_boxes(a, b))
    exactly(match_boxes(b, a), plain.match_boxes(b, a))


def test_matching_of_many_boxes_for_any_number_of_threads():
    generator = torch.Generator().manual_seed(2)
    a, b = odd_boxes(20000, generator), odd_boxes(60, generator)
    exactly(same_with_threads(lambda: match_boxes(a, b)), plain.match_boxes(a, b))


def test_half_precision_is_computed_in_float32():
    boxes = torch.tensor([[0.0, 0, 512, 512], [0, 0, 512, 256]])
    assert box_iou(boxes.half(), boxes.half())[0, 1] == 0.5
    assert match_boxes(boxes.bfloat16(), boxes.bfloat16())[0].dtype == torch.float32
    assert crowd_overlap(boxes.half(), torch.ones(512, 512, dtype=torch.bool)).tolist() == [1, 1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert box_iou(boxes, boxes).dtype == torch.float32
