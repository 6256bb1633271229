"""`seamseg.export` and `seamseg.serve`: the options of the commands as keywords."""

from __future__ import annotations

import inspect
import json
import os
import signal
import threading
import urllib.request
from dataclasses import MISSING, fields

import pytest

import seamseg
from seamseg.contrib.deploy.options import ExportOptions
from seamseg.contrib.serving.options import ServeOptions
from seamseg.inference.options import InferenceOptions
from seamseg.utils.errors import InputError


@pytest.mark.parametrize(("name", "options"), [("export", ExportOptions), ("serve", ServeOptions)])
def test_keywords_are_those_of_the_options(name, options):
    parameters = dict(inspect.signature(getattr(seamseg, name)).parameters)
    for field in fields(options):
        found = parameters.pop(field.name)
        assert found.default == (inspect.Parameter.empty if field.default is MISSING else field.default), field.name
    assert set(parameters) <= {"components"}


def test_a_server_runs_its_model_with_the_options_of_the_others():
    parameters = inspect.signature(seamseg.serve).parameters
    assert {field.name for field in fields(InferenceOptions)} < set(parameters)
    for field in fields(InferenceOptions):
        assert f"\n{field.name} : {field.metadata['text']}" in seamseg.serve.__doc__
    with pytest.raises(TypeError, match=r"^serve\(\) got an unexpected keyword argument 'tiels'"):
        seamseg.serve("none.zip", tiels="off")
    with pytest.raises(InputError, match=r"^`probabilities` has no effect: no response contains them$"):
        seamseg.serve("none.zip", probabilities=True)


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
