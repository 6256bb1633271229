"""Counting labels, filling free pixels, boxes of ids: goldens, the kernels against plain torch, threads, failures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.golden_files import golden
from support.op_contract import same_with_threads

from seamseg.ops.labels import count_labels, extract_boxes, fill_free
from seamseg.ops.reference import labels as plain

ID_TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
SHAPES = st.one_of(st.tuples(st.integers(0, 40), st.integers(0, 60)), st.tuples(st.integers(0, 9)))


def maps(shape, dtypes, seed):
    """Labels -2 .. 9 and an id map half free, both views that are not contiguous."""
    generator = torch.Generator().manual_seed(seed)
    doubled = (*shape[:-1], shape[-1] * 2)
    labels = torch.randint(-2, 10, doubled, generator=generator).to(dtypes[0])
    ids = torch.randint(0, 2, doubled, generator=generator).to(dtypes[1]) * 3
    return labels[..., ::2], ids[..., ::2]


@given(SHAPES, st.integers(0, 12), st.tuples(st.sampled_from(ID_TYPES), st.sampled_from(ID_TYPES)), st.integers(0, 999))
def test_kernels_equal_plain(shape, n, dtypes, seed):
    labels, ids = maps(shape, dtypes, seed)
    for where in (None, ids):
        counts = count_labels(labels, n, where)
        assert counts.dtype == torch.int64
        assert torch.equal(counts, plain.count_labels(labels, n, where))
    table = torch.arange(n) * 2 % 7
    wanted = ids.clone()
    plain.fill_free(wanted, labels, table)
    fill_free(ids, labels, table)
    assert torch.equal(ids, wanted)


def test_by_hand():
    labels, ids = torch.tensor([[0, 0, 1, 2], [2, 2, 9, -1]]), torch.tensor([[0, 5, 0, 0], [0, 5, 0, 0]])
    assert count_labels(labels, 4).tolist() == [2, 1, 3, 0]
    assert count_labels(labels, 4, ids).tolist() == [1, 1, 2, 0]
    fill_free(ids, labels, torch.tensor([7, 0, 8]))
    assert ids.tolist() == [[7, 5, 0, 8], [8, 5, 0, 0]]


def test_large_maps_and_threads():
    labels, ids = maps((700, 900), (torch.int64, torch.int64), 0)
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
    with pytest.raises(TypeError, match="count_labels: labels must be an integer tensor, got float32"):
        count_labels(torch.rand(3), 2)
    with pytest.raises(ValueError, match="count_labels: n must be 0 to 16777216, got -1"):
        count_labels(labels, -1)
    with pytest.raises(ValueError, match="id_map must have the shape of labels, got int32 tensor of shape 2x4"):
        count_labels(labels, 2, ids[:2])
    with pytest.raises(ValueError, match="id_map must have the shape of labels, got int32 tensor of shape 3x4"):
        count_labels(labels[:2], 2, ids)
    with pytest.raises(TypeError, match="fill_free: id_map must be an integer tensor, got bool"):
        fill_free(ids.bool(), labels, torch.arange(3))
    with pytest.raises(ValueError, match="fill_free: ids must be n int64, got int32"):
        fill_free(ids, labels, torch.arange(3).int())
    for wrong in (torch.rand(3, 3), torch.zeros(3).long()):
        with pytest.raises(ValueError, match="extract_boxes: id_map must be an integer"):
            extract_boxes(wrong, 2)
    with pytest.raises(ValueError, match="extract_boxes: n must not be negative"):
        extract_boxes(labels, -1)


@pytest.mark.parametrize(
    ("case", "layer", "n", "out"),
    [("a", None, 7, "a/out_n7"), ("a", None, 3, "a/out_n3"), ("b", None, 6, "b/out_n6"), ("a", 0, 6, "c/out_2d")],
)
def test_extract_boxes_golden(case, layer, n, out):
    id_map = golden(f"extract_boxes/{case}/mask")
    id_map = id_map if layer is None else id_map[layer]
    expected = golden(f"extract_boxes/{out}")
    assert torch.equal(extract_boxes(id_map, n), expected)


@given(
    st.integers(1, 3),
    st.integers(0, 40),
    st.integers(0, 200),
    st.integers(0, 12),
    st.sampled_from((torch.bool, *ID_TYPES)),
    st.integers(0, 2**20),
)
def test_boxes_equal_plain(layers, height, width, n, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(-1, 14, (layers, height, width // 8 + 1), generator=generator).to(dtype)
    id_map = coarse.repeat_interleave(8, 2)[..., :width]  # runs, and a view that is not contiguous
    assert torch.equal(extract_boxes(id_map, n), plain.extract_boxes(id_map, n))


@pytest.mark.parametrize("shape", [(517, 331), (3, 200, 301), (1, 200001), (200001, 1)])
def test_boxes_for_any_number_of_threads(shape):
    id_map = torch.randint(-1, 40, shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(same_with_threads(lambda: extract_boxes(id_map, 38)), plain.extract_boxes(id_map, 38))
