"""Whatever a user hands over: the commands say one line and end with exit code 2, or give a right result."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from seamseg.cli.main import COMMANDS, build_parser
from seamseg.utils.files import write_json

pytestmark = pytest.mark.usefixtures("narrow")

QUIET = ("--device", "cpu", "--quiet")


class Evil:
    """Code that a careless loader would run."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("EVIL",)


@pytest.fixture
def data(micro: Path, tmp_path: Path) -> Path:
    """A data set of its own to spoil."""
    return Path(shutil.copytree(micro, tmp_path / "data"))


@pytest.fixture
def refused(
    seamseg_main: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., str]:
    """Run a command that must fail with exit code 2 and one line; return the line."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> str:
        assert seamseg_main(*words, *QUIET) == 2
        captured = capsys.readouterr()
        lines = captured.err.strip().splitlines()
        assert captured.out == ""
        assert len(lines) == 1, captured
        assert lines[0].startswith(f"seamseg {words[0]}: ")
        assert "Traceback" not in lines[0]
        assert not (tmp_path / "EVIL").exists()
        assert not list(tmp_path.rglob("*.partial"))
        return lines[0]

    return run


# --- models


def test_models(micro_run, micro, tmp_path, refused) -> None:
    content = torch.load(micro_run / "model_last.pth.tar", weights_only=True)
    with_code = {**content, "training_meta": Evil()}
    of_the_original = {key: content[key] for key in ("config", "state_dict", "training_meta")}
    path = tmp_path / "model.pth.tar"
    for content, message in (
        (with_code, "model.pth.tar: refused: it holds pickled code"),
        (of_the_original, "give metadata.bin with --meta"),
    ):
        torch.save(content, path)
        for words in (("predict", path, micro / "img", tmp_path / "out"), ("evaluate", path, micro)):
            assert message in refused(*words)
    assert not (tmp_path / "out").exists()


def test_resume_takes_a_run_folder(micro_run, micro_config, micro, tmp_path, refused, seamseg_main, capsys) -> None:
    run = tmp_path / "run"
    words = ("train", micro_config, micro, "--log-dir", run, "--resume")
    assert refused(*words, micro).endswith(f"--resume {micro}: no run folder: it holds no snapshot")
    assert not run.exists()
    assert seamseg_main(*words, micro_run, "--device", "cpu") == 0
    newest = max((micro_run / "snapshots").iterdir())
    assert f"resumed from {newest}, " in capsys.readouterr().err
    assert "resumed from" in (run / "training.log").read_text()


def test_classes_that_a_model_lacks(micro_run, micro, tmp_path, refused) -> None:
    for option in ("--anonymize", "--classes"):
        line = refused("predict", micro_run, micro / "img", tmp_path / "out", option, "face")
        assert f"{option}: the model has no class 'face'; " in line
        assert line.endswith("its classes are sky, road, car")


# --- data sets


def id_that_cat_lacks(data: Path) -> None:
    path = data / "msk" / "val1.png"
    ids = np.array(Image.open(path))
    ids[0, 0] = 77
    Image.fromarray(ids).save(path)


def empty_list(data: Path) -> None:
    (data / "lst" / "val.txt").write_text("\n")
    (data / "lst" / "train.txt").write_text("")


def raw_cityscapes(data: Path) -> None:
    shutil.rmtree(data)
    (data / "leftImg8bit" / "val" / "aachen").mkdir(parents=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (id_that_cat_lacks, "val1.png: the mask has instance id 77"),
        (empty_list, "the list is empty"),
        (raw_cityscapes, "seamseg prepare cityscapes"),
        (shutil.rmtree, "no such data set folder"),
    ],
)
def test_data_sets(micro_run, micro_config, data, tmp_path, refused, spoil, message) -> None:
    spoil(data)
    assert message in refused("evaluate", micro_run, data, "--json", tmp_path / "scores.json")
    assert not (tmp_path / "scores.json").exists()
    # the same by training, here on the spoiled images
    words = ("--set", "dataloader.train_set=val", "--log-dir", tmp_path / "run")
    assert message in refused("train", micro_config, data, *words)
    if spoil is not id_that_cat_lacks:
        assert not (tmp_path / "run").exists(), "a run that was refused leaves nothing"


def test_a_run_folder_that_is_there_stays(micro_config, micro, tmp_path, refused) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "notes.txt").write_text("mine")
    refused("train", micro_config, micro, "--set", "dataloader.train_set=none", "--log-dir", run)
    assert sorted(p.name for p in run.iterdir()) == ["notes.txt", "training.log"]


# --- photos


# --- arguments

DOORS = """
predict {} IMG OUT; predict RUN {} OUT; predict RUN IMG {}; predict RUN @{} OUT; predict RUN IMG {}/p-%d.tar
predict RUN IMG OUT --config {}; predict RUN IMG OUT --meta {}; predict RUN IMG OUT --set {}
predict RUN IMG OUT --classes {}; predict RUN IMG OUT --tta {}; predict RUN IMG OUT --tiles {}
predict RUN IMG OUT --size {}; predict RUN IMG OUT --limit {}
evaluate {} DATA; evaluate RUN {}; evaluate --gt {} --pred INI; evaluate RUN DATA --meta {}
export {} m.onnx; export RUN {}; export RUN m.onnx --config {}; export RUN m.onnx --int8 {}
convert-model {} OUT; convert-model RUN OUT --meta {}; report {}; report RUN --against {}
serve {}; serve RUN --port {}; serve RUN --config {}; doctor --bench {}; doctor --replay {}
train {} DATA; train INI {}; train INI DATA --resume {}; train INI DATA --pre-train {}
classify train {} DATA; classify validate toy_things_resnext {} DATA
prepare check {}; prepare merge OUT {}; prepare cityscapes {} OUT; prepare vistas {} OUT; prepare coco {} OUT
prepare export {} OUT; prepare toy-city OUT --train {}; prepare folders OUT --classes {} --split a DATA DATA
"""
WORDS = {"nul": "a\0b", "half": "\ud800", "long": "x" * 5000, "deep": "s/" * 3000, "number": "9" * 5000}


@pytest.mark.parametrize("value", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("door", [door.strip() for line in DOORS.strip().splitlines() for door in line.split(";")])
def test_arguments_that_nothing_can_have(
    door, value, micro_run, micro, micro_config, tmp_path, seamseg_main, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"RUN": micro_run, "DATA": micro, "INI": micro_config, "IMG": micro / "img", "OUT": tmp_path / "out"}
    words = [places.get(word, word.replace("{}", value)) for word in door.split()]
    assert seamseg_main(*words, "--quiet") == 2
    printed = capsys.readouterr()
    (line,) = printed.err.strip().splitlines()
    assert printed.out == ""
    assert len(line) < 1000
    assert "unexpected" not in line
    assert "unknown argument" not in line
    assert not list(tmp_path.rglob("*.json*"))


OF_MODELS = "score-threshold overlap-threshold min-area shortest-size size longest-max-size tile-overlap pad-to"
NUMBERS = {
    "predict RUN IMG OUT": f"{OF_MODELS} batch-size workers limit shard-photos",
    "predict RUN IMG OUT --anonymize car": "anonymize-score",
    "serve RUN --port 0": f"{OF_MODELS} port batch-size batch-wait queue max-upload max-megapixels timeout",
    "evaluate RUN DATA --json s.json": OF_MODELS,
    "evaluate --gt GT --pred GT --json s.json": "workers",
    "export RUN m.onnx": "opset",
    "export RUN m.onnx --int8 DATA": "calibrate",
    "report EV --out r.html": "images size",
    "doctor --bench RUN": "rounds",
    "demo --out OUT": "train val seed",
    "classify validate toy_things_resnext none DATA --json s.json": "crop scale",
    "prepare toy-city OUT": "train val seed workers",
    "prepare toy-things OUT": "train val seed workers",
    "prepare folders OUT --classes LIST --split a IMG MSK": "divisor hold-out workers",
    "prepare check DATA --json s.json": "samples workers",
    "prepare cityscapes DATA OUT": "workers",
    "prepare vistas DATA OUT": "workers",
    "prepare coco DATA OUT": "workers",
    "prepare panoptic OUT --split a IMG GT MSK": "hold-out workers",
    "prepare instances OUT --split a IMG GT": "hold-out workers",
    "prepare cvat OUT --split a IMG DATA": "hold-out workers",
    "prepare labelstudio OUT --split a IMG DATA": "hold-out workers",
    "prepare merge DATA DATA OUT": "workers",
    "prepare export DATA OUT": "workers",
}
"""The options with a number, by the command with its other arguments."""
LIMITED = "workers rounds train val pad-to tile-overlap opset port size crop scale hold-out anonymize-score"
LIMITED = f"{LIMITED} score-threshold overlap-threshold".split()
"""Those that have a largest number."""
INPUT_SIZE = ("--shortest-size", "--longest-max-size")
OPTIONS = [(command, f"--{option}") for command, options in NUMBERS.items() for option in options.split()]


def test_every_option_with_a_number_is_tried() -> None:
    def numbers(parser: argparse.ArgumentParser, name: str) -> set[tuple[str, str]]:
        found = set()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                found |= {one for sub, inner in action.choices.items() for one in numbers(inner, f"{name} {sub}")}
            elif action.type in (int, float):
                found.add((name.strip(), action.option_strings[0]))
        return found

    wanted = {one for command in COMMANDS for one in numbers(build_parser([command]), "") if one[0].startswith(command)}
    # `prepare --check DATA` has the options of `prepare check DATA`
    wanted -= {("prepare", "--samples"), ("prepare", "--workers")}
    tried = {
        (" ".join(command.split()[: 2 if command.startswith(("prepare", "classify")) else 1]), option)
        for command, option in OPTIONS
    }
    assert tried == wanted


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_numbers_that_no_option_can_have(
    command, option, micro_run, micro, tmp_path, seamseg_main, capsys, monkeypatch
) -> None:
    """Each ends with a line that names the option, before anything is written."""
    monkeypatch.chdir(tmp_path)
    write_json("gt.json", {"images": [], "annotations": [], "categories": []})
    write_json("list.json", [{"id": 0, "name": "sky", "isthing": 0}])
    places = {"RUN": micro_run, "DATA": micro, "IMG": micro / "img", "MSK": micro / "msk", "OUT": tmp_path / "out"}
    places |= {"GT": tmp_path / "gt.json", "LIST": tmp_path / "list.json", "EV": micro_run}
    words = [str(places.get(word, word)) for word in command.split()]
    values = ("nan", "", "-1")
    for value in (*values, "9223372036854775808") if option[2:] in LIMITED else values:
        if (option, value) == ("--scale", "-1"):
            continue  # the size of the image
        assert seamseg_main(*words, f"{option}={value}", "--quiet") == 2, value
        printed = capsys.readouterr()
        (line,) = printed.err.strip().splitlines()
        assert printed.out == ""
        assert option in line or (option in INPUT_SIZE and "network size: " in line), line
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["gt.json", "list.json"]
