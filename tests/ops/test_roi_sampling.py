"""ROI sampling: goldens with gradients, plain form, gradcheck, pyramids, failures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from seamseg.ops.roi_sampling import roi_features, roi_sampling

from . import oracles
from .golden import golden, names

CASES = [
    (i, p, size) for i in ("bilinear", "nearest") for p in ("border", "zero") for size in ((1, 1), (5, 7), (14, 14))
]


@pytest.mark.parametrize(("interpolation", "padding", "size"), CASES)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_golden(interpolation, padding, size, memory_format):
    case = f"roi_sampling/{interpolation}_{padding}_{size[0]}x{size[1]}/"
    boxes, index = golden("roi_sampling/bbx"), golden("roi_sampling/idx")
    x = golden("roi_sampling/x").contiguous(memory_format=memory_format).requires_grad_()
    y, mask = roi_sampling(x, boxes, index, size, interpolation, padding, valid_mask=True)
    assert_close(y, golden(case + "y"), rtol=1e-5, atol=2e-6)
    assert torch.equal(mask, golden(case + "valid").bool())
    stored = names(case)
    if case + "dy" in stored:
        y.backward(golden(case + "dy"))
        assert_close(x.grad, golden(case + "dx"), rtol=1e-5, atol=1e-5)
    if case + "y_int" in stored:
        integer, _ = roi_sampling(golden("roi_sampling/x_int"), boxes, index, size, interpolation, padding)
        assert torch.equal(integer, golden(case + "y_int"))


def test_golden_double():
    x, boxes = golden("roi_sampling/x").double(), golden("roi_sampling/bbx").double()
    y, mask = roi_sampling(x, boxes, golden("roi_sampling/idx"), (5, 7))
    assert mask is None
    assert_close(y, golden("roi_sampling/double_bilinear_border_5x7"), rtol=1e-5, atol=2e-6)


def test_golden_nearest_ties():
    boxes = torch.tensor([[0, 0, 11, 13], [0.5, 0.5, 11.5, 13.5], [0, 0, 5.5, 6.5]])
    x = golden("roi_sampling/x_int")[:1]
    y, _ = roi_sampling(x, boxes, torch.zeros(3, dtype=torch.long), (11, 13), "nearest")
    assert torch.equal(y, golden("roi_sampling/nearest_tie_y"))


def test_golden_features():
    size = tuple(golden("rois/img_size").tolist())
    index = golden("rois/idx")
    y = roi_features([golden("rois/x")], golden("rois/bbx"), index, torch.zeros_like(index), size, (14, 14))
    assert_close(y, golden("rois/out_14x14"), rtol=1e-5, atol=1e-6)


@given(
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)),
    st.integers(0, 4),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.sampled_from(["bilinear", "nearest"]),
    st.sampled_from(["border", "zero"]),
    st.integers(0, 1000),
)
def test_against_plain(shape, count, size, interpolation, padding, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    boxes = torch.randn(count, 4, generator=generator, dtype=torch.float64) * 6 + 2
    index = torch.randint(0, shape[0], (count,), generator=generator)
    y, mask = roi_sampling(x, boxes, index, size, interpolation, padding, valid_mask=True)
    expected, inside = oracles.roi_sampling(x, boxes, index, size, interpolation, padding)
    assert_close(y, expected)
    assert torch.equal(mask, inside)
    if count:
        dy = torch.randn(y.shape, generator=generator, dtype=torch.float64)
        assert_close(*(torch.autograd.grad(out, x, dy)[0] for out in (y, expected)))


@pytest.mark.parametrize("padding", ["border", "zero"])
def test_gradcheck(padding):
    x = torch.randn(2, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    boxes = torch.tensor([[0.3, -1, 3.2, 4.9], [1, 2, 9, 3], [2, 2, 2, 2]], dtype=torch.float64)
    index = torch.tensor([1, 0, 1])
    assert torch.autograd.gradcheck(lambda x: roi_sampling(x, boxes, index, (3, 2), "bilinear", padding)[0], x)


def test_pyramid_equals_level_by_level():
    generator = torch.Generator().manual_seed(1)
    levels = [torch.randn(2, 3, 32 >> i, 48 >> i, generator=generator, requires_grad=True) for i in range(3)]
    boxes = torch.rand(20, 4, generator=generator) * 100
    index = torch.randint(0, 2, (20,), generator=generator)
    level = torch.randint(0, 3, (20,), generator=generator)
    y = roi_features(levels, boxes, index, level, (128, 192), (4, 4))
    assert y.is_contiguous(memory_format=torch.channels_last)
    for k in range(20):
        scale = 32 / (4 << (5 + int(level[k]))) * 1.0
        mapped = (boxes[k : k + 1].double() - 0.5) * scale + 0.5
        plane = levels[level[k]].detach().double()
        expected, _ = oracles.roi_sampling(plane, mapped, index[k : k + 1], (4, 4), "bilinear", "border")
        assert_close(y[k].double(), expected[0], rtol=1e-4, atol=1e-5)
    y.square().sum().backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in levels)


def test_no_boxes():
    levels = [torch.randn(1, 8, 4, 4, requires_grad=True), torch.randn(1, 8, 2, 2, requires_grad=True)]
    empty = torch.zeros(0, dtype=torch.long)
    assert roi_features(levels, torch.zeros(0, 4), empty, empty, (16, 16), (7, 7)).shape == (0, 8, 7, 7)
    y, mask = roi_sampling(levels[0], torch.zeros(0, 4), empty, (3, 2), valid_mask=True)
    assert y.shape == (0, 8, 3, 2)
    assert mask.shape == (0, 3, 2)
    y.sum().backward()
    assert levels[0].grad.abs().sum() == 0


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_boxes_far_outside_or_undefined(interpolation):
    x = torch.randn(1, 2, 5, 6)
    boxes = torch.tensor(
        [[-1e30, -1e30, -1e29, -1e29], [1e30, 1e30, 1e31, 1e31], [float("nan")] * 4, [0, 0, float("inf"), 1]]
    )
    index = torch.zeros(4, dtype=torch.long)
    zero, mask = roi_sampling(x, boxes, index, (2, 2), interpolation, "zero", valid_mask=True)
    assert zero.isfinite().all()
    assert zero[:3].abs().sum() == 0
    assert not mask[:3].any()
    border, _ = roi_sampling(x, boxes, index, (2, 2), interpolation, "border")
    assert_close(border[0], x[0, :, :1, :1].expand(2, 2, 2))
    assert_close(border[1], x[0, :, -1:, -1:].expand(2, 2, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    x = torch.randn(1, 3, 6, 6)
    boxes, index = torch.tensor([[0.0, 1.0, 5.0, 6.0]]), torch.zeros(1, dtype=torch.long)
    y, _ = roi_sampling(x.to(dtype), boxes, index, (4, 4))
    assert y.dtype == dtype
    assert_close(y.float(), roi_sampling(x, boxes, index, (4, 4))[0], rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((torch.rand(3, 4, 4), torch.rand(2, 4), torch.zeros(2).long(), (2, 2)), ValueError, "x must be N x C x H x W"),
        ((torch.rand(1, 3, 4, 4), torch.rand(2, 5), torch.zeros(2).long(), (2, 2)), ValueError, "boxes must be N x 4"),
        (
            (torch.rand(1, 3, 4, 4), torch.rand(2, 4), torch.zeros(3).long(), (2, 2)),
            ValueError,
            "index must be 2 integers",
        ),
        (
            (torch.rand(1, 3, 4, 4), torch.rand(2, 4), torch.zeros(2).long(), (0, 2)),
            ValueError,
            "out_size must be positive",
        ),
        ((torch.rand(1, 3, 4, 4).long(), torch.rand(2, 4), torch.zeros(2).long(), (2, 2)), TypeError, "use nearest"),
        ((torch.rand(1, 3, 4, 4), torch.rand(2, 4), torch.zeros(2).long(), (2, 2), "cubic"), ValueError, "'cubic'"),
        ((torch.rand(1, 3, 0, 4), torch.rand(2, 4), torch.zeros(2).long(), (2, 2)), ValueError, "with pixels"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        roi_sampling(*arguments)


def test_wrong_features():
    with pytest.raises(ValueError, match="levels is empty"):
        roi_features([], torch.rand(1, 4), torch.zeros(1).long(), torch.zeros(1).long(), (8, 8), (2, 2))
    with pytest.raises(ValueError, match="level must be 1 integers"):
        roi_features(
            [torch.rand(1, 1, 2, 2)], torch.rand(1, 4), torch.zeros(1).long(), torch.zeros(2).long(), (8, 8), (2, 2)
        )
