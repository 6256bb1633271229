"""Snapshots of this project and of the original: reading and atomic writing."""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.small_snapshots import Net, assert_same, save_snapshot, snapshot_of

from seamseg.checkpoints.snapshot import load_into, load_snapshot, network_state
from seamseg.utils.errors import InputError, SeamsegError


def test_round_trip(tmp_path: Path) -> None:
    net = Net()
    save_snapshot(tmp_path / "model.pth.tar", snapshot_of(net))
    read = load_snapshot(tmp_path / "model.pth.tar")
    assert (read.config, read.training_meta) == ("[general]\nseed = 3\n", {"epoch": 4, "global_step": 10})
    assert read.metadata == {"num_stuff": 1}
    other = Net()
    report = load_into(other, read)
    assert report.skipped == []
    assert str(report) == f"loaded {report.loaded} tensors"
    assert_same(net, other)


def test_the_layout_is_the_original_one(tmp_path: Path) -> None:
    save_snapshot(tmp_path / "model.pth.tar", snapshot_of(Net()))
    content = torch.load(tmp_path / "model.pth.tar", weights_only=True)
    assert set(content) == {"config", "state_dict", "training_meta", "metadata"}
    assert set(content["state_dict"]) == {"body", "rpn_head", "roi_head", "sem_head"}
    assert isinstance(content["config"], str)


def test_snapshots_of_the_original(tmp_path: Path) -> None:
    """Meters, scores that are numpy numbers or tensors, ordered dicts, no counters, unknown keys."""
    net = Net()
    state: dict[str, Any] = {k: OrderedDict(v) for k, v in network_state(net).items()}
    del state["body"]["bn.num_batches_tracked"]
    state["optimizer"] = torch.optim.SGD(net.parameters(), lr=0.1).state_dict()
    state["loss_meter"] = {"sum": torch.tensor(3.0), "last": np.float64(1.5), "all": np.zeros(3, np.float32)}
    state["future"] = {"anything": [1, "two"]}
    content = {
        "config": "[general]\n",
        "state_dict": state,
        "training_meta": {"epoch": 1, "last_score": np.float32(0.25), "best_score": torch.tensor(0.5)},
        "another": 1,
    }
    torch.save(content, tmp_path / "model.pth.tar")
    snapshot = load_snapshot(tmp_path / "model.pth.tar")
    assert snapshot.metadata is None
    assert float(snapshot.training_meta["last_score"]) == 0.25
    assert {"optimizer", "loss_meter", "future"} <= set(snapshot.state_dict)
    other = Net()
    assert load_into(other, snapshot).skipped == []
    assert_same(net, other)


def test_an_open_file_with_a_name(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"config": "", "state_dict": network_state(Net())}, buffer)
    buffer.seek(0)
    assert load_snapshot(buffer, "model.zip:model.tar").training_meta == {}
    with pytest.raises(InputError, match=r"^model\.zip:model\.tar: not a snapshot"):
        load_snapshot(io.BytesIO(b"nonsense"), "model.zip:model.tar")


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.pth.tar"
    save_snapshot(path, snapshot_of(Net()))
    before = path.read_bytes()

    def full(content: object, file: io.BufferedWriter) -> None:
        file.write(b"half of it")
        raise RuntimeError("[enforce fail at inline_container.cc:626] . unexpected pos\nbacktrace")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(SeamsegError, match=r"model\.pth\.tar: cannot be written: .*unexpected pos$"):
        save_snapshot(path, snapshot_of(Net()))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.pth.tar"]


def test_writing_reaches_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda f: (order.append("fsync"), fsync(f)))
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append("replace"), replace(a, b)))
    save_snapshot(tmp_path / "model.pth.tar", snapshot_of(Net()))
    assert order[:2] == ["fsync", "replace"]
