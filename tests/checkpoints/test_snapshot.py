"""Snapshots of this project and of the original: reading, writing, damage, loading into networks; and other files."""

import os
import pickle
import warnings
import zipfile
from collections import OrderedDict, defaultdict, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.small_models import refusal, save_snapshot
from torch import nn

from seamseg.checkpoints.snapshot import (
    Snapshot,
    check_storable,
    load_into,
    load_module,
    load_snapshot,
    network_state,
)
from seamseg.utils.errors import InputError, SeamsegError


class Net(nn.Module):
    def __init__(self, classes=3, semantic=True):
        super().__init__()
        self.body = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 4, 1), bn=nn.BatchNorm2d(4)))
        self.rpn_head = nn.Linear(4, 2)
        self.roi_head = nn.Linear(4, classes)
        self.sem_head = nn.Linear(4, classes) if semantic else None


def snapshot_of(net):
    progress = {"epoch": 4, "global_step": 10}
    return Snapshot("[general]\nseed = 3\n", dict(network_state(net)), progress, {"num_stuff": 1})


def assert_same(first, second):
    other = second.state_dict()
    for key, value in first.state_dict().items():
        assert torch.equal(value, other[key]), key


def test_the_layout_is_the_original_one(tmp_path):
    save_snapshot(tmp_path / "model.pth.tar", snapshot_of(Net()))
    content = torch.load(tmp_path / "model.pth.tar", weights_only=True)
    assert set(content) == {"config", "state_dict", "training_meta", "metadata"}
    assert set(content["state_dict"]) == {"body", "rpn_head", "roi_head", "sem_head"}
    assert isinstance(content["config"], str)


def test_snapshots_of_the_original(tmp_path):
    """Meters, scores that are numpy numbers or tensors, ordered dicts, no counters, unknown keys."""
    net = Net()
    state = {k: OrderedDict(v) for k, v in network_state(net).items()}
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


def test_writing_is_atomic(tmp_path, monkeypatch):
    path = tmp_path / "model.pth.tar"
    save_snapshot(path, snapshot_of(Net()))
    before = path.read_bytes()

    def full(content, file):
        file.write(b"half of it")
        raise RuntimeError("[enforce fail at inline_container.cc:626] . unexpected pos\nbacktrace")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(SeamsegError, match=r"model\.pth\.tar: cannot be written: .*unexpected pos$"):
        save_snapshot(path, snapshot_of(Net()))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.pth.tar"]


def test_values_that_could_be_written_but_not_be_opened():
    check_storable({"a": [1, 2.5, None, (True, "b")], 3: OrderedDict(c=torch.ones(2)), "d": np.float32(1)}, "state")
    for value in (defaultdict(int), deque([1]), np.int16(1), np.array(["a"]), Path()):
        with pytest.raises(InputError, match=r"^state\['x'\]\[1\] is a .*, which snapshots cannot hold"):
            check_storable({"x": [0, value]}, "state")


def test_missing_part():
    snapshot = snapshot_of(Net())
    del snapshot.state_dict["sem_head"]
    with pytest.raises(InputError, match=r"^m\.tar: has no 'sem_head': it is a snapshot of another kind of network$"):
        load_into(Net(), snapshot, name="m.tar")
    report = load_into(Net(), snapshot, strict=False)
    assert report.skipped == ["sem_head (not in the file)"]


@pytest.mark.parametrize(("value", "strict"), [(float("nan"), True), (float("inf"), False)])
def test_values_that_are_not_finite(value, strict):
    net = Net()
    with torch.no_grad():
        net.roi_head.weight[1, 2] = value
    with pytest.raises(InputError, match=r"^m\.tar: roi_head\.weight holds values that are not finite"):
        load_into(Net(), snapshot_of(net), strict, name="m.tar")
    large = Net()
    with torch.no_grad():
        large.roi_head.weight.fill_(3e38)
    assert load_into(Net(), snapshot_of(large), strict).skipped == [], "their sum overflows"


