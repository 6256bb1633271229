"""`seamseg.load`, `evaluate`, `train`, `export` and `serve`: the options of the commands as keywords."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from dataclasses import MISSING, fields
from functools import partial

import pytest
from support.micro import write_config

import seamseg
from seamseg.components import Callback
from seamseg.deploy.source import ExportOptions
from seamseg.inference.options import InferenceOptions
from seamseg.serving.app import ServeOptions
from seamseg.toy_city import generate_toy_city
from seamseg.training.run import TrainingOptions
from seamseg.utils.errors import InputError
from seamseg.validation.evaluate import EvaluationOptions

OPTIONS = {
    "load": [(InferenceOptions, ())],
    "evaluate": [(InferenceOptions, ("classes", "probabilities")), (EvaluationOptions, ("inference",))],
    "train": [(TrainingOptions, ("evaluate", "legacy"))],
    "export": [(ExportOptions, ())],
    "serve": [(InferenceOptions, ("probabilities",)), (ServeOptions, ())],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_keywords_are_those_of_the_options(name):
    parameters = dict(inspect.signature(getattr(seamseg, name)).parameters)
    for options, left_out in OPTIONS[name]:
        for field in fields(options):
            if field.name in left_out:
                assert field.name not in parameters
                continue
            found = parameters.pop(field.name)
            assert found.default == (inspect.Parameter.empty if field.default is MISSING else field.default), field.name
    assert set(parameters) <= {"model", "data", "out", "device", "config", "meta", "host", "port", "components"}


@pytest.mark.usefixtures("narrow")
def test_one_text_is_one_item(micro, tmp_path):
    config, run = write_config(tmp_path / "micro.ini"), tmp_path / "run"
    with pytest.raises(InputError, match=r"^`overrides=scheduler.epochz=1`: unknown key 'epochz'"):
        seamseg.train(config, micro, run, "cpu", overrides="scheduler.epochz=1")
    with pytest.raises(InputError, match=r"none\.pth\.tar"):
        seamseg.train(config, micro, run, "cpu", pretrain="none.pth.tar", overrides="scheduler.epochs=1")


@pytest.mark.parametrize("call", [seamseg.load, partial(seamseg.evaluate, data="none")])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tiles": None}, "^`tiles` must be auto, off or a side in pixels, not None$"),
        ({"tiles": 512.5}, "^`tiles` must be auto, off or a side in pixels, not 512.5$"),
        ({"tta": 3}, "^`tta=3`: must be a text of `flip` and scales between 0.1 and 4, such as"),
        ({"tta": ["flip"]}, r"^`tta=\['flip'\]`: must be a text of `flip` and scales"),
    ],
)
def test_values_of_another_type(call, options, message):
    with pytest.raises(InputError, match=message):
        call("none.zip", **options)


@pytest.mark.usefixtures("narrow")
def test_the_result_of_a_training(micro, micro_config, tmp_path):
    class Stop(Callback):
        def train(self, run, values):
            if run.step == 3:
                run.stop("enough")

    run = tmp_path / "run"
    given = {"general.log_interval": 1, "dataloader.train_batch_size": 1, "scheduler.epochs": 1}
    stopped = seamseg.train(micro_config, micro, run, "cpu", overrides=given, callbacks=[Stop()])
    assert (stopped.stopped, stopped.steps, stopped.epochs) == ("enough", 3, 0)
    assert (stopped.scores, stopped.best, stopped.validation) == ({}, None, None)
    assert repr(stopped) == f"{run}: stopped: enough (3 steps, 0 epochs)"
    again = seamseg.train(micro_config, micro, run, "cpu", overrides=given, resume="auto")
    assert (again.steps, again.stopped, again.history) == (3, "enough", stopped.history)
    assert "stopped by callback Stop at step 3: enough; `resume=" in (run / "training.log").read_text().splitlines()[-1]
    done = seamseg.train(micro_config, micro, run, "cpu", overrides=given, resume=run)
    assert (done.run_folder, done.stopped, done.steps, done.epochs) == (run, "", 4, 1)
    assert done.history == [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in done.history if line["kind"] == "train"] == [1, 2, 3, 4]
    assert done.scores["PQ"] == done.validation.PQ == done.history[-1]["PQ"]
    assert done.best == done.validation.best
    assert repr(done).splitlines()[:2] == [f"{run}: done (4 steps, 1 epochs)", f"best score {done.best:.4g}"]
    assert repr(done).endswith(done.validation.table())
    again = seamseg.train(micro_config, micro, run, "cpu", overrides=given, resume="auto")
    assert (again.validation, again.scores, again.best) == (None, done.scores, done.best)
    with pytest.raises(AttributeError):
        done.steps = 5


def test_converters_are_functions(tmp_path):
    code = "import sys, seamseg; seamseg.prepare.prepare_cityscapes; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    generate_toy_city(tmp_path / "raw", 1, 1, size=(64, 128), workers=1)
    made = seamseg.prepare.prepare_cityscapes(tmp_path / "raw", tmp_path / "data")
    assert made.splits == {"train": 1, "val": 1}
    assert not seamseg.prepare.check_dataset(tmp_path / "data", workers=1).errors


@pytest.mark.usefixtures("narrow")
def test_serve(micro_run, capsys, monkeypatch):
    answers = []

    def ask(line):
        address = line.split()[-1]
        with urllib.request.urlopen(f"{address}/health") as answer:
            answers.append(json.load(answer))
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("builtins.print", lambda line, **_: threading.Thread(target=ask, args=(line,)).start())
    assert seamseg.serve(micro_run, "cpu", port=0) == 0
    assert answers[0]["kind"] == "panoptic"
