"""Files that are not snapshots: a one-line error, and no code in them is run."""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.small_snapshots import Net, refusal

from seamseg.checkpoints.snapshot import load_tensors, network_state


class Evil:
    """Creates the file `EVIL` in the current folder when unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch EVIL",)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path / "model.pth.tar").endswith("no such file")
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


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "the file is empty; copy it again"),
        (b"\0", "not a snapshot: it was not written by torch.save"),
        (b"<html>not found</html>", "not a snapshot: it was not written by torch.save"),
        (b"\x89PNG\r\n" + bytes(4096), "not a snapshot: it was not written by torch.save"),
    ],
)
def test_other_files(tmp_path: Path, data: bytes, expected: str) -> None:
    (tmp_path / "model.pth.tar").write_bytes(data)
    assert refusal(tmp_path / "model.pth.tar").endswith(expected)


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
    torch.save({"state_dict": {"body": [1]}}, tmp_path / "model.pth.tar")
    assert "its 'body' is not a state dict but a list" in refusal(tmp_path / "model.pth.tar")


@pytest.mark.parametrize("how", ["torch", "old torch", 0, 1, 2, 3, 4, 5])
def test_pickled_code_is_refused_and_not_run(tmp_path: Path, how: str | int, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_pickled_network_is_refused(tmp_path: Path) -> None:
    torch.save(Net(), tmp_path / "model.pth.tar")
    assert "refused: it holds pickled code" in refusal(tmp_path / "model.pth.tar")


def test_allowed_globals_are_restored_after_reading(tmp_path: Path) -> None:
    before = set(map(str, torch.serialization.get_safe_globals()))
    torch.save({"a": np.float64(1)}, tmp_path / "a.pth")
    load_tensors(tmp_path / "a.pth", "a.pth")
    assert set(map(str, torch.serialization.get_safe_globals())) == before
