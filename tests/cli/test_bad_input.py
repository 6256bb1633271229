"""Whatever a user hands over: the commands say one line and end with exit code 2, or give a right result."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from seamseg.utils.files import write_json

pytestmark = pytest.mark.usefixtures("narrow")


class Evil:
    """Code that a careless loader would run."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("EVIL",)


@pytest.fixture
def data(micro: Path, tmp_path: Path) -> Path:
    """A data set of its own to spoil."""
    return Path(shutil.copytree(micro, tmp_path / "data"))


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
    assert seamseg_main(*words, micro_run, "--device", "cpu") == 0
    newest = max((micro_run / "snapshots").iterdir())
    assert f"resumed from {newest}, " in capsys.readouterr().err
    assert "resumed from" in (run / "training.log").read_text()


def test_classes_that_a_model_lacks(micro_run, micro, tmp_path, refused) -> None:
    for option in ("--anonymize", "--classes"):
        line = refused("predict", micro_run, micro / "img", tmp_path / "out", option, "face")
        assert f"{option}: the model has no class 'face'; " in line
        assert line.endswith("its classes are sky, road, car")


def test_configuration_keys(micro_run, micro, tmp_path, refused) -> None:
    line = refused("predict", micro_run, micro / "img", tmp_path / "out", "--set", "general.nosuch=yes")
    assert line.startswith("seamseg predict: --set general.nosuch=yes: unknown key 'nosuch' in [general]")


# --- data sets


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


# --- arguments

DOORS = """
predict {} IMG OUT; predict RUN {} OUT; predict RUN @{} OUT; predict RUN IMG {}/p-%d.tar; evaluate --gt {} --pred INI
predict RUN IMG OUT --config {}; predict RUN IMG OUT --set {}; export RUN {}; train {} DATA; prepare cityscapes {} OUT
prepare folders OUT --classes {} --split a DATA DATA
"""


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000], ids=["nul", "long"])
@pytest.mark.parametrize("door", [door.strip() for line in DOORS.strip().splitlines() for door in line.split(";")])
def test_names_that_no_file_can_have(door, name, micro_run, micro, micro_config, tmp_path, refused) -> None:
    places = {"RUN": micro_run, "DATA": micro, "INI": micro_config, "IMG": micro / "img", "OUT": tmp_path / "out"}
    words = [places.get(word, word.replace("{}", name)) for word in door.split()]
    line = refused(*words)
    assert "unexpected" not in line
    assert "unknown argument" not in line
    assert not list(tmp_path.rglob("*.json*"))


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
    "prepare check DATA --json s.json": "samples workers",
}
"""The options with a number, by the command with its other arguments."""
LIMITED = "workers train val pad-to tile-overlap port size crop scale hold-out anonymize-score"
LIMITED = f"{LIMITED} score-threshold overlap-threshold".split()
"""Those that have a largest number."""
INPUT_SIZE = ("--shortest-size", "--longest-max-size")
OPTIONS = [(command, f"--{option}") for command, options in NUMBERS.items() for option in options.split()]


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_numbers_that_no_option_can_have(command, option, micro_run, micro, tmp_path, refused) -> None:
    """Each ends with a line that names the option, before anything is written."""
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


# --- pipes, which wait for a writer