def test_pre_training_skips_and_lists_tensors_that_do_not_fit():
    source, net = Net(classes=5), Net(classes=3)
    before = net.roi_head.weight.clone()
    report = load_into(net, snapshot_of(source), strict=False)
    assert [line.partition(" ")[0] for line in report.skipped] == [
        *("roi_head.weight", "roi_head.bias", "sem_head.weight", "sem_head.bias")
    ]
    assert "skipped 4: roi_head.weight (5x4 in the file, 3x4 in the network), roi_head.bias (5 in" in str(report)
    with pytest.raises(
        InputError, match=r"^m\.tar: does not fit this network: 4 tensors differ, first roi_head.weight"
    ):
        load_into(Net(classes=3), snapshot_of(source), name="m.tar")
    assert torch.equal(net.roi_head.weight, before)
    assert_same(source.body, net.body)
    # that of a semantic network has no pyramid
    body = nn.ModuleDict({"backbone": nn.Linear(2, 2), "fpn": nn.Linear(2, 2)})
    assert load_module(body, nn.Linear(2, 2).state_dict(), "body", "m.tar").loaded == 2


# Files that are not snapshots: a one-line error, and no code in them is run


class Evil:
    """Creates the file `EVIL` in the current folder when unpickled."""

    def __reduce__(self):
        return os.system, ("touch EVIL",)


def test_other_files(tmp_path):
    assert refusal(tmp_path / "model.pth.tar").endswith("no such file")
    assert refusal(tmp_path).endswith("cannot be read: Is a directory")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("photo.jpg", b"...")
    assert "damaged snapshot" in refusal(tmp_path / "photos.zip")
    (tmp_path / "a.html").write_bytes(b"<html>not found</html>")
    assert refusal(tmp_path / "a.html").endswith("not a snapshot: it was not written by torch.save")
    Image.new("RGB", (3, 2)).save(tmp_path / "a.PNG", "PNG")
    assert refusal(tmp_path / "a.PNG").endswith("not written by torch.save; it is an image: the model comes before it")


@pytest.mark.parametrize("part", [0.1, 0.999])
@pytest.mark.parametrize("new", [True, False], ids=["zip", "old"])
def test_truncated(tmp_path, part, new):
    path = tmp_path / "model.pth.tar"
    content = {"config": "", "state_dict": network_state(Net()), "training_meta": {}}
    torch.save(content, path, _use_new_zipfile_serialization=new)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    assert refusal(path).endswith("a truncated or damaged snapshot; copy it again")


@pytest.mark.parametrize("content", [{"state_dict": {"conv1.weight": torch.zeros(1)}}, torch.zeros(3)])
def test_checkpoints_of_other_programs(tmp_path, content):
    torch.save(content, tmp_path / "model.pth.tar")
    message = refusal(tmp_path / "model.pth.tar")
    assert "not a snapshot of this network: it must hold" in message
    assert "body, rpn_head, roi_head, sem_head" in message
    torch.save({"state_dict": {"module.fc.weight": torch.zeros(1)}}, tmp_path / "model.pth.tar")
    assert "a checkpoint of a classifier? `seamseg export` it" in refusal(tmp_path / "model.pth.tar")
    torch.save({"state_dict": {"body": [1]}}, tmp_path / "model.pth.tar")
    assert "its 'body' is not a state dict but a list" in refusal(tmp_path / "model.pth.tar")


@pytest.mark.parametrize("how", ["torch", "old torch", 0, 2, 5])
def test_pickled_code_is_refused_and_not_run(tmp_path, how, monkeypatch):
    """By torch, and by pickles of other programs of each protocol."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pth.tar"
    content = {"config": Evil(), "state_dict": {"body": {}}}
    if isinstance(how, int):
        path.write_bytes(pickle.dumps(content, protocol=how))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "torch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        message = refusal(path)
    if how in ("torch", "old torch", 2):
        assert "refused: it holds pickled code" in message
        assert "system" in message
    else:
        # text pickles have no magic number
        assert "refused" in message or (how == 0 and "not a snapshot" in message)
    assert not (tmp_path / "EVIL").exists()
