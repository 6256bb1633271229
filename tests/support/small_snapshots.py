"""A small network with the parts of a large one, and its snapshot."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from seamseg.checkpoints.snapshot import Snapshot, load_snapshot, network_state, snapshot_content, write_tensors
from seamseg.utils.errors import InputError


class Net(nn.Module):
    def __init__(self, classes: int = 3, semantic: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 4, 1), bn=nn.BatchNorm2d(4)))
        self.rpn_head = nn.Linear(4, 2)
        self.roi_head = nn.Linear(4, classes)
        self.sem_head = nn.Linear(4, classes) if semantic else None


def snapshot_of(net: nn.Module) -> Snapshot:
    progress = {"epoch": 4, "global_step": 10}
    return Snapshot("[general]\nseed = 3\n", dict(network_state(net)), progress, {"num_stuff": 1})


def save_snapshot(path: str | Path, snapshot: Snapshot) -> None:
    write_tensors(Path(path), snapshot_content(snapshot))


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
