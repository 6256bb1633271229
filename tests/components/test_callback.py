"""Callbacks of the user: what they are called with, how they end a training, and that they cannot break one."""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.components import component_file
from support.micro import TENSORBOARD
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.cli.new import template
from seamseg.components import Callback, key
from seamseg.components import callback as callback_of
from seamseg.training.run import run_training
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("narrow", "imported")

file, options = component_file("my_patience.py", template("callback", "patience"))


class Tracker(Callback):
    def __init__(self):
        super().__init__()
        self.found = []

    def begin(self, run):
        self.found.append(("begin", run.step, run.epoch, None))

    def train(self, run, values):
        self.found.append(("train", run.step, run.epoch, values["loss"]))

    def validated(self, run, scores):
        self.found.append(("validation", run.step, run.epoch, scores["PQ"]))

    def end(self, run, status):
        self.found.append(("end", run.step, run.epoch, status))


def test_what_a_callback_is_called_with(options, tmp_path):
    tracker = Tracker()
    run_training(options("run", "general.log_interval=2", callbacks=[tracker]))
    assert [entry[:3] for entry in tracker.found] == [
        ("begin", 0, 0),
        ("train", 2, 0),
        ("train", 4, 0),
        ("validation", 4, 1),
        ("train", 6, 1),
        ("train", 8, 1),
        ("validation", 8, 2),
        ("end", 8, 2),
    ]
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    logged = [(line["kind"], line["loss" if line["kind"] == "train" else "PQ"]) for line in metrics]
    assert [(kind, value) for kind, _, _, value in tracker.found[1:-1]] == logged
    assert tracker.found[-1][3] == "done"


def test_a_callback_ends_a_training(options, tmp_path):
    tracker = Tracker()
    given = ("callback patience.patience=1", "scheduler.epochs=9", "optimizer.lr=0")
    scores = run_training(options("run", *given, callbacks=[tracker]))
    kind, step, epoch, _ = tracker.found[-2]
    status = "stopped: no better PQ in 1 validations"
    assert kind == "validation"
    assert epoch < 9
    assert tracker.found[-1] == ("end", step, epoch, status)
    assert scores.stopped == "no better PQ in 1 validations"
    assert scores.validation is not None
    assert f"{status} (step {step}, epoch {epoch})" in (tmp_path / "run/training.log").read_text()
    assert (tmp_path / "run" / "model_best.pth.tar").exists()


class Counter(Callback):
    def train(self, run, values):
        self.limit = self.keys.limit


class Recorder(Callback):
    def __init__(self):
        super().__init__()
        self.numbers, self.images = {}, []

    def scalars(self, run, values):
        for tag, value in values.items():
            self.numbers.setdefault(tag, []).append((run.step, value))

    def image(self, run, tag, rgb):
        self.images.append((run.step, tag, rgb.shape))


class Late(Callback):
    def train(self, run, values):
        self.best = values["loss"]

    def state_dict(self):
        return {"best": self.best}


class Worse(Late):
    def state_dict(self):
        return {"best": Path() if hasattr(self, "best") else None}


class Broken(Callback):
    calls = 0

    def train(self, run, values):
        self.calls += 1
        raise ValueError("no network\nat all")


@dataclass(frozen=True)
class CounterKeys:
    """Keys of the counter."""

    limit: int = key("steps", 7)


def test_callbacks_given_in_python(micro, micro_config, tmp_path, monkeypatch):
    """One that fails is not called again; the others go on, and get what TensorBoard shows."""
    callback_of("counter", keys=CounterKeys)(Counter)
    recorder, counter, broken = Recorder(), Counter(), Broken()
    monkeypatch.setenv("SEAMSEG_QUIET", "1")
    given = [broken, Worse(), Late(), counter, recorder, Recorder()]
    seamseg.train(micro_config, micro, tmp_path / "run", "cpu", overrides=[TENSORBOARD], callbacks=given)
    assert broken.calls == 1
    log = (tmp_path / "run" / "training.log").read_text()
    for problem in (
        r"Broken is not called again, .*py line \d+: ValueError: no network at all",
        r"Worse is not called again, .*: InputError: state_dict\(\)\['best'\] is a Pos",
    ):
        assert len(re.findall(f"callback {problem}", log)) == 1
    assert log.count("is not called again") == 2
    states = load_snapshot(tmp_path / "run" / "model_last.pth.tar").resume["callbacks"]
    assert states["Late"]["best"] > 0
    assert "Worse" not in states
    assert counter.limit == 7, "the default of its key"
    assert Counter(CounterKeys(limit=3)).keys.limit == 3

    events = EventAccumulator(str(tmp_path / "run"), {"scalars": 0, "images": 0})
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(recorder.numbers) > {"lr/other", "train/loss", "val_PQ/car"}
    for tag, values in recorder.numbers.items():
        assert [(e.step, e.value) for e in events.Scalars(tag)] == [(s, np.float32(v)) for s, v in values]
    shown = {(e.step, tag) for tag in events.Tags()["images"] for e in events.Images(tag)}
    assert shown == {(step, tag) for step, tag, _ in recorder.images}
    assert {(1, "train/targets"), (3, "train/targets")} < shown


def test_what_is_no_callback(micro, micro_config, tmp_path):
    for given in ("wandb", ["wandb"], [Counter]):
        with pytest.raises(InputError, match=r"`callbacks`: .* is no object of a seamseg.components.Callback"):
            seamseg.train(micro_config, micro, tmp_path / "run", "cpu", callbacks=given)
    assert not (tmp_path / "run").exists()


def test_tensorboard_is_not_installed(micro, micro_config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    seamseg.train(micro_config, micro, tmp_path / "missing", "cpu", overrides=[TENSORBOARD])
    log = (tmp_path / "missing" / "training.log").read_text()
    assert log.count("callback tensorboard is not called again: SeamsegError: no TensorBoard files are written: ") == 1
    assert not [*(tmp_path / "missing").glob("events*")]
