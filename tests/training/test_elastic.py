"""Resume of two interrupted processes, bit-exactly or with another number of processes."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from unittest import mock

import pytest
from support.interruptions import loss_lines, result, signals_at, train_until_done
from support.micro import make_dataset, narrow_body, write_config
from support.processes import launch

from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.training.preemption import Preempted
from seamseg.training.run import TrainingOptions, run_training
from seamseg.training.trainer import Trainer

pytestmark = pytest.mark.distributed

SETTINGS = ("dataloader.train_batch_size=1", "general.log_interval=2", "scheduler.epochs=2")
ACCUMULATE = "optimizer.accumulate=2"
STOPS = (1, 4)
"""The steps in which a process of the run to compare receives a signal."""


def options(folder: Path, name: str, norm: str, *more: str) -> TrainingOptions:
    config, settings = folder / f"{norm}.ini", (*SETTINGS, *more)
    return TrainingOptions(config, folder / "data", folder / name, resume="auto", overrides=settings, device="cpu")


def stretch(folder: Path, rank: int, stop: int | None) -> None:
    """Train the elastic run until a step, or to its end; write the images of its first epoch to a file."""
    step = Trainer._step

    def watched(self, epoch, group):
        if epoch == 0:
            with open(folder / f"seen.{rank}", "a") as file:
                file.writelines(i + "\n" for uploaded in group for i in uploaded.source.ids)
        return step(self, epoch, group)

    stops: Collection[int] = () if stop is None else (stop,)
    with mock.patch.object(Trainer, "_step", watched), signals_at(stops, rank=rank):
        if stop is None:
            run_training(options(folder, "elastic", "syncbn"))
            return
        with pytest.raises(Preempted) as stopped:
            run_training(options(folder, "elastic", "syncbn"))
        assert stopped.value.exit_code == 128 + signal.SIGTERM


def interrupted(rank: int, join: Callable[[], None], folder: Path) -> None:
    """Train to the end, and with two interruptions; plain batch norm has other statistics in each process."""
    with narrow_body():
        join()
        run_training(options(folder, "straight", "bn", ACCUMULATE))
        with signals_at(STOPS, rank=1):
            assert train_until_done(options(folder, "stopped", "bn", ACCUMULATE), join) == 2


def elastic(rank: int, join: Callable[[], None], folder: Path) -> None:
    """Train in two processes, one, and two again."""
    with narrow_body():
        join()
        # rank 1 receives the signal, not the rank that saves; both stop a step later
        stretch(folder, rank, 1 if rank == 1 else 99)
        join()
        if rank == 0:
            with mock.patch.dict(os.environ, WORLD_SIZE="1"):
                stretch(folder, rank, 4)
        stretch(folder, rank, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with data and configurations."""
    folder = tmp_path_factory.mktemp("elastic")
    make_dataset(folder / "data", [2, 0, 1, 3, 0, 1, 2, 1, 0], [1])
    for norm in ("syncbn", "bn"):
        write_config(folder / f"{norm}.ini", norm)
    return folder


@pytest.mark.slow
def test_two_interrupted_processes_resume_bit_exactly(folder):
    """Both stop a step after a signal to one; running statistics of each process are kept."""
    launch(interrupted, 2, folder, seconds=400)
    straight, stopped = folder / "straight", folder / "stopped"
    assert load_snapshot(straight / "model_last.pth.tar").training_meta["global_step"] == 2 * 3
    assert result(stopped) == result(straight)
    assert result(stopped, "model_best.pth.tar") == result(straight, "model_best.pth.tar")
    assert loss_lines(stopped) == loss_lines(straight)
    log = (stopped / "training.log").read_text()
    for step in STOPS:
        assert log.count(f"SIGTERM: stopped after step {step + 1}, snapshot saved") == 1
    # in the middle of an epoch those of plain batch norm differ; the snapshot has what differs from the first's
    resume = load_snapshot(stopped / "snapshots" / "step-00000005.pth.tar").resume
    assert resume is not None
    assert resume["position"]["steps"] == 2
    first, second = (state["buffers"] for state in resume["ranks"])
    assert not first
    assert second
    assert all(name.endswith(("running_mean", "running_var", "num_batches_tracked")) for name in second)


@pytest.mark.slow
def test_two_processes_one_and_two_again_see_each_image_once(folder):
    launch(elastic, 2, folder, seconds=400)
    seen = Counter(word for rank in range(2) for word in (folder / f"seen.{rank}").read_text().split())
    assert set(seen) == {f"train{n}" for n in range(9)}
    # two steps of two, two steps of one, three images left for two processes: one comes twice
    assert sum(seen.values()) == 4 + 2 + 4
    log = (folder / "elastic" / "training.log").read_text()
    for words in (
        "in epoch 1 after 2 of its steps, step 2",
        "in epoch 1 after 4 of its steps, step 4",
        "epoch 1/2 [6/6]",
        "epoch 2/2 [5/5]",
    ):
        assert words in log
    meta = load_snapshot(folder / "elastic" / "model_last.pth.tar").training_meta
    assert meta["global_step"] == 2 + 2 + 2 + 5
