"""`seamseg doctor --bench`: every stage is reported, and wrong arguments are one-line errors."""

import json

import pytest

from seamseg.cli.main import main
from seamseg.doctor import bench
from seamseg.doctor.stages import STAGES


@pytest.mark.slow
def test_stages_as_json(capsys):
    assert main(["doctor", "--bench", "--size", "64x96", "--rounds", "1", "--formats", "", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["stages_ms"]) == list(STAGES)
    assert all(value > 0 for value in report["stages_ms"].values())
    assert report["size"] == [64, 96]
    assert report["counts"]["segments"] > 0
    assert report["hints"]


@pytest.mark.usefixtures("narrow")
def test_table(micro_run, capsys):
    assert main(["doctor", "--bench", str(micro_run), "--size", "64x64", "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{stage}" in out for stage in STAGES)
    assert "convolutions take" in out


def test_cost_of_files_in_parallel_to_the_network(monkeypatch):
    monkeypatch.setattr("seamseg.utils.parallel.available_cores", lambda: 8)
    stages = dict.fromkeys(STAGES, 0.0) | {"decode": 0.08, "body": 0.01, "encode": 0.01}
    assert "the same cores" in bench.hints(stages, "cpu", "fp32", 0.0)[-1]
    assert "at best 20 ms per image, limited by 4 decoder processes" in bench.hints(stages, "cuda", "bf16", 0)[-1]
    assert "limited by the network" in bench.hints(stages | {"body": 0.1}, "cuda", "bf16", 0)[-1]
    assert "4 writer threads" in bench.hints(stages | {"encode": 0.1}, "cuda", "bf16", 0)[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--size", "big"], "--size big"),
        (["--size", "8x8"], "32 to 8192"),
        (["--rounds", "0"], "--rounds"),
        (["--precision", "fp12"], "--precision fp12"),
        (["--bench", "{}", "--formats", "all"], "--formats all: is for networks of seamseg only, {} is none"),
        (["--bench", "city.onnx"], "`seamseg doctor --bench MODEL --formats fp32,city.onnx`"),
    ],
)
def test_wrong_arguments(arguments, words, tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "mask2former"}')
    assert main(["doctor", "--bench", "--size", "64x64", *(word.format(tmp_path) for word in arguments)]) == 2
    err = capsys.readouterr().err
    assert words.format(tmp_path) in err
    assert err.count("\n") == 1
