"""`seamseg.load`, `evaluate`, `train`, `export` and `serve`: the options of the commands as keywords."""

from __future__ import annotations

import inspect
import json
import os
import signal
import threading
import urllib.request
from dataclasses import MISSING, fields
from functools import partial

import numpy as np
import pytest
from support.micro import write_config

import seamseg
from seamseg.deploy.source import ExportOptions
from seamseg.inference.options import InferenceOptions
from seamseg.serving.app import ServeOptions
from seamseg.training.run import TrainingOptions
from seamseg.utils.errors import InputError
from seamseg.validation.evaluate import EvaluationOptions

OPTIONS = {
    "load": [(InferenceOptions, ())],
    "evaluate": [(InferenceOptions, ("classes", "probabilities")), (EvaluationOptions, ("inference",))],
    "train": [(TrainingOptions, ("evaluate",))],
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
def test_from_training_to_an_exported_file(micro, tmp_path, capsys):
    config = write_config(tmp_path / "micro.ini")
    run = tmp_path / "run"
    scores = seamseg.train(config, micro, run, "cpu", overrides={"scheduler.epochs": 1})
    assert scores.n_images == 3
    again = seamseg.evaluate(run, micro, "cpu", quiet=True)
    assert again.mIoU_segments == pytest.approx(scores.mIoU_segments, abs=1e-3)
    none = seamseg.evaluate(run, micro, "cpu", quiet=True, score_threshold=1, min_stuff_area=10**6)
    assert none.mIoU_segments == 0 < again.mIoU_segments
    overrides = {"general.min_stuff_area": 10**6, "general.score_threshold": 1}
    assert seamseg.evaluate(run, micro, "cpu", quiet=True, overrides=overrides).mIoU_segments == 0
    report = seamseg.export(run, tmp_path / "net.onnx", size=(64, 96))
    photo = np.zeros((64, 96, 3), np.uint8)
    assert seamseg.load(report.path).predict(photo).size == seamseg.load(run, "cpu").predict(photo).size
    with pytest.raises(TypeError, match="tilse"):
        seamseg.load(run, tilse="off")


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
