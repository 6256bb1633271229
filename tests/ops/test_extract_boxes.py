"""Boxes of ids: goldens, plain forms, the kernel against plain torch, failures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.golden_files import golden
from support.op_contract import with_threads

from seamseg.ops.labels import extract_boxes
from seamseg.ops.reference.labels import extract_boxes as extract_boxes_plain

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


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
    st.sampled_from(INTEGERS),
    st.integers(0, 2**20),
)
def test_kernel_equals_plain(layers, height, width, n, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(-1, 14, (layers, height, width // 8 + 1), generator=generator).to(dtype)
    id_map = coarse.repeat_interleave(8, 2)[..., :width]  # runs, and a view that is not contiguous
    assert torch.equal(extract_boxes(id_map, n), extract_boxes_plain(id_map, n))


@pytest.mark.parametrize("shape", [(517, 331), (3, 200, 301), (1, 200001), (200001, 1)])
def test_any_number_of_threads_gives_the_same(shape):
    id_map = torch.randint(-1, 40, shape, generator=torch.Generator().manual_seed(0))
    expected = extract_boxes_plain(id_map, 38)
    assert all(torch.equal(found, expected) for found in with_threads((1, 2, 7), lambda: extract_boxes(id_map, 38)))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: extract_boxes(torch.rand(3, 3), 2), "extract_boxes: id_map must be an integer"),
        (lambda: extract_boxes(torch.zeros(3).long(), 2), "extract_boxes: id_map must be an integer"),
        (lambda: extract_boxes(torch.zeros(3, 3).long(), -1), "extract_boxes: n must not be negative"),
    ],
)
def test_failures(call, words):
    with pytest.raises(ValueError, match=words):
        call()
