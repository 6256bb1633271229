"""Damage within a snapshot is found by the checksums of its records."""

from __future__ import annotations

import zlib
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.small_snapshots import Net, save_snapshot, snapshot_of

from seamseg.checkpoints.snapshot import load_snapshot, verify_snapshot
from seamseg.utils.errors import InputError


def test_a_good_snapshot_is_verified(tmp_path: Path) -> None:
    """By the checksums of its records; the format before torch 1.6 has none."""
    path = tmp_path / "model.pth.tar"
    save_snapshot(path, snapshot_of(Net()))
    with mock.patch("zipfile.crc32", wraps=zlib.crc32) as checksum:
        verify_snapshot(path)
        assert checksum.call_count > 1
        torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)
        checksum.reset_mock()
        verify_snapshot(path)
        assert not checksum.called


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncation_is_found(tmp_path: Path, part: float) -> None:
    path = tmp_path / "model.pth.tar"
    save_snapshot(path, snapshot_of(Net()))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(InputError, match=r"model\.pth\.tar: "):
        verify_snapshot(path)


def test_every_flipped_bit_is_found_or_harmless(tmp_path: Path) -> None:
    """Whatever byte is changed, the snapshot is refused, or everything in it is as it was."""
    path = tmp_path / "model.pth.tar"
    save_snapshot(path, snapshot_of(Net()))
    data = path.read_bytes()
    good = load_snapshot(path)
    leaves = torch.utils._pytree.tree_leaves(good.state_dict)
    found = 0
    for place in range(0, len(data), 17):
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :])
        try:
            verify_snapshot(path)
        except InputError:
            found += 1
            continue
        read = load_snapshot(path)
        assert (read.config, read.training_meta, read.metadata) == (good.config, good.training_meta, good.metadata)
        for a, b in zip(leaves, torch.utils._pytree.tree_leaves(read.state_dict), strict=True):
            assert torch.equal(a, b)
    assert found > 0.2 * len(data) / 17
