"""The crop-aware box loss is the smallest loss among the boxes that are consistent with what a crop shows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from seamseg.models.heads.box_loss import cut_sides
from seamseg.ops.boxes import clip_boxes, encode_boxes, smooth_l1
from seamseg.recipes.crop_aware import consistent_codes

SIZE = (60, 80)
WEIGHTS = (10.0, 10.0, 5.0, 5.0)
CORNERS = torch.tensor([[0.0, 0, *SIZE]], dtype=torch.float64)
OUTWARDS = torch.tensor([[-1.0, -1, 1, 1]], dtype=torch.float64)
boxes = st.tuples(*[st.floats(0, 1, allow_subnormal=False)] * 4)
sides = st.tuples(*[st.booleans()] * 4)


def boxes_of(values, height=SIZE[0], width=SIZE[1], least=8):
    """A box inside `height x width` from four numbers in 0..1."""
    y, x, h, w = values
    h, w = least + h * (height - least), least + w * (width - least)
    y, x = y * (height - h), x * (width - w)
    return torch.tensor([[y, x, y + h, x + w]], dtype=torch.float64)


def code(anchors, boxes):
    return encode_boxes(anchors, boxes) * torch.tensor(WEIGHTS, dtype=torch.float64)


def loss(predicted, codes, sigma=1.0):
    return smooth_l1(predicted, codes, sigma).sum(dim=1)


def crop_aware(predicted, anchors, visible, cut, sigma=1.0):
    codes = consistent_codes(predicted, code(anchors, visible), anchors, visible, cut, sigma, WEIGHTS)
    return loss(predicted, codes, sigma)


def test_sides_on_a_border_where_the_photo_continues():
    boxes = torch.tensor([[0.0, 0, 60, 80], [0, 3, 59, 80], [5, 5, 60, 9]])
    everywhere = [[True] * 4, [True, False, False, True], [False, False, True, False]]
    beyond = torch.ones(3, 4, dtype=torch.bool)
    assert cut_sides(boxes, SIZE, beyond).tolist() == everywhere
    beyond[0] = torch.tensor([False, True, False, False])  # the first box is of another image
    assert cut_sides(boxes, SIZE, beyond).tolist() == [[False, True, False, False], *everywhere[1:]]
    assert not cut_sides(boxes, SIZE, ~beyond)[1:].any()
    assert cut_sides(boxes[:0], SIZE, beyond[:0]).shape == (0, 4)


@settings(max_examples=25)
@given(boxes, boxes, boxes, sides, st.integers(0, 1000))
def test_no_consistent_box_of_any_size_costs_less(box, anchor, beyond, cut, seed):
    """Than 2000 random ones and the visible box; also above 1000 / 16 times the anchor's side, where decoding ends."""
    anchors, cut = boxes_of(anchor, least=1), torch.tensor([cut])
    visible = torch.where(cut, CORNERS, boxes_of(box))
    away = torch.tensor([beyond], dtype=torch.float64).mul(12).exp() - 1
    whole = torch.where(cut, CORNERS + OUTWARDS * away, visible)
    assert torch.equal(clip_boxes(whole, SIZE), visible)
    consistent = code(anchors, whole)
    assert float(crop_aware(consistent, anchors, visible, cut)) < 1e-6
    generator = torch.Generator().manual_seed(seed)
    near = (torch.rand(1, 4, generator=generator, dtype=torch.float64) - 0.5) * torch.tensor([20.0, 20, 10, 10])
    for predicted in (near, consistent * 3):  # of no consistent box
        found = float(crop_aware(predicted, anchors, visible, cut))
        away = (torch.rand(2000, 4, generator=generator).double() * 16).exp() - 1
        others = torch.where(cut, CORNERS + OUTWARDS * away, visible)
        assert found <= float(loss(predicted.expand(2000, 4), code(anchors.expand(2000, 4), others)).min()) + 1e-3
        visible_loss = float(loss(predicted, code(anchors, visible)))
        assert found <= visible_loss + 1e-9
        assert found == visible_loss or cut.any()
    absurd = crop_aware(predicted.float() * 1e4, anchors.float(), visible.float(), cut)
    assert torch.isfinite(absurd).all()


@pytest.mark.parametrize("sigma", [1.0, 3.0])
def test_gradients_are_those_of_the_minimum(sigma):
    generator = torch.Generator().manual_seed(0)
    count = 40
    anchors = torch.cat([boxes_of(torch.rand(4, generator=generator)) for _ in range(count)])
    visible = torch.cat([boxes_of(torch.rand(4, generator=generator)) for _ in range(count)])
    cut = torch.rand(count, 4, generator=generator) < 0.5
    predicted = torch.randn(count, 4, generator=generator, dtype=torch.float64).mul_(3).requires_grad_()
    crop_aware(predicted, anchors, visible, cut, sigma).sum().backward()
    step = 1e-3
    for column in range(4):
        moved = torch.zeros(4, dtype=torch.float64)
        moved[column] = step
        with torch.no_grad():
            up, down = (crop_aware(predicted + sign * moved, anchors, visible, cut, sigma) for sign in (1, -1))
        assert_close((up - down) / (2 * step), predicted.grad[:, column], rtol=0.02, atol=0.02)
