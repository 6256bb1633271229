"""Pasting masks: plain form, order, overlap, empty masks, failures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seamseg.ops.paste import paste_mask, paste_masks_into

from . import oracles

FULL = torch.full((4, 4), 9.0)


def on_plane(mask, box, size):
    crop, (y0, x0, y1, x1) = paste_mask(mask, box, size)
    plane = torch.zeros(size, dtype=torch.bool)
    plane[y0:y1, x0:x1] = crop
    return plane


@given(st.integers(0, 10_000), st.integers(3, 14), st.integers(3, 14), st.integers(1, 6))
def test_against_plain(seed, height, width, cells):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.randn(cells, cells + 1, generator=generator) * 4
    corner = torch.rand(2, generator=generator) * 16 - 4
    box = torch.cat((corner, corner + torch.rand(2, generator=generator) * 12 + 0.2))
    result = on_plane(mask, box, (height, width))
    assert (result != oracles.paste_mask(mask, box, (height, width))).sum() == 0


def test_crop_stays_near_the_box():
    crop, region = paste_mask(FULL, torch.tensor([10.0, 20.0, 14.0, 26.0]), (100, 200))
    assert region == (9, 19, 15, 27)
    assert crop.shape == (6, 8)
    assert crop.sum() == 24


@pytest.mark.parametrize(
    "box",
    [[5, 5, 5, 9], [9, 9, 5, 5], [-9, -9, -2, -2], [50, 2, 60, 4], [0, 0, float("nan"), 3], [0, 0, float("inf"), 3]],
)
def test_box_without_pixels(box):
    crop, (y0, x0, y1, x1) = paste_mask(FULL, torch.tensor(box, dtype=torch.float32), (20, 20))
    assert crop.shape == (y1 - y0, x1 - x0)
    assert crop.sum() == 0


def test_paste_in_order():
    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 2, 4, 6], [0, 3, 4, 5], [2, 0, 6, 4], [8, 8, 8, 9]])
    masks = FULL.expand(5, 4, 4)
    ids = torch.zeros(6, 6, dtype=torch.long)
    # the second is half taken, the third wholly, the fourth half, the fifth is empty
    assert paste_masks_into(ids, masks, boxes, 0.5) == [0, 1, 3]
    assert ids.tolist() == [[1, 1, 1, 1, 2, 2]] * 4 + [[3, 3, 3, 3, 0, 0]] * 2
    ids.zero_()
    assert paste_masks_into(ids, masks, boxes, 0.4, first_id=7) == [0]
    assert ids.unique().tolist() == [0, 7]
    ids.zero_()
    assert paste_masks_into(ids, masks, boxes, 0.5, keep_empty=True) == [0, 1, 3, 4]
    ids.zero_()
    assert paste_masks_into(ids, masks, boxes, 1.0) == [0, 1, 3]
    ids.zero_()
    assert paste_masks_into(ids, masks, boxes, 1.0, keep_empty=True) == [0, 1, 2, 3, 4]


def test_nothing_to_paste():
    ids = torch.ones(3, 3, dtype=torch.int32)
    assert paste_masks_into(ids, torch.zeros(0, 28, 28), torch.zeros(0, 4), 0.5) == []
    assert ids.sum() == 9


def test_wrong_arguments():
    ids, box = torch.zeros(3, 3, dtype=torch.long), torch.rand(1, 4)
    with pytest.raises(ValueError, match="id_map must be an integer H x W"):
        paste_masks_into(torch.zeros(3, 3), FULL[None], box, 0.5)
    with pytest.raises(ValueError, match="mask_logits must be 1 x h x w, got float32 tensor of shape 2x4x4"):
        paste_masks_into(ids, FULL.expand(2, 4, 4), box, 0.5)
    with pytest.raises(ValueError, match="mask_logits must be a floating h x w"):
        paste_mask(FULL[None], box[0], (3, 3))
    with pytest.raises(ValueError, match="box must be"):
        paste_mask(FULL, box, (3, 3))
