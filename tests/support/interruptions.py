"""Trainings that are interrupted and resumed, and their results, to compare with uninterrupted ones."""

import hashlib
import os
import re
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch

from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.data.dataset import PanopticDataset
from seamseg.training.preemption import Preempted
from seamseg.training.run import TrainingOptions, run_training
from seamseg.training.trainer import Trainer


@contextmanager
def signals_at(steps: Collection[int], rank: int = 0, number: int = signal.SIGTERM) -> Iterator[None]:
    """Send the process of a rank a signal in each of these global steps."""
    step = Trainer._step

    def signalled(self, epoch, batches):
        if self.progress.global_step in steps and self.world.rank == rank:
            os.kill(os.getpid(), number)
        return step(self, epoch, batches)

    with mock.patch.object(Trainer, "_step", signalled):
        yield


@contextmanager
def spoiled_image(name: str, factor: float) -> Iterator[None]:
    item = PanopticDataset.__getitem__

    def spoiled(self, index):
        found = item(self, index)
        return {**found, "img": found["img"] * factor} if found["id"] == name else found

    with mock.patch.object(PanopticDataset, "__getitem__", spoiled):
        yield


def train_until_done(options: TrainingOptions, before: Callable[[], None] = lambda: None) -> int:
    """Restart a training with `--resume auto` until it finishes; return how often it was interrupted."""
    interruptions = 0
    while True:
        before()
        try:
            run_training(options)
            return interruptions
        except Preempted as stop:
            if stop.exit_code != 143:
                raise
            interruptions += 1


def _digest(tensor: torch.Tensor) -> str:
    # not the bytes: pytest would take hours to show where those of two snapshots differ
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


def result(run: Path, name: str = "model_last.pth.tar") -> list:
    """Return everything in a snapshot that is equal for two equal trainings, tensors as digests."""
    snapshot = load_snapshot(run / name)
    assert snapshot.resume is not None
    leaves, spec = torch.utils._pytree.tree_flatten([snapshot.state_dict, snapshot.training_meta, snapshot.resume])
    content = [_digest(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return [str(spec), content]


def loss_lines(run: Path) -> list[str]:
    lines = (run / "training.log").read_text().splitlines()
    return [re.sub(r"  [\d.]+ s/step.*", "", line[line.index("epoch ") :]) for line in lines if "  loss " in line]
