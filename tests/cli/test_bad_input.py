"""Whatever a user hands over: the commands say one line and end with exit code 2, or give a right result."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from seamseg.maps.formats.metadata import read_metadata, write_metadata
from seamseg.utils.files import write_json

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.fixture
def data(micro: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(micro, tmp_path / "data"))


def test_resume_takes_a_run_folder(micro_run, micro_config, micro, tmp_path, refused, seamseg_main, capsys) -> None:
    run = tmp_path / "run"
    words = ("train", micro_config, micro, "--log-dir", run, "--resume")
    assert refused(*words, micro).endswith(f"--resume {micro}: no run folder: it holds no snapshot")
    assert seamseg_main(*words, micro_run, "--device", "cpu") == 0
    newest = max((micro_run / "snapshots").iterdir())
    assert f"resumed from {newest}, " in capsys.readouterr().err
    assert "resumed from" in (run / "training.log").read_text()


def test_classes_and_keys_that_a_model_lacks(micro_run, micro, tmp_path, refused) -> None:
    for option in ("--anonymize", "--classes"):
        line = refused("predict", micro_run, micro / "img", tmp_path / "out", option, "face")
        assert f"{option}: the model has no class 'face'; " in line
        assert line.endswith("its classes are sky, road, car")

    line = refused("predict", micro_run, micro / "img", tmp_path / "out", "--set", "general.nosuch=yes")
    assert line.startswith("seamseg predict: --set general.nosuch=yes: unknown key 'nosuch' in [general]")


def empty_list(data: Path) -> None:
    (data / "lst" / "val.txt").write_text("\n")
    (data / "lst" / "train.txt").write_text("")


def raw_cityscapes(data: Path) -> None:
    shutil.rmtree(data)
    (data / "leftImg8bit" / "val" / "aachen").mkdir(parents=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (empty_list, "the list is empty"),
        (raw_cityscapes, "seamseg prepare cityscapes"),
        (shutil.rmtree, "no such data set folder"),
    ],
)
def test_data_sets(micro_run, micro_config, data, tmp_path, refused, spoil, message) -> None:
    spoil(data)
    assert message in refused("evaluate", micro_run, data, "--json", tmp_path / "scores.json")
    assert message in refused("train", micro_config, data, "--log-dir", tmp_path / "run")


OF_MODELS = "score-threshold overlap-threshold min-area shortest-size size longest-max-size tile-overlap pad-to"
NUMBERS = {
    "predict RUN IMG OUT": f"{OF_MODELS} batch-size workers limit",
    "predict RUN IMG OUT --anonymize car": "anonymize-score",
    "serve RUN --port 0": f"{OF_MODELS} port batch-size queue max-upload max-megapixels timeout",
    "evaluate RUN DATA --json s.json": OF_MODELS,
    "evaluate --gt GT --pred GT --json s.json": "workers",
    "export RUN m.onnx --int8 DATA": "calibrate",
    "report EV --out r.html": "images size",
    "demo --out OUT": "train val seed",
    "classify validate toy_things_resnext none DATA --json s.json": "crop scale",
    "prepare toy-city OUT": "train val seed workers",
    "prepare toy-things OUT": "train val seed workers",
    "prepare folders OUT --classes LIST --split a IMG MSK": "divisor hold-out workers",
    "prepare --check DATA --json s.json": "samples workers",
}
"""The options with a number, by the command with its other arguments."""
LIMITED = "workers train val pad-to tile-overlap port crop scale hold-out anonymize-score"
LIMITED = f"{LIMITED} score-threshold overlap-threshold".split()
"""Those that have a largest number."""
INPUT_SIZE = ("--shortest-size", "--longest-max-size")
OPTIONS = [(command, f"--{option}") for command, options in NUMBERS.items() for option in options.split()]


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_numbers_that_no_option_can_have(command, option, micro_run, micro, tmp_path, refused) -> None:
    write_json("gt.json", {"images": [], "annotations": [], "categories": []})
    write_json("list.json", [{"id": 0, "name": "sky", "isthing": 0}])
    places = {"RUN": micro_run, "DATA": micro, "IMG": micro / "img", "MSK": micro / "msk", "OUT": tmp_path / "out"}
    places |= {"GT": tmp_path / "gt.json", "LIST": tmp_path / "list.json", "EV": micro_run}
    words = [str(places.get(word, word)) for word in command.split()]
    values = ("nan", "", "-1")
    for value in (*values, "9223372036854775808") if option[2:] in LIMITED else values:
        if (option, value) == ("--scale", "-1"):
            continue  # the size of the image
        line = refused(*words, f"{option}={value}")
        key = f"--set input.{option[2:]}_val="  # of a classifier, whose options set keys
        assert option in line or key in line or (option in INPUT_SIZE and "network size: " in line), line
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["gt.json", "list.json"]


@pytest.mark.parametrize("name", ["../secret", "{}/secret", "a/../../secret", "..\\secret", "C:secret"])
def test_names_in_data_lead_to_no_file_outside(name, micro, micro_run, data, tmp_path, seamseg_main, capsys) -> None:
    name = name.format(tmp_path)
    for folder in (tmp_path, data):
        shutil.copy(data / "img" / "val0.png", folder / "secret.png")
    classes = read_metadata(data / "metadata.bin")
    write_metadata(data / "metadata.bin", replace(classes, images=[replace(classes.images[0], id=name)]))
    (data / "lst" / "val.txt").write_text(f"{name}\n")
    truth = tmp_path / "gt.json"
    entry = {"image_id": 1, "file_name": f"{name}.png", "segments_info": []}
    truth.write_text(json.dumps({"annotations": [entry], "categories": [{"id": 1, "name": "sky", "isthing": 0}]}))
    (tmp_path / "gt").mkdir()
    for words in (
        ("evaluate", micro_run, data, "--out", tmp_path / "out", "--quiet"),
        ("prepare", "export", data, tmp_path / "out", "--split", "val", "--quiet"),
        ("evaluate", "--gt", truth, "--pred", truth, "--quiet"),
        ("prepare", "--check", data, "--quiet"),
    ):
        assert seamseg_main(*words) in (1, 2)
        printed = capsys.readouterr()
        assert "is not a path inside this folder" in printed.err + printed.out
    assert not list(tmp_path.rglob("out/**/*.png"))
