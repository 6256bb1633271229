"""Callbacks of the user: what they are called with, how they end a training, and that they cannot break one."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from support.interruptions import result, signals_at, train_until_done
from support.micro import TENSORBOARD

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.components import Callback, key
from seamseg.components import callback as callback_of
from seamseg.training.run import run_training
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("narrow", "imported")

TRACKER = '''
import json
from dataclasses import dataclass
from pathlib import Path

from seamseg.components import Callback, callback, key


@dataclass(frozen=True)
class TrackerKeys:
    """Keys of the tracker."""

    file: str = key("file of the entries", "entries.jsonl")
    patience: int = key("number of validations without a better PQ that end the training; 0 for no limit", 0, minimum=0)


@callback("tracker", keys=TrackerKeys)
class Tracker(Callback):
    """Write a line for everything that happens, and end a training that gets no better."""

    best, waited, lines = -1.0, 0, 0

    def _write(self, run, kind, **values):
        self.lines += 1
        with open(Path(run.folder, self.keys.file), "a") as file:
            file.write(json.dumps({"kind": kind, "step": run.step, "epoch": run.epoch, **values}) + "\\n")

    def begin(self, run):
        self._write(run, "begin", lines=self.lines)

    def train(self, run, values):
        self._write(run, "train", loss=values["loss"])

    def validated(self, run, scores):
        self._write(run, "validated", PQ=scores["PQ"])
        self.waited = 0 if scores["PQ"] > self.best else self.waited + 1
        self.best = max(self.best, scores["PQ"])
        if self.keys.patience and self.waited >= self.keys.patience:
            run.stop(f"no better PQ in {self.waited} validations")

    def end(self, run, status):
        self._write(run, "end", status=status)

    def state_dict(self):
        return {"best": self.best, "waited": self.waited, "lines": self.lines}

    def load_state_dict(self, state):
        self.best, self.waited, self.lines = state["best"], state["waited"], state["lines"]
'''


@pytest.fixture
def options(component_options, tmp_path):
    """Of a training with the tracker."""
    file = tmp_path / "my_tracker.py"
    file.write_text(TRACKER)
    return lambda run, *more, **others: component_options(file, run, "general.log_interval=2", *more, **others)


def entries(run):
    return [json.loads(line) for line in (run / "entries.jsonl").read_text().splitlines()]


def test_what_a_callback_is_called_with(options, tmp_path):
    run_training(options("run"))
    found = entries(tmp_path / "run")
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(e["kind"], e["step"], e["epoch"]) for e in found] == [
        ("begin", 0, 0),
        ("train", 2, 0),
        ("train", 4, 0),
        ("validated", 4, 1),
        ("train", 6, 1),
        ("train", 8, 1),
        ("validated", 8, 2),
        ("end", 8, 2),
    ]
    assert [e["loss"] for e in found if e["kind"] == "train"] == [m["loss"] for m in metrics if m["kind"] == "train"]
    assert [e["PQ"] for e in found if e["kind"] == "validated"] == [m["PQ"] for m in metrics if "PQ" in m]
    assert found[-1]["status"] == "done"


@pytest.mark.slow
def test_a_callback_resumes_with_its_state(options, tmp_path):
    run_training(options("straight"))
    with signals_at([3]):
        assert train_until_done(options("stopped", resume="auto")) == 1
    found = entries(tmp_path / "stopped")
    assert [e["status"].partition(":")[0] for e in found if e["kind"] == "end"] == ["Preempted", "done"]
    begins = [e for e in found if e["kind"] == "begin"]
    assert [(e["step"], e["lines"]) for e in begins] == [(0, 0), (3, 2)]
    straight, stopped = (result(tmp_path / name)[1] for name in ("straight", "stopped"))
    assert sum(a != b for a, b in zip(straight, stopped, strict=True)) == 1, "the number of lines"


def test_a_callback_ends_a_training(options, tmp_path):
    scores = run_training(options("run", "callback tracker.patience=1", "scheduler.epochs=9", "optimizer.lr=0"))
    found = entries(tmp_path / "run")
    step, epoch = found[-2]["step"], found[-2]["epoch"]
    status = "stopped: no better PQ in 1 validations"
    assert found[-1] == {"kind": "end", "step": step, "epoch": epoch, "status": status}
    assert found[-2]["kind"] == "validated"
    assert epoch < 9
    assert scores.stopped == "no better PQ in 1 validations"
    assert scores.validation is not None
    assert f"{status} (step {step}, epoch {epoch})" in (tmp_path / "run/training.log").read_text()
    assert (tmp_path / "run" / "model_best.pth.tar").exists()


class Counter(Callback):
    """Counts steps up to a key of its own."""

    def train(self, run, values):
        self.limit = self.keys.limit


class Recorder(Callback):
    """What TensorBoard shows."""

    def __init__(self):
        super().__init__()
        self.numbers, self.images = {}, []

    def scalars(self, run, values):
        for tag, value in values.items():
            self.numbers.setdefault(tag, []).append((run.step, value))

    def image(self, run, tag, rgb):
        self.images.append((run.step, tag, rgb.shape))


class Late(Callback):
    """Its state is not there before the first step."""

    def train(self, run, values):
        self.best = values["loss"]

    def state_dict(self):
        return {"best": self.best}


class Worse(Late):
    """After the first step, snapshots cannot hold its state any more."""

    def state_dict(self):
        return {"best": Path() if hasattr(self, "best") else None}


class Broken(Callback):
    """Fails in the first step."""

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
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("wandb", "`callbacks` must be a list of callbacks, not 'wandb'"),
        (["wandb"], "`callbacks`: 'wandb' is no seamseg.components.Callback"),
        ([Counter], r"is no seamseg.components.Callback: make an object of it, Counter\(\)"),
    ],
)
def test_what_is_no_callback(micro, micro_config, tmp_path, given, message):
    with pytest.raises(InputError, match=message):
        seamseg.train(micro_config, micro, tmp_path / "run", "cpu", callbacks=given)
    assert not (tmp_path / "run").exists()


def test_a_state_that_no_snapshot_can_hold(micro, micro_config, tmp_path):
    """Refused before the first step, not when the training is to be resumed."""

    class Writer(Callback):
        def state_dict(self):
            return {"seen": [1, 2.5, "a", None, True, np.float32(3), torch.ones(2)], "to": {"path": tmp_path}}

    with pytest.raises(InputError, match=r"callback Writer: state_dict\(\)\['to'\]\['path'\] is a PosixPath"):
        seamseg.train(micro_config, micro, tmp_path / "run", "cpu", callbacks=[Writer()])
    assert not (tmp_path / "run" / "snapshots").exists()


def test_without_tensorboard(micro, micro_config, tmp_path, monkeypatch):
    """Turned off, nothing is written or drawn; not installed, a warning."""
    with monkeypatch.context() as patch:
        patch.setattr("seamseg.training.logging.images.SampleRenderer.targets", None)
        seamseg.train(micro_config, micro, tmp_path / "off", "cpu")
    log = (tmp_path / "off" / "training.log").read_text()
    assert "WARNING" not in log
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    seamseg.train(micro_config, micro, tmp_path / "missing", "cpu", overrides=[TENSORBOARD])
    log = (tmp_path / "missing" / "training.log").read_text()
    assert log.count("callback tensorboard is not called again: SeamsegError: no TensorBoard files are written: ") == 1
    assert not [path for folder in ("off", "missing") for path in (tmp_path / folder).glob("events*")]
