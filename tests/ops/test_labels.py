"""Counting labels, filling free pixels, boxes of ids: goldens, the kernels against plain torch, threads, failures."""

import pytest
import torch
from support.golden_files import golden
from support.op_contract import same_with_threads

from seamseg.ops.labels import count_labels, extract_boxes, fill_free
from seamseg.ops.reference import labels as plain


def test_by_hand():
    labels, ids = torch.tensor([[0, 0, 1, 2], [2, 2, 9, -1]]), torch.tensor([[0, 5, 0, 0], [0, 5, 0, 0]])
    assert count_labels(labels, 4).tolist() == [2, 1, 3, 0]
    assert count_labels(labels, 4, ids).tolist() == [1, 1, 2, 0]
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
    labels, ids = torch.zeros(3, 4, dtype=torch.long), torch.zeros(3, 4, dtype=torch.int32)
    for call, words in (
        (lambda: count_labels(torch.rand(3), 2), "count_labels: expected an integer or bool tensor"),
        (lambda: count_labels(labels, -1), "count_labels: n must be 0 to 2.24"),
        (lambda: count_labels(labels, 2, ids[:2]), "count_labels: id_map must have the shape of labels"),
        (lambda: fill_free(ids.bool(), labels, torch.arange(3)), "fill_free: id_map must be an integer tensor"),
        (lambda: fill_free(ids, labels, torch.arange(3).int()), "fill_free: ids must be n int64"),
        (lambda: extract_boxes(torch.rand(3, 3), 2), "extract_boxes: expected an integer or bool tensor"),
        (lambda: extract_boxes(labels, -1), "extract_boxes: n must not be negative"),
    ):
        with pytest.raises(RuntimeError, match=words):
            call()
    for plain_call, words in (
        (lambda: plain.count_labels(torch.rand(3), 2, None), "count_labels: expected an integer or bool tensor"),
        (lambda: plain.count_labels(labels, -1, None), "count_labels: n must be 0 to 2.24"),
        (lambda: plain.count_labels(labels, 2, ids[:1]), "count_labels: id_map must have the shape of labels"),
        (lambda: plain.fill_free(ids, labels[:1], torch.arange(3)), "fill_free: id_map must have the shape of labels"),
        (lambda: plain.extract_boxes(torch.rand(3, 3), 2), "extract_boxes: expected an integer or bool tensor"),
    ):
        with pytest.raises(RuntimeError, match=words):
            plain_call()


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
