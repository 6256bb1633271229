"""Resumed trainings end with the same bits as uninterrupted ones, wherever they were interrupted."""

import io
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from support.interruptions import loss_lines, result, signals_at, train_until_done
from support.micro import make_dataset, narrow_body, write_config
from support.processes import launch
from torch.multiprocessing import ProcessExitedException

from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.maps.metrics_file import read_metrics
from seamseg.training.checkpointing.run_folder import RunFolder, SnapshotWriter
from seamseg.training.losses import Diverged
from seamseg.training.preemption import Preempted
from seamseg.training.run import TrainingOptions, run_training
from seamseg.training.trainer import Trainer
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.usefixtures("narrow")

SETTINGS = (
    "dataloader.train_batch_size=1",
    "optimizer.accumulate=2",
    "general.log_interval=3",
    "dataloader.random_flip=yes",
    "dataloader.random_scale=(0.8, 1)",
    "dataloader.crop_size=(56, 80)",
)
STEPS = 8  # seven images, two a step, two epochs
SHORT = ("scheduler.epochs=1", "dataloader.val_set=")


@pytest.fixture(scope="module")
def seven(tmp_path_factory) -> TrainingOptions:
    folder = tmp_path_factory.mktemp("seven")
    data = make_dataset(folder / "data", [2, 1, 0, 3, 1, 0, 2], [1, 2])
    return TrainingOptions(write_config(folder / "seven.ini"), data, folder / "run", overrides=SETTINGS, device="cpu")


@pytest.fixture(scope="module")
def straight(seven) -> Path:
    with narrow_body():
        run_training(seven)
    return Path(seven.log_dir)


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def again(seven: TrainingOptions, run: Path, *more: str) -> TrainingOptions:
    return replace(seven, log_dir=run, resume="auto", overrides=(*seven.overrides, *more))


def train_until_killed(rank: int, join: Callable[[], None], options: TrainingOptions, step: int) -> None:
    save = SnapshotWriter.save

    def save_at_once(self: SnapshotWriter, *arguments: Any) -> None:
        save(self, *arguments)
        self.wait()

    with (
        narrow_body(),
        mock.patch.object(SnapshotWriter, "save", save_at_once),
        signals_at([step], number=signal.SIGKILL),
    ):
        run_training(options)


