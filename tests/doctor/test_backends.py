"""`seamseg doctor --bench --formats`: the backends of a network in turns, and what is recommended."""

import json

import numpy as np
import pytest
import torch
from support.exported import detector

from seamseg.cli.main import main
from seamseg.doctor import backends
from seamseg.doctor.backends import Bench, compare, parse, recommendation
from seamseg.formats.metadata import Metadata
from seamseg.utils.errors import InputError, SeamsegError

CLASSES = Metadata(2, 3, list("abcde"), [(i, i, i) for i in range(5)], list(range(5)))
IMAGE = np.zeros((64, 96, 3), np.uint8)


@pytest.fixture
def bench():
    return Bench(detector(), CLASSES, torch.device("cpu"), (0.5,) * 3, (0.25,) * 3)


def test_names_of_the_backends():
    assert parse("fp32, net.onnx,fp32") == ["fp32", "net.onnx"]
    assert parse("all,a.pt2") == [*backends.QUICK, *backends.SLOW, "a.pt2"]
    assert parse("") == []
    with pytest.raises(InputError, match="`formats=int4`: choose from fp32"):
        parse("int4")


def test_backends_that_do_not_run_are_named(bench, monkeypatch, capsys):
    def fail(*arguments):
        raise SeamsegError("no compiler\nwas found")

    monkeypatch.setattr(backends, "_exported", fail)
    found = compare(bench, IMAGE, 2, ["pt2", "fp32"])
    assert found["pt2"] == "no compiler was found"
    assert found["fp32"] > 0
    assert capsys.readouterr().err.splitlines()[-1] == "round 2 of 2 ..."


@pytest.mark.slow
def test_every_backend(bench):
    found = compare(bench, IMAGE, 1, parse("all"))
    assert {name for name, value in found.items() if not isinstance(value, float)} <= {"bf16"}


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ({"fp32": 9.0, "bf16": 4.5}, "fastest here: bf16, 2.00x of fp32: seamseg predict --precision bf16; compare"),
        ({"fp32": 9.0, "onnx": "missing"}, "fastest here: fp32: seamseg predict; not compared: bf16, openvino"),
        ({"fp32": 9.0, "a.onnx": 3.0}, "fastest here: a.onnx, 3.00x of fp32: seamseg predict a.onnx; compare"),
        ({"pt2": "no compiler"}, "nothing was measured"),
    ],
)
def test_recommendation(found, wanted):
    assert recommendation(found).startswith(wanted)


@pytest.mark.usefixtures("narrow")
def test_command(micro_run, capsys):
    words = ["doctor", "--bench", str(micro_run), "--size", "64x64", "--rounds", "1", "--formats", "fp32"]
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["formats_ms"]) == ["fp32"]
    assert report["recommendation"].startswith("fastest here: fp32")
    assert main([*words[:-1], "fp33"]) == 2
