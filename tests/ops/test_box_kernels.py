"""The operators on boxes: kernels against plain torch, the dispatcher's demands, gradients, tracing, nonsense."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.op_contract import with_threads
from torch.testing import assert_close

from seamseg.ops.boxes import box_iou, crowd_overlap, match_boxes
from seamseg.ops.nms import nms, nms_fixed
from seamseg.ops.reference import boxes as plain
from seamseg.ops.reference import nms as plain_nms
from seamseg.ops.reference import widened

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
MASKS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64)
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
    wanted = plain_nms.nms(boxes, scores, threshold, n_max, groups)
    assert nms(boxes, scores, threshold, n_max, groups).tolist() == wanted.tolist()
    indices, number = nms_fixed(boxes, scores, threshold, n_max, groups)
    assert indices[: int(number)].tolist() == wanted.tolist()
    assert (indices[int(number) :] == -1).all()
    exactly((indices, number), plain_nms.nms_fixed(boxes, scores, threshold, n_max, groups))


@pytest.mark.parametrize("n_groups", [1, 65])
def test_nms_of_many_boxes_for_any_number_of_threads(n_groups):
    generator = torch.Generator().manual_seed(1)
    boxes = torch.rand(4000, 4, generator=generator) * 300
    boxes[:, 2:] = boxes[:, :2] + 5 + boxes[:, 2:] / 5
    scores, groups = torch.rand(4000, generator=generator), torch.randint(0, n_groups, (4000,), generator=generator)
    wanted = plain_nms.nms(boxes, scores, 0.5, 200, groups)
    for kept in with_threads((1, 3), lambda: nms(boxes, scores, 0.5, 200, groups)):
        assert kept.tolist() == wanted.tolist()


def test_nms_of_nan_and_of_integers():
    boxes = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 9], [0, float("nan"), 9, 9]])
    assert nms(boxes, torch.tensor([1.0, float("nan"), 0.5]), 0.5).tolist() == [1, 2], "such scores first"
    groups = torch.tensor([0, 1, 0], dtype=torch.uint8)
    assert nms(boxes[[0, 0, 0]], torch.tensor([1, 2, 3]), 0.5, groups=groups).tolist() == [2, 1]


@given(st.integers(0, 40), st.integers(0, 40), st.sampled_from(FLOATING), seeds)
def test_iou_equals_plain(n, m, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = odd_boxes(n, generator, dtype), odd_boxes(m, generator, dtype)
    exactly(box_iou(a, b), plain.box_iou(a, b))


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
    wanted = plain.match_boxes(a, b)
    for found in with_threads((1, 4), lambda: match_boxes(a, b)):
        exactly(found, wanted)


@given(
    st.integers(0, 50), st.integers(0, 70), st.integers(0, 60), st.sampled_from(FLOATING), st.sampled_from(MASKS), seeds
)
def test_crowd_overlap_equals_plain(height, width, count, dtype, mask_dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    boxes = odd_boxes(count, generator, dtype) * 1.7
    mask = (torch.rand(width, height, generator=generator) < 0.1).t() * 4
    mask[: height // 3], mask[:, width // 2 :] = 0, 0
    mask = mask.to(mask_dtype)
    wide = widened(boxes)
    wanted = (plain.crowd_count(boxes, mask.to(torch.int32)).to(wide.dtype) / plain.area(wide)).to(dtype)
    exactly(crowd_overlap(boxes, mask), wanted)


@given(st.integers(1, 9), st.integers(1, 9), st.booleans(), seeds)
def test_iou_gradient_is_that_of_plain_torch(n, m, grid, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.rand(k, 4, generator=generator, dtype=torch.float64) * 8 for k in (n, m))
    if grid:
        # equal corners, but none that just touch: there it is a matter of taste
        a, b = a.round() * 2, b.round() * 2
    a[:, 2:] += a[:, :2] + 1
    b[:, 2:] += b[:, :2] + 1
    weight = torch.randn(n, m, generator=generator, dtype=torch.float64)
    results = []
    for function in (box_iou, plain.box_iou):
        inputs = [t.clone().requires_grad_() for t in (a, b)]
        results.append(torch.autograd.grad((function(*inputs) * weight).sum(), inputs))
    results.append(plain.box_iou_backward(weight, a, b))
    for result in results[1:]:
        assert_close(results[0], result, rtol=1e-9, atol=1e-12)


def test_iou_says_that_it_has_no_second_derivative():
    boxes = torch.tensor([[0.0, 0, 4, 4]], requires_grad=True)
    (gradient,) = torch.autograd.grad(box_iou(boxes, boxes.detach() + 1).sum(), boxes, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once"):
        gradient.sum().backward()


def test_crowd_overlap_has_a_gradient_through_the_area():
    boxes = torch.tensor([[0.0, 0, 4, 4]], requires_grad=True)
    crowd_overlap(boxes, torch.ones(2, 2, dtype=torch.bool)).sum().backward()
    assert_close(boxes.grad, torch.tensor([[1.0, 1, -1, -1]]) / 16)


def test_half_precision_is_computed_in_float32():
    boxes = torch.tensor([[0.0, 0, 512, 512], [0, 0, 512, 256]])
    assert box_iou(boxes.half(), boxes.half())[0, 1] == 0.5
    assert match_boxes(boxes.bfloat16(), boxes.bfloat16())[0].dtype == torch.float32
    assert crowd_overlap(boxes.half(), torch.ones(512, 512, dtype=torch.bool)).tolist() == [1, 1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert box_iou(boxes, boxes).dtype == torch.float32