@pytest.mark.parametrize(("workers", "seed"), [(0, 1), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_interrupted_anywhere(seven, straight, tmp_path, workers, seed):
    stops = random.Random(seed).sample(range(1, STEPS), 3)
    run = tmp_path / "run"
    with signals_at(stops):
        assert train_until_done(again(seven, run, f"dataloader.num_workers={workers}")) == 3
    assert result(run) == result(straight)
    assert result(run, "model_best.pth.tar") == result(straight, "model_best.pth.tar")
    assert loss_lines(run) == loss_lines(straight)
    assert len(loss_lines(run)) == 4
    # no step is written twice
    kinds, others = ([(m["kind"], m["step"]) for m in read_metrics(folder)] for folder in (run, straight))
    assert kinds == others


OPTIONS = {
    "recipes": (
        "dataloader.crop_size=(40, 48)",
        "dataloader.device_transforms=yes",
        "roi.fixed_samples=yes",
    ),
    "adamw": ("optimizer.type=adamw", "optimizer.lr=0.001", "optimizer.ema=0.9", "optimizer.clip_norm=5"),
    "fp16": ("general.precision=fp16", "optimizer.ema=0.99"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_layers_losses_and_steps(seven, tmp_path, name):
    options = again(seven, tmp_path / "straight", *OPTIONS[name])
    run_training(options)
    with signals_at([3]):
        assert train_until_done(replace(options, log_dir=tmp_path / "run")) == 1
    assert result(tmp_path / "run") == result(tmp_path / "straight")
    assert loss_lines(tmp_path / "run") == loss_lines(tmp_path / "straight")
    state = load_snapshot(tmp_path / "run" / "model_last.pth.tar").state_dict
    assert ("ema" in state, "scaler" in state) == (name != "recipes", name == "fp16")


@pytest.mark.slow
def test_killed_run_resumes_from_a_snapshot_within_an_epoch(seven, straight, tmp_path):
    run = tmp_path / "run"
    options = again(seven, run, "general.snapshot_interval=2", "general.snapshot_keep=3")
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        launch(train_until_killed, 1, options, 3)
    assert [p.name for p in (run / "snapshots").iterdir()] == ["step-00000002.pth.tar"]
    run_training(options)
    assert "resumed from" in (run / "training.log").read_text()
    assert result(run) == result(straight)
    names = sorted(p.name for p in (run / "snapshots").iterdir())
    assert names == [f"step-0000000{n}.pth.tar" for n in (4, 6, 8)]
    assert (run / "model_last.pth.tar").samefile(run / "snapshots" / names[-1])


def test_message_explains_how_to_resume(seven, tmp_path, seamseg_main, capsys):
    words = ["train", seven.config, seven.data, "--log-dir", tmp_path, "--device", "cpu", "--resume", "auto"]
    words += [word for setting in (*SETTINGS, "dataloader.val_set=") for word in ("--set", setting)]
    for step, number, code in ((2, signal.SIGTERM, 143), (3, signal.SIGUSR1, 138), (4, signal.SIGINT, 130)):
        before = signal.getsignal(number)
        with signals_at([step], number=number):
            assert seamseg_main(*words) == code
        assert signal.getsignal(number) is before
        error = capsys.readouterr().err
        assert error.count("with --resume auto) to continue") == 1
        assert "interrupted" not in error
        assert f"{number.name}: stopped after step" in error
    assert "starting a new training" in (tmp_path / "training.log").read_text()


def test_resume_with_another_batch_size(seven, tmp_path):
    run, seen, step = tmp_path / "run", [], Trainer._step

    def watched(self, epoch, group):
        rates.append(self.state.schedule.factor(self.progress.global_step, epoch))
        if epoch == 0:
            seen.extend(i for fed in group for i in fed.source.ids)
        return step(self, epoch, group)

    rates: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", watched)
        with signals_at([2]), pytest.raises(Preempted):
            run_training(again(seven, run, "dataloader.val_set="))
        assert len(seen) == 4
        changed = ("dataloader.train_batch_size=3", "optimizer.accumulate=1", "dataloader.val_set=")
        run_training(again(seven, run, *changed))
    assert sorted(seen) == sorted(f"train{n}" for n in range(7))
    # two steps, one of the other three images, and an epoch of three
    assert len(rates) == 6
    assert rates[-1] == 0.0
    assert rates[-2] == pytest.approx((1 / 6) ** 0.9)
    assert "epoch 1/2 [3/3]" in (run / "training.log").read_text()


def test_other_images_restart_the_epoch(seven, straight, tmp_path):
    pretrain = [str(straight / "model_last.pth.tar")]
    options = replace(again(seven, tmp_path / "run", "dataloader.val_set="), pretrain=pretrain)
    with signals_at([2]), pytest.raises(Preempted):
        run_training(options)
    run_training(replace(options, overrides=(*options.overrides, "general.seed=5")))
    log = (tmp_path / "run" / "training.log").read_text()
    assert log.count("pre-trained ") == 1
    assert "restarting epoch 1: the training images or general.seed differ" in log
    assert load_snapshot(tmp_path / "run" / "model_last.pth.tar").training_meta["global_step"] == 2 + STEPS
    rates = [m["lr_other"] for m in read_metrics(tmp_path / "run") if m["kind"] == "train"]
    assert rates[-2] > rates[-1] == 0


# --- damaged snapshots


@pytest.fixture
def stopped(seven, straight, tmp_path) -> Path:
    return Path(shutil.copytree(straight, tmp_path / "stopped"))


def test_a_damaged_snapshot_is_named_and_the_one_before_resumes(seven, straight, stopped):
    newest = stopped / "snapshots" / "step-00000008.pth.tar"
    newest.unlink()
    newest.write_bytes((straight / "model_last.pth.tar").read_bytes()[:-100])
    (stopped / "snapshots" / f".{newest.name}.1.2.partial").write_text("of a killed process")
    with pytest.raises(InputError, match=f"^{newest}: a truncated or damaged snapshot"):
        run_training(again(seven, stopped))
    run_training(replace(again(seven, stopped), resume=stopped / "snapshots" / "step-00000004.pth.tar"))
    assert result(stopped) == result(straight)
    names = sorted(p.name for p in (stopped / "snapshots").iterdir())
    assert names == ["step-00000004.pth.tar", "step-00000008.pth.tar"]


def test_a_new_run_drops_the_snapshots_of_an_old_one_if_asked_to(seven, stopped, tmp_path):
    best, before = stopped / "model_best.pth.tar", contents(stopped)
    new = replace(again(seven, stopped, "scheduler.epochs=1", "dataloader.val_set="), resume=None)
    elsewhere = shutil.copy(stopped / "model_last.pth.tar", tmp_path)
    for options in (new, replace(new, resume=elsewhere)):
        with pytest.raises(InputError, match=r"^`restart=True` and"):
            run_training(replace(options, restart=True, resume="auto"))
        with pytest.raises(
            InputError, match=r"holds a training \(model_last.pth.tar\); use `restart=True` to overwrite it"
        ):
            run_training(options)
        assert contents(stopped) == before
    # of a training without snapshots the numbers remain
    (tmp_path / "run").mkdir()
    shutil.copy(stopped / "metrics.jsonl", tmp_path / "run")
    with pytest.raises(InputError, match=r"holds a training \(metrics.jsonl\)"):
        run_training(replace(new, log_dir=tmp_path / "run"))
    for name in ("model.safetensors", "lst"):  # a converted model, a data set
        (tmp_path / "run" / name).touch()
        with pytest.raises(InputError, match=rf"holds other files \({name}\): choose a new folder"):
            run_training(replace(new, log_dir=tmp_path / "run", restart=True))
        (tmp_path / "run" / name).unlink()
    run_training(replace(new, restart=True))
    assert not best.exists()
    assert [p.name for p in (stopped / "snapshots").iterdir()] == ["step-00000004.pth.tar"]


def test_full_disk_fails_at_the_next_step_and_keeps_older_snapshots(seven, tmp_path, monkeypatch):
    run, opened = tmp_path / "run", []

    class Full(io.FileIO):
        def write(self, data):
            if len(opened) > 2 and self.tell() > 5000:
                raise OSError(28, os.strerror(28))
            return super().write(data)

    def full(path, mode):
        opened.append(path)
        return Full(path, mode)

    monkeypatch.setattr("seamseg.checkpoints.snapshot.open", full, raising=False)
    with pytest.raises(SeamsegError, match=r"step-0000000\d\.pth\.tar: cannot be written: No space left on device"):
        run_training(again(seven, run, "general.snapshot_interval=1", *SHORT))
    monkeypatch.undo()
    kept = list((run / "snapshots").iterdir())
    assert kept
    assert all(".partial" not in p.name for p in kept)
    # the training resumes from there once there is space
    run_training(again(seven, run, *SHORT))
    assert load_snapshot(run / "model_last.pth.tar").training_meta["global_step"] == STEPS // 2


def test_snapshots_hold_copies(seven, tmp_path, monkeypatch):
    kept, save = [], SnapshotWriter.save

    def delayed(self, snapshot, *rest):
        digest = snapshot.state_dict["body"]["backbone.mod1.conv1.weight"].clone()
        momentum = snapshot.state_dict["optimizer"]["state"][0]["momentum_buffer"].clone()
        kept.append((snapshot, digest, momentum))
        save(self, snapshot, *rest)

    monkeypatch.setattr(SnapshotWriter, "save", delayed)
    run_training(again(seven, tmp_path / "run", "general.snapshot_interval=1", *SHORT))
    assert not torch.equal(kept[0][1], kept[-1][1])
    for snapshot, weight, momentum in kept:
        assert torch.equal(snapshot.state_dict["body"]["backbone.mod1.conv1.weight"], weight)
        assert torch.equal(snapshot.state_dict["optimizer"]["state"][0]["momentum_buffer"], momentum)


def test_a_training_that_has_diverged_resumes_from_an_earlier_snapshot(micro, micro_config, tmp_path):
    run, each_step = tmp_path / "run", ("general.snapshot_interval=1", "general.snapshot_keep=1")
    options = TrainingOptions(micro_config, micro, run, resume="auto", overrides=each_step, device="cpu")
    with signals_at([2]), pytest.raises(Preempted):
        run_training(options)
    for _ in range(2):
        # a huge rate from step 3 on
        with pytest.raises(Diverged, match=r"^training stopped at step 4: .*; lower optimizer\.lr, or begin with a "):
            run_training(replace(options, overrides=(*each_step, "optimizer.lr=1e9")))
        assert [step for step, _ in RunFolder(run).saved()] == [3, 2]
    assert run_training(replace(options, resume=RunFolder(run).step_path(2))).steps == 4


# --- two processes, bit-exactly or with another number of processes

ELASTIC = ("dataloader.train_batch_size=1", "general.log_interval=2", "scheduler.epochs=2")
ACCUMULATE = "optimizer.accumulate=2"
STOPS = (1, 4)
"""The steps in which a process of the run to compare receives a signal."""


def elastic_options(folder: Path, name: str, norm: str, *more: str) -> TrainingOptions:
    config, settings = folder / f"{norm}.ini", (*ELASTIC, *more)
    return TrainingOptions(config, folder / "data", folder / name, resume="auto", overrides=settings, device="cpu")


def stretch(folder: Path, rank: int, stop: int | None) -> None:
    step = Trainer._step

    def watched(self, epoch, group):
        if epoch == 0:
            with open(folder / f"seen.{rank}", "a") as file:
                file.writelines(i + "\n" for uploaded in group for i in uploaded.source.ids)
        return step(self, epoch, group)

    stops: Collection[int] = () if stop is None else (stop,)
    with mock.patch.object(Trainer, "_step", watched), signals_at(stops, rank=rank):
        if stop is None:
            run_training(elastic_options(folder, "elastic", "syncbn"))
            return
        with pytest.raises(Preempted) as stopped:
            run_training(elastic_options(folder, "elastic", "syncbn"))
        assert stopped.value.exit_code == 128 + signal.SIGTERM


def interrupted(rank: int, join: Callable[[], None], folder: Path) -> None:
    with narrow_body():
        join()
        run_training(elastic_options(folder, "straight", "bn", ACCUMULATE))
        with signals_at(STOPS, rank=1):
            assert train_until_done(elastic_options(folder, "stopped", "bn", ACCUMULATE), join) == 2


def elastic(rank: int, join: Callable[[], None], folder: Path) -> None:
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
    folder = tmp_path_factory.mktemp("elastic")
    make_dataset(folder / "data", [2, 0, 1, 3, 0, 1, 2, 1, 0], [1])
    for norm in ("syncbn", "bn"):
        write_config(folder / f"{norm}.ini", norm)
    return folder


@pytest.mark.slow
@pytest.mark.distributed
def test_two_interrupted_processes_resume_bit_exactly(folder):
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
@pytest.mark.distributed
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
