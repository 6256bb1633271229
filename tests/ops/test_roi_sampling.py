"""ROI sampling: goldens with gradients, plain form, gradcheck, pyramids, failures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import op_oracles as oracles
from support.golden_files import golden, names
from support.op_contract import same_with_threads
from torch.testing import assert_close

from seamseg.ops.reference import roi_sampling as reference
from seamseg.ops.roi_sampling import roi_features, roi_sampling


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["border", "zero"])
@pytest.mark.parametrize("size", [(1, 1), (5, 7), (14, 14)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_golden(interpolation, padding, size, memory_format):
    case = f"roi_sampling/{interpolation}_{padding}_{size[0]}x{size[1]}/"
    boxes, index = golden("roi_sampling/bbx"), golden("roi_sampling/idx")
    x = golden("roi_sampling/x").contiguous(memory_format=memory_format).requires_grad_()
    y = roi_sampling(x, boxes, index, size, interpolation, padding)
    assert_close(y, golden(case + "y"), rtol=1e-5, atol=2e-6)
    stored = names(case)
    if case + "dy" in stored:
        y.backward(golden(case + "dy"))
        assert_close(x.grad, golden(case + "dx"), rtol=1e-5, atol=1e-5)
    if case + "y_int" in stored:
        integer = roi_sampling(golden("roi_sampling/x_int"), boxes, index, size, interpolation, padding)
        assert torch.equal(integer, golden(case + "y_int"))


def test_golden_nearest_ties():
    boxes = torch.tensor([[0, 0, 11, 13], [0.5, 0.5, 11.5, 13.5], [0, 0, 5.5, 6.5]])
    x = golden("roi_sampling/x_int")[:1]
    y = roi_sampling(x, boxes, torch.zeros(3, dtype=torch.long), (11, 13), "nearest")
    assert torch.equal(y, golden("roi_sampling/nearest_tie_y"))


def test_golden_features():
    size = tuple(golden("rois/img_size").tolist())
    index = golden("rois/idx")
    y = roi_features([golden("rois/x")], golden("rois/bbx"), index, torch.zeros_like(index), size, (14, 14))
    assert_close(y, golden("rois/out_14x14"), rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_boxes_far_outside_or_undefined(interpolation):
    x = torch.randn(1, 2, 5, 6)
    boxes = torch.tensor(
        [[-1e30, -1e30, -1e29, -1e29], [1e30, 1e30, 1e31, 1e31], [float("nan")] * 4, [0, 0, float("inf"), 1]]
    )
    index = torch.zeros(4, dtype=torch.long)
    zero = roi_sampling(x, boxes, index, (2, 2), interpolation, "zero")
    assert zero.isfinite().all()
    assert zero[:3].abs().sum() == 0
    border = roi_sampling(x, boxes, index, (2, 2), interpolation, "border")
    assert_close(border[0], x[0, :, :1, :1].expand(2, 2, 2))
    assert_close(border[1], x[0, :, -1:, -1:].expand(2, 2, 2))


def laid_out(x, layout):
    if layout == "channels last":
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "strided":
        return torch.stack((x, -x), -1).permute(1, 0, 3, 2, 4)[..., 0].permute(1, 0, 3, 2)
    if layout == "slice":
        wide = torch.cat((x, x, x), 3).contiguous(memory_format=torch.channels_last)
        return wide[..., x.shape[3] : 2 * x.shape[3]]
    return x


def pyramid(generator, count, images, channels, size, dtype, layouts):
    """Levels, boxes in and around the image, their images and levels, and the size of the image."""
    sizes = [(max(1, size[0] >> i), max(1, size[1] >> i)) for i in range(len(layouts))]
    levels = [torch.randn(images, channels, *s, generator=generator).to(dtype) for s in sizes]
    levels = [laid_out(x, layout) for x, layout in zip(levels, layouts)]
    padded = (4 * size[0], 4 * size[1] + 1)
    boxes = torch.rand(count, 4, generator=generator) * 1.5 * max(padded) - 0.25 * max(padded)
    index = torch.randint(0, images, (count,), generator=generator)
    level = torch.randint(0, len(layouts), (count,), generator=generator)
    return levels, boxes, index, level, padded


LAYOUTS = ("contiguous", "channels last", "strided", "slice")


@given(
    st.sampled_from([torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]),
    st.sampled_from(LAYOUTS[:2]),
    st.booleans(),
    st.integers(0, 2**20),
)
def test_integer_maps(dtype, layout, zero, seed):
    generator = torch.Generator().manual_seed(seed)
    x = laid_out(torch.randint(0, 100, (2, 3, 9, 12), generator=generator).to(dtype), layout)
    boxes, index = torch.rand(7, 4, generator=generator) * 20 - 4, torch.randint(0, 2, (7,), generator=generator)
    y = roi_sampling(x, boxes, index, (6, 5), "nearest", "zero" if zero else "border")
    assert torch.equal(y, reference.roi_sampling([x], boxes, index, None, (0, 0), 6, 5, True, zero))


@pytest.mark.parametrize("values", [[2**53 + 1] * 4, [float("inf"), float("nan"), -float("inf"), 1.0]])
def test_nearest_copies_large_ids_and_what_is_not_finite(values):
    x = torch.tensor(values).view(1, 1, 2, 2)
    y = roi_sampling(x, torch.tensor([[0.0, 0, 2, 2]]), torch.zeros(1).long(), (2, 2), "nearest")
    assert_close(y, x, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS[:2])
def test_any_number_of_threads_gives_the_same(layout):
    generator = torch.Generator().manual_seed(3)
    layouts = [layout] * 3
    levels, *arguments = pyramid(generator, 200, 2, 32, (60, 90), torch.float32, layouts)
    levels = [x.requires_grad_() for x in levels]

    def run():
        y = roi_features(levels, *arguments, (7, 7))
        return (y.detach(), *torch.autograd.grad(y, levels, y.detach()))

    same_with_threads(run)


def test_gradcheck():
    generator = torch.Generator().manual_seed(5)
    levels, *arguments = pyramid(generator, 4, 1, 2, (4, 6), torch.float64, LAYOUTS[:2])
    levels = [x.requires_grad_() for x in levels]

    def squares(*levels):
        return roi_features(levels, *arguments, (2, 3)).square()

    assert torch.autograd.gradcheck(squares, levels)


@pytest.mark.parametrize("form", ["kernel", "plain"])
@pytest.mark.parametrize(("place", "value"), [("index", 2), ("index", -1), ("level", 2), ("level", -(2**62))])
def test_places_that_are_not_there(form, place, value):
    generator = torch.Generator().manual_seed(8)
    levels, boxes, index, level, padded = pyramid(generator, 5, 2, 3, (8, 12), torch.float32, LAYOUTS[:2])
    {"index": index, "level": level}[place][3] = value
    shapes = [side for x in levels for side in x.shape]
    forward, backward = (
        (torch.ops.seamseg.roi_sampling, torch.ops.seamseg.roi_sampling_backward)
        if form == "kernel"
        else (reference.roi_sampling, reference.roi_sampling_backward)
    )
    words = place if form == "kernel" else f"{place} must be 0 to 1, got"
    with pytest.raises(RuntimeError, match=words):
        forward(levels, boxes, index, level, padded, 3, 3, False, False)
    dy = torch.randn(5, 3, 3, 3)
    with pytest.raises(RuntimeError, match=place):
        backward(dy, shapes, [False, True], boxes, index, level, padded, False, False, False)


X, BOXES, ZEROS = torch.rand(1, 3, 4, 4), torch.rand(2, 4), torch.zeros(2).long()


@pytest.mark.parametrize(
    ("changes", "words", "plain"),
    [
        ({"levels": [X[0]]}, "levels must be N x C x H x W with pixels", "levels"),
        ({"levels": []}, "levels is empty", None),
        ({"levels": [X, X.double()]}, "levels must have one dtype", "levels"),
        ({"levels": [X, X[:, :2]]}, "the same number of channels", "levels"),
        ({"levels": [X.long()]}, "use nearest", None),
        ({"boxes": torch.rand(2, 3)}, "boxes must be K x 4", "boxes"),
        ({"index": ZEROS[:1]}, "index and level must be one int64 a box", "boxes"),
        ({"level": torch.zeros(3).long()}, "index and level must be one int64 a box", "boxes"),
        ({"padded_size": (0, 8)}, "padded_size must be two positive numbers", None),
        ({"out_size": (0, 2)}, "out_size must be positive", None),
    ],
)
def test_wrong_arguments(changes, words, plain):
    given = {"levels": [X], "boxes": BOXES, "index": ZEROS, "level": ZEROS, "padded_size": (8, 8), "out_size": (2, 2)}
    given |= changes
    with pytest.raises(RuntimeError, match=words):
        roi_features(**given)
    if plain is not None:
        size = given.pop("out_size")
        with pytest.raises(RuntimeError, match=f"^roi_sampling: {plain} must be"):
            reference.roi_sampling(*given.values(), *size, False, False)


def test_wrong_modes():
    with pytest.raises(ValueError, match="'cubic'"):
        roi_sampling(X, BOXES, ZEROS, (2, 2), "cubic")