PIPES = """
predict P.zip IMG OUT; predict P.pth.tar IMG OUT; predict P.safetensors IMG OUT; predict P.onnx IMG OUT
predict P.pt2 IMG OUT --device cpu; predict P IMG OUT; predict RUN P.txt OUT; predict RUN @P OUT; predict RUN P.jpg OUT
predict RUN P.gif OUT; predict RUN P.mp4 OUT; predict RUN IMG OUT --config P.ini; predict RUN IMG OUT --meta P.bin
predict RUN IMG OUT --meta P.json; predict RUN IMG OUT --components P.py; train P.ini DATA --log-dir OUT
train INI DATA --log-dir OUT --pre-train P.pth; train INI DATA --log-dir OUT --pre-train P.safetensors
train INI DATA --log-dir OUT --resume P.tar; train INI DATA --log-dir OUT --pre-train-classes P.json --pre-train RUN
evaluate P.zip DATA; evaluate RUN DATA --class-table P.json; evaluate --gt P.json --pred GT
evaluate --gt GT --pred P.json --gt-folder IMG
export P.tar OUT/m.onnx; convert-model P.tar OUT; convert-backbone resnet18 OUT/b.pth --weights P.pth; report P
classify train P.json DATA --log-dir OUT; classify validate P.ini none DATA; serve P.onnx --port 0
push RUN me/it --dry-run OUT --scores P.json
prepare coco P.zip OUT; prepare vistas P.zip OUT; prepare cityscapes P OUT; prepare check P; prepare merge DATA P OUT
prepare merge DATA DATA2 OUT --classes P.json; prepare folders OUT --classes P.ini --split a IMG MSK
prepare folders OUT --classes P.json --split a IMG MSK; prepare cvat OUT --split a IMG P.zip
prepare labelstudio OUT --split a IMG P.json --classes LIST; prepare instances OUT --split a IMG P.json
prepare panoptic OUT --split a IMG P.json MSK; prepare folders OUT --classes LIST --split a P.zip MSK
"""
"""Commands with a pipe P for a file."""
FILES = """
DATA/metadata.bin: train INI DATA --log-dir OUT; DATA/metadata.bin: prepare check DATA
DATA/metadata.bin: evaluate RUN DATA; DATA/lst/val.txt: evaluate RUN DATA
DATA/lst/val.txt: prepare check DATA; DATA/msk/val0.png: evaluate RUN DATA; DATA/img/val0.png: predict RUN DATA/img OUT
OUT/predictions.jsonl: predict RUN IMG OUT
EV/evaluation.json: report EV --out OUT/r.html; EV/images.jsonl: report EV --out OUT/r.html
OUT/lst/other.txt: prepare merge DATA DATA2 OUT
"""
"""Commands, with a pipe in the place of one of their files."""


def _cases(text: str) -> list[str]:
    return [case.strip() for line in text.strip().splitlines() for case in line.split(";")]


@pytest.fixture
def soon() -> Iterator[None]:
    """Fail instead of waiting for ever."""

    def late(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def places(micro, micro_run, micro_config, tmp_path, monkeypatch) -> dict[str, Path]:
    monkeypatch.chdir(tmp_path)
    names = {name: tmp_path / name.lower() for name in ("DATA", "DATA2", "RUN", "OUT", "EV")}
    for name, source in (("DATA", micro), ("DATA2", micro), ("RUN", micro_run)):
        shutil.copytree(source, names[name])
    write_json("gt.json", {"images": [], "annotations": [], "categories": []})
    write_json("list.json", [{"id": 0, "name": "sky", "isthing": 0}])
    data = names["DATA"]
    return names | {"INI": micro_config, "IMG": data / "img", "MSK": data / "msk"} | {
        "GT": tmp_path / "gt.json", "LIST": tmp_path / "list.json"
    }  # fmt: skip


def _refused_with_a_line(words: list[str], name: str, seamseg_main, capsys) -> None:
    # of images, the work failed
    assert seamseg_main(*words, "--quiet") in (1, 2)
    printed = capsys.readouterr()
    assert name in printed.err + printed.out
    assert "unexpected" not in printed.err


@pytest.mark.parametrize("case", _cases(PIPES))
def test_a_pipe_for_a_file(case, places, tmp_path, seamseg_main, capsys, soon) -> None:
    words = [str(places.get(word, word)) for word in case.split()]
    name = next(word.lstrip("@") for word in words if word.lstrip("@").startswith("P") and word != "P/")
    words = [str(tmp_path / word) if word == name else word for word in words]
    os.mkfifo(tmp_path / name)
    _refused_with_a_line(words, name, seamseg_main, capsys)


@pytest.mark.parametrize("case", _cases(FILES))
def test_a_pipe_in_a_folder(case, places, tmp_path, seamseg_main, capsys, soon) -> None:
    place, _, command = case.partition(": ")
    folder, _, name = place.partition("/")
    pipe = places[folder] / name
    if folder == "EV":
        assert seamseg_main("evaluate", places["RUN"], places["DATA"], "--out", places["EV"], "--quiet") == 0
        capsys.readouterr()
    pipe.parent.mkdir(parents=True, exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    words = []
    for word in command.split():
        head, slash, rest = word.partition("/")
        words.append(f"{places[head]}{slash}{rest}" if head in places else word)
    _refused_with_a_line(words, pipe.name, seamseg_main, capsys)
