"""PackedSequence: what the parts of the network and the DataLoader rely on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.golden_files import golden
from support.networks import toy_batch
from torch.utils import _pytree as pytree

from seamseg.structures import FixedBatch, PackedSequence, Things

sizes = st.lists(st.one_of(st.none(), st.tuples(st.integers(1, 9), st.integers(1, 9))), min_size=1, max_size=5)


def test_typed_list_with_absent_entries():
    packed = PackedSequence(torch.zeros(2, 3), None, torch.ones(4, 3))
    assert len(packed) == 3
    assert packed[1] is None
    assert packed[1:].sizes() == [(0, 0), (4, 3)]
    assert packed.dtype == torch.float32
    assert packed.sizes() == [(2, 3), (0, 0), (4, 3)]
    assert PackedSequence([None]).dtype is None


def test_refused_entries():
    for other in (torch.zeros(2).long(), torch.zeros(2, 2), torch.zeros(2).double()):
        with pytest.raises(ValueError, match="entry 1"):
            PackedSequence(torch.zeros(2), other)
    with pytest.raises(TypeError, match="entry 0"):
        PackedSequence([np.zeros(3)])


@given(sizes, st.integers(1, 8))
def test_padding_keeps_values_and_sizes(shapes, multiple):
    packed = PackedSequence([None if s is None else torch.rand(2, *s) for s in shapes])
    if packed.dtype is None:
        with pytest.raises(ValueError, match="every entry is None"):
            packed.as_padded()
        return
    padded, valid = packed.as_padded(value=-1.0, multiple=multiple)
    assert padded.shape[-2] % multiple == 0
    assert padded.shape[-1] % multiple == 0
    for row, tensor, (h, w) in zip(padded, packed, valid):
        if tensor is None:
            assert (h, w) == (0, 0)
            assert (row == -1).all()
        else:
            assert torch.equal(row[:, :h, :w], tensor)
            assert (row[:, h:] == -1).all()
            assert (row[:, :, w:] == -1).all()


def test_padding_equals_the_original():
    packed = PackedSequence(golden("pad/a"), None, golden("pad/c"))
    padded, valid = packed.as_padded(value=-1.0)
    assert torch.equal(padded, golden("pad/out"))
    assert torch.equal(torch.tensor(valid), golden("pad/sizes"))
    assert torch.equal(packed.as_padded(multiple=6)[0], golden("pad/out_snap6"))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_concatenated_rows_know_their_image(counts):
    packed = PackedSequence([torch.rand(n, 4) if n else None for n in counts])
    values, index = packed.concatenated()
    if values is None:
        assert packed.dtype is None
        assert index is None
        return
    assert index.dtype == torch.int64
    assert len(values) == len(index) == sum(counts)
    for i, rows in enumerate(packed):
        assert torch.equal(values[index == i], torch.zeros(0, 4) if rows is None else rows)


def test_is_a_pytree_for_ddp_and_compile():
    packed = PackedSequence(torch.ones(2), None)
    doubled = pytree.tree_map(lambda t: t if t is None else t * 2, packed)
    assert isinstance(doubled, PackedSequence)
    assert torch.equal(doubled[0], torch.full((2,), 2.0))
    assert doubled[1] is None


def test_things_of_a_batch_with_a_row_for_each_id_are_those_of_the_batch():
    batch = toy_batch((32, 48), (48, 48), crowd=(0,))
    batch.categories[0][2] = 255  # with a box
    fixed = FixedBatch.of(batch, 4)
    assert [len(rows) for rows in (*fixed.categories, *fixed.iscrowd, *fixed.boxes)] == [8] * 6
    assert (fixed.boxes[0][5:] == -1).all()
    for one, other, classes in zip(Things.of(fixed, 1), Things.of(batch, 1), ([1], [0, 1, 3])):
        assert torch.equal(one.ids[one.real], other.ids)
        assert one.classes[one.real].tolist() == other.classes.tolist() == classes
        assert torch.equal(one.boxes[one.real], other.boxes)
        assert one.boxes[~one.real].unique(dim=0).tolist() == [[-2, -2, -1, -1]]
        assert torch.equal(one.crowd, torch.zeros(48, 48).bool() if other.crowd is None else other.crowd)
    with pytest.raises(ValueError, match="shorter"):
        replace(batch, iscrowd=batch.iscrowd[:1]).with_target_info()
