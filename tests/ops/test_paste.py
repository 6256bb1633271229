"""Pasting masks: plain form, the kernel against plain torch, order, overlap, empty masks, failures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import op_oracles as oracles
from support.op_contract import same_with_threads

from seamseg.maps.idmaps import segments
from seamseg.ops.labels import paste_masks_into
from seamseg.ops.reference.labels import paste_masks_into as paste_masks_into_plain

FULL = torch.full((4, 4), 9.0)


def paste_mask(mask_logits, box, size):
    crop, region = segments.paste_mask(mask_logits.sigmoid().numpy(), box.numpy(), size)
    return torch.from_numpy(crop), region


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


def pasted(ids, logits, boxes, overlap, first_id=1, keep_empty=False):
    """Which instances got an id, by number."""
    kept = paste_masks_into(ids, logits.sigmoid(), boxes, overlap, first_id, keep_empty)
    return kept.nonzero().flatten().tolist()


def test_paste_in_order():
    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 2, 4, 6], [0, 3, 4, 5], [2, 0, 6, 4], [8, 8, 8, 9]])
    masks = FULL.expand(5, 4, 4)
    ids = torch.zeros(6, 6, dtype=torch.long)
    # the second is half taken, the third wholly, the fourth half, the fifth is empty
    assert pasted(ids, masks, boxes, 0.5) == [0, 1, 3]
    assert ids.tolist() == [[1, 1, 1, 1, 2, 2]] * 4 + [[3, 3, 3, 3, 0, 0]] * 2
    ids.zero_()
    assert pasted(ids, masks, boxes, 0.4, first_id=7) == [0]
    assert ids.unique().tolist() == [0, 7]
    ids.zero_()
    assert pasted(ids, masks, boxes, 0.5, keep_empty=True) == [0, 1, 3, 4]
    ids.zero_()
    assert pasted(ids, masks, boxes, 1.0) == [0, 1, 3]
    ids.zero_()
    assert pasted(ids, masks, boxes, 1.0, keep_empty=True) == [0, 1, 2, 3, 4]


def test_large_crops_and_threads():
    """Some pixels are taken, boxes overlap and stick out."""
    generator, size = torch.Generator().manual_seed(1), torch.tensor((700, 1100))
    masks = (torch.randn(20, 28, 28, generator=generator) * 4).sigmoid()
    corner = (torch.rand(20, 2, generator=generator) * 1.4 - 0.2) * size
    boxes = torch.cat((corner, corner + torch.rand(20, 2, generator=generator) * size - 0.5), 1)
    ids = (torch.rand(700, 1100, generator=generator) < 0.1).long() * 5

    def run():
        plane = ids.clone()
        return paste_masks_into(plane, masks, boxes, 0.5, 1, False), plane

    kept, plane = same_with_threads(run)
    assert torch.equal(kept, paste_masks_into_plain(ids, masks, boxes, 0.5, 1, False))
    assert torch.equal(plane, ids)
    assert ids.max() > 1


def test_wrong_arguments():
    ids, box = torch.zeros(3, 3, dtype=torch.long), torch.rand(1, 4)
    for wrong in (ids.bool(), ids[0], ids[None]):
        with pytest.raises(RuntimeError, match="paste_masks_into: id_map must be"):
            paste_masks_into(wrong, FULL[None], box, 0.5, 1, False)
    for paste in (paste_masks_into, paste_masks_into_plain):
        with pytest.raises(RuntimeError, match="cannot hold the ids of all instances"):
            paste(ids.byte(), FULL.expand(2, 4, 4), box.expand(2, 4), 0.5, 255, False)
    for wrong in (FULL.expand(2, 4, 4), FULL, FULL[None].long()):
        with pytest.raises(RuntimeError, match="paste_masks_into: "):
            paste_masks_into(ids, wrong, box, 0.5, 1, False)
