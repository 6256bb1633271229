"""Trainings that are interrupted and go on, and what they leave to compare with those that are not."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch

from seamseg.checkpoints.snapshot import load_snapshot
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


def train_until_done(options: TrainingOptions, before: Callable[[], None] = lambda: None) -> int:
    """Start a training again with `--resume auto` until it ends by itself; how often it was interrupted."""
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


def result(run: Path, name: str = "model_last.pth.tar") -> list:
    """Everything in a snapshot that two equal trainings have in common, tensors as bytes."""
    snapshot = load_snapshot(run / name)
    assert snapshot.resume is not None
    leaves, spec = torch.utils._pytree.tree_flatten([snapshot.state_dict, snapshot.training_meta, snapshot.resume])
    content = [leaf.numpy().tobytes() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return [str(spec), content]


def loss_lines(run: Path) -> list[str]:
    """The numbers of the log, without times."""
    lines = (run / "training.log").read_text().splitlines()
    return [re.sub(r"  [\d.]+ s/step.*", "", line[line.index("epoch ") :]) for line in lines if "  loss " in line]
