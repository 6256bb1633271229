"""Snapshots: ours and the original's, and every way in which a file can be something else."""

from __future__ import annotations

import io
import os
import pickle
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from seamseg.backbones.resnet import RESNETS, ResNet
from seamseg.engine.snapshot import (
    Snapshot,
    load_into,
    load_module,
    load_snapshot,
    load_tensors,
    network_state,
    save_snapshot,
    verify_snapshot,
)
from seamseg.errors import InputError, SeamsegError
from seamseg.ops.norm import ABN


class Net(nn.Module):
    """The parts of a network, each one layer."""

    def __init__(self, classes: int = 3, semantic: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 4, 1), bn=nn.BatchNorm2d(4)))
        self.rpn_head = nn.Linear(4, 2)
        self.roi_head = nn.Linear(4, classes)
        self.sem_head = nn.Linear(4, classes) if semantic else None


def snapshot_of(net: nn.Module) -> Snapshot:
    progress = {"epoch": 4, "global_step": 10}
    return Snapshot("[general]\nseed = 3\n", dict(network_state(net)), progress, {"num_stuff": 1})


def assert_same(first: nn.Module, second: nn.Module) -> None:
    other = second.state_dict()
    for key, value in first.state_dict().items():
        assert torch.equal(value, other[key]), key


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as error:
        load_snapshot(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


class Evil:
    """Makes the file `EVIL` in the current folder when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch EVIL",)


# --- reading and writing


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
    """Meters, scores that are numpy numbers or tensors, ordered dicts, no counters, keys nobody knows."""
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


def test_files_of_old_torch_releases(tmp_path: Path) -> None:
    content = {"config": "", "state_dict": network_state(Net()), "training_meta": {}}
    torch.save(content, tmp_path / "model.pth.tar", _use_new_zipfile_serialization=False)
    assert set(load_snapshot(tmp_path / "model.pth.tar").state_dict) == {"body", "rpn_head", "roi_head", "sem_head"}


def test_an_open_file_with_a_name(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"config": "", "state_dict": network_state(Net())}, buffer)
    buffer.seek(0)
    assert load_snapshot(buffer, "model.zip:model.tar").training_meta == {}
    with pytest.raises(InputError, match=r"^model\.zip:model\.tar: not a snapshot"):
        load_snapshot(io.BytesIO(b"nonsense"), "model.zip:model.tar")


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    save_snapshot(tmp_path / "new" / "model.pth.tar", snapshot_of(Net()))
    assert (tmp_path / "new" / "model.pth.tar").is_file()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SeamsegError, match="cannot be written"):
        save_snapshot(tmp_path / "file" / "model.pth.tar", snapshot_of(Net()))


# --- files that are something else


def test_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "model.pth.tar").endswith("no such file")


def test_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path).endswith("is a folder, not a snapshot file")


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("new", [True, False], ids=["zip", "old"])
def test_truncated(tmp_path: Path, part: float, new: bool) -> None:
    path = tmp_path / "model.pth.tar"
    content = {"config": "", "state_dict": network_state(Net()), "training_meta": {}}
    torch.save(content, path, _use_new_zipfile_serialization=new)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    assert refusal(path).endswith("a truncated or damaged snapshot; copy it again")


@pytest.mark.parametrize("data", [b"\0", b"hello", b"<html>not found</html>", b"\x89PNG\r\n" + bytes(4096)])
def test_other_files(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.pth.tar").write_bytes(data)
    assert refusal(tmp_path / "model.pth.tar").endswith("not a snapshot: it was not written by torch.save")


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "model.pth.tar").touch()
    assert refusal(tmp_path / "model.pth.tar").endswith("the file is empty; copy it again")


def test_a_zip_of_something_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("photo.jpg", b"...")
    assert "damaged snapshot" in refusal(tmp_path / "photos.zip")


@pytest.mark.parametrize(
    "content",
    [
        {"body": {}},
        {"state_dict": {}},
        {"state_dict": {"encoder": {}}},
        {"state_dict": {"conv1.weight": torch.zeros(1)}},
        [1, 2, 3],
        torch.zeros(3),
    ],
    ids=["bare", "empty", "other parts", "flat", "list", "tensor"],
)
def test_checkpoints_of_other_programs(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "model.pth.tar")
    message = refusal(tmp_path / "model.pth.tar")
    assert "not a snapshot of this network: it must hold" in message
    assert "body, rpn_head, roi_head, sem_head" in message


def test_a_part_that_is_no_state_dict(tmp_path: Path) -> None:
    torch.save({"state_dict": {"body": [1]}}, tmp_path / "model.pth.tar")
    assert "its 'body' is no state dict but a list" in refusal(tmp_path / "model.pth.tar")


@pytest.mark.parametrize("how", ["torch", "old torch", "pickle"])
def test_pickled_code_is_refused_and_not_run(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pth.tar"
    content = {"config": Evil(), "state_dict": {"body": {}}}
    if how == "pickle":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "torch")
    message = refusal(path)
    assert "refused: it holds pickled code" in message
    assert "system" in message
    assert not (tmp_path / "EVIL").exists()


@pytest.mark.parametrize("protocol", [0, 1, 3, 4, 5])
def test_code_in_pickles_of_other_programs(tmp_path: Path, protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pth.tar"
    path.write_bytes(pickle.dumps({"state_dict": {"body": Evil()}}, protocol=protocol))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        message = refusal(path)
    # text pickles have no mark to know them by
    assert "refused" in message or (protocol == 0 and "not a snapshot" in message)
    assert not (tmp_path / "EVIL").exists()


def test_a_pickled_network_is_refused(tmp_path: Path) -> None:
    torch.save(Net(), tmp_path / "model.pth.tar")
    assert "refused: it holds pickled code" in refusal(tmp_path / "model.pth.tar")


def test_our_allowances_end_with_the_reading(tmp_path: Path) -> None:
    before = set(map(str, torch.serialization.get_safe_globals()))
    torch.save({"a": np.float64(1)}, tmp_path / "a.pth")
    load_tensors(tmp_path / "a.pth", "a.pth")
    assert set(map(str, torch.serialization.get_safe_globals())) == before


# --- into a network


def test_missing_part(tmp_path: Path) -> None:
    snapshot = snapshot_of(Net())
    del snapshot.state_dict["sem_head"]
    with pytest.raises(InputError, match=r"^m\.tar: has no 'sem_head': it is a snapshot of another kind of network$"):
        load_into(Net(), snapshot, name="m.tar")
    report = load_into(Net(), snapshot, strict=False)
    assert report.skipped == ["sem_head (not in the file)"]


def test_a_network_without_the_part_takes_the_rest() -> None:
    assert load_into(Net(semantic=False), snapshot_of(Net())).skipped == []


def test_another_class_count() -> None:
    snapshot, net = snapshot_of(Net(classes=5)), Net(classes=3)
    with pytest.raises(InputError) as error:
        load_into(net, snapshot, name="m.tar")
    assert str(error.value).startswith("m.tar: does not fit this network: 4 tensors differ, first roi_head.weight (5x4")
    assert "5x4 in the file, 3x4 in the network" in str(error.value)


def test_pre_training_skips_and_says_what_does_not_fit() -> None:
    source, net = Net(classes=5), Net(classes=3)
    before = net.roi_head.weight.clone()
    report = load_into(net, snapshot_of(source), strict=False)
    assert [line.partition(" ")[0] for line in report.skipped] == [
        *("roi_head.weight", "roi_head.bias", "sem_head.weight", "sem_head.bias"),
    ]
    assert "skipped 4: roi_head.weight (5x4 in the file, 3x4 in the network), roi_head.bias (5 in" in str(report)
    assert torch.equal(net.roi_head.weight, before)
    assert_same(source.body, net.body)


def test_missing_and_surplus_tensors() -> None:
    net = Net()
    state = dict(net.body.state_dict())
    del state["conv.bias"]
    state["conv2.weight"] = torch.zeros(1)
    report = load_module(net.body, state, "body")
    assert report.skipped == ["body.conv.bias (not in the file)", "body.conv2.weight (not in the network)"]


def test_values_that_are_no_tensors() -> None:
    net = Net()
    report = load_module(net.rpn_head, {"weight": 3, "bias": net.rpn_head.bias}, "rpn_head")  # type: ignore[dict-item]
    assert report.skipped == ["rpn_head.weight (no tensor)"]
    assert report.loaded == 1


def test_another_depth_does_not_pass_for_ours() -> None:
    """Every tensor of a ResNet-50 has one of the same name and shape in a ResNet-101."""
    with torch.device("meta"):
        shallow, deep = ResNet(RESNETS["resnet50"], ABN), ResNet(RESNETS["resnet101"], ABN)
    report = load_module(shallow, deep.state_dict(), "body")
    assert report.skipped
    assert all(line.endswith("(not in the network)") for line in report.skipped)


def test_a_bare_backbone_fits_a_body_with_a_pyramid() -> None:
    body = nn.ModuleDict({"backbone": nn.Linear(2, 2), "fpn": nn.Linear(2, 2)})
    state = {"weight": torch.ones(2, 2), "bias": torch.ones(2)}
    report = load_module(body, state, "body")
    assert report.loaded == 2
    assert torch.equal(body["backbone"].state_dict()["bias"], torch.ones(2))


def test_half_precision_weights_load_into_a_float_network() -> None:
    net, source = Net(), Net().half()
    load_into(net, snapshot_of(source))
    assert net.roi_head.weight.dtype == torch.float32
    assert torch.equal(net.roi_head.weight, source.roi_head.weight.float())


# --- checksums


def test_a_good_snapshot_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "model.pth.tar"
    save_snapshot(path, snapshot_of(Net()))
    verify_snapshot(path)
    torch.save(torch.load(path), path, _use_new_zipfile_serialization=False)
    verify_snapshot(path)


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
    for place in range(0, len(data), 7):
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
    assert found > 0.2 * len(data) / 7


def test_a_flipped_bit_of_a_weight_is_found(tmp_path: Path) -> None:
    path = tmp_path / "model.pth.tar"
    net = Net()
    save_snapshot(path, snapshot_of(net))
    data, weight = path.read_bytes(), net.rpn_head.weight.detach().numpy().tobytes()
    place = data.index(weight) + 5
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    load_snapshot(path)  # torch itself does not look
    with pytest.raises(InputError, match="truncated or damaged snapshot"):
        verify_snapshot(path)
