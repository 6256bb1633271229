"""Label and id maps, pasting: goldens, the kernels against plain torch, order and overlap, threads, failures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import op_oracles as oracles
from support.golden_files import golden
from support.op_contract import same_with_threads

from seamseg.ops.labels import count_labels, extract_boxes, fill_free, paste_masks_into
from seamseg.ops.reference import labels as plain


def test_by_hand():
    labels, ids = torch.tensor([[0, 0, 1, 2], [2, 2, 9, -1]]), torch.tensor([[0, 5, 0, 0], [0, 5, 0, 0]])
    assert count_labels(labels, 4).tolist() == [2, 1, 3, 0]
    assert count_labels(labels, 4, ids).tolist() == [1, 1, 2, 0]
    assert plain.count_labels(labels, 0, ids).tolist() == []
    fill_free(ids, labels, torch.tensor([7, 0, 8]))
    assert ids.tolist() == [[7, 5, 0, 8], [8, 5, 0, 0]]


def test_large_maps_and_threads():
    labels, ids = torch.randint(-2, 10, (700, 1800))[:, ::2], torch.randint(0, 2, (700, 1800))[:, ::2] * 3
    counts, wanted = plain.count_labels(labels, 9, ids), ids.clone()
    plain.fill_free(wanted, labels, torch.arange(9))

    def run():
        filled = ids.clone()
        fill_free(filled, labels, torch.arange(9))
        return count_labels(labels, 9, ids), filled

    found, filled = same_with_threads(run)
    assert torch.equal(found, counts)
    assert torch.equal(filled, wanted)


def test_wrong_arguments():
    ids, classes = torch.zeros(3, 4, dtype=torch.int32), torch.arange(3)
    maps = ids.long()
    for function, arguments, words in (
        (count_labels, (torch.rand(3), 2, None), "expected an integer or bool tensor"),
        (count_labels, (maps, -1, None), "n must be 0 to 2.24"),
        (count_labels, (maps[:2], 2, ids), "id_map must have the shape of labels"),
        (fill_free, (ids, maps[:1], classes), "id_map must have the shape of labels"),
        (extract_boxes, (torch.rand(3, 3), 2), "expected an integer or bool tensor"),
    ):
        for form in (function, getattr(plain, function.__name__)):
            with pytest.raises(RuntimeError, match=f"{function.__name__}: {words}"):
                form(*arguments)
    for call, words in (
        (lambda: fill_free(ids.bool(), maps, classes), "fill_free: id_map must be an integer tensor"),
        (lambda: fill_free(ids, maps, classes.int()), "fill_free: ids must be n int64"),
        (lambda: extract_boxes(maps, -1), "extract_boxes: n must not be negative"),
    ):
        with pytest.raises(RuntimeError, match=words):
            call()


@pytest.mark.parametrize(
    ("case", "layer", "n", "out"),
    [("a", None, 7, "a/out_n7"), ("a", None, 3, "a/out_n3"), ("b", None, 6, "b/out_n6"), ("a", 0, 6, "c/out_2d")],
)
def test_extract_boxes_golden(case, layer, n, out):
    id_map = golden(f"extract_boxes/{case}/mask")
    id_map = id_map if layer is None else id_map[layer]
    expected = golden(f"extract_boxes/{out}")
    assert torch.equal(extract_boxes(id_map, n), expected)


@pytest.mark.parametrize("shape", [(517, 331), (3, 200, 301), (1, 200001), (200001, 1)])
def test_boxes_for_any_number_of_threads(shape):
    id_map = torch.randint(-1, 40, shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(same_with_threads(lambda: extract_boxes(id_map, 38)), plain.extract_boxes(id_map, 38))


FULL = torch.full((4, 4), 9.0)


@given(st.integers(0, 10_000), st.integers(3, 14), st.integers(3, 14), st.integers(1, 6))
def test_one_mask_is_what_it_is_defined_as(seed, height, width, cells):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.randn(cells, cells + 1, generator=generator) * 4
    corner = torch.rand(2, generator=generator) * 16 - 4
    box = torch.cat((corner, corner + torch.rand(2, generator=generator) * 12 + 0.2))
    ids = torch.zeros(height, width, dtype=torch.long)
    paste_masks_into(ids, mask.sigmoid()[None], box[None], 1.0, 1, False)
    assert torch.equal(ids > 0, oracles.paste_mask(mask, box, (height, width)))


def pasted(ids, logits, boxes, overlap, first_id=1, keep_empty=False):
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


def test_pasting_of_large_crops_for_any_number_of_threads():
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
    assert torch.equal(kept, plain.paste_masks_into(ids, masks, boxes, 0.5, 1, False))
    assert torch.equal(plane, ids)
    assert ids.max() > 1


def test_wrong_arguments_of_pasting():
    ids, box = torch.zeros(3, 3, dtype=torch.long), torch.rand(1, 4)
    for wrong in (ids.bool(), ids[0], ids[None]):
        with pytest.raises(RuntimeError, match="paste_masks_into: id_map must be"):
            paste_masks_into(wrong, FULL[None], box, 0.5, 1, False)
    for paste in (paste_masks_into, plain.paste_masks_into):
        with pytest.raises(RuntimeError, match="cannot hold the ids of all instances"):
            paste(ids.byte(), FULL.expand(2, 4, 4), box.expand(2, 4), 0.5, 255, False)
        assert len(paste(ids.byte(), FULL.expand(2, 4, 4), box.expand(2, 4), 0.5, 254, False)) == 2
    for wrong in (FULL.expand(2, 4, 4), FULL, FULL[None].long()):
        with pytest.raises(RuntimeError, match="paste_masks_into: "):
            paste_masks_into(ids, wrong, box, 0.5, 1, False)
