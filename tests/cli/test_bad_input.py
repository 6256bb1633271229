"""Whatever a user hands over: the commands say one line and end with exit code 2, or give a right result."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from seamseg.cli.main import COMMANDS, build_parser
from seamseg.formats.id_png import read_id_png
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


def with_code(snapshot: Path, path: Path) -> None:
    content = torch.load(snapshot, weights_only=True)
    torch.save({**content, "training_meta": Evil()}, path)


def of_the_original(snapshot: Path, path: Path) -> None:
    content = torch.load(snapshot, weights_only=True)
    torch.save({key: content[key] for key in ("config", "state_dict", "training_meta")}, path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(with_code, "refused: it holds pickled code"), (of_the_original, "give metadata.bin with --meta")],
)
def test_models(micro_run, micro, tmp_path, refused, spoil, message) -> None:
    path = tmp_path / "model.pth.tar"
    spoil(micro_run / "model_last.pth.tar", path)
    for words in (("predict", path, micro / "img", tmp_path / "out"), ("evaluate", path, micro)):
        line = refused(*words)
        assert message in line
        assert "model.pth.tar" in line
    assert not (tmp_path / "out").exists()


def test_a_snapshot_of_other_classes(micro_run, micro_config, micro, tmp_path, refused) -> None:
    content = torch.load(micro_run / "model_last.pth.tar", weights_only=True)
    head = content["state_dict"]["sem_head"]
    head["conv_sem.weight"], head["conv_sem.bias"] = head["conv_sem.weight"][1:], head["conv_sem.bias"][1:]
    torch.save(content, tmp_path / "other.pth.tar")
    words = ("--log-dir", tmp_path / "run", "--resume", tmp_path / "other.pth.tar")
    line = refused("train", micro_config, micro, *words)
    assert "other.pth.tar: was trained on 2 classes, the data set has 3; use --pre-train " in line
    assert line.endswith("other.pth.tar --pre-train-classes TABLE to start from its weights")


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
    for option, name in (("--anonymize", "face"), ("--anonymize", "cra"), ("--classes", "face")):
        line = refused("predict", micro_run, micro / "img", tmp_path / "out", option, name)
        assert f"{option}: the model has no class {name!r}; " in line
        assert line.endswith("its classes are sky, road, car")


# --- data sets


def id_that_cat_lacks(data: Path) -> None:
    path = data / "msk" / "val1.png"
    ids = np.array(Image.open(path))
    ids[0, 0] = 77
    Image.fromarray(ids).save(path)


def mask_of_another_size(data: Path) -> None:
    Image.new("L", (9, 5)).save(data / "msk" / "val1.png")


def photo_of_another_size(data: Path) -> None:
    Image.new("RGB", (9, 5)).save(data / "img" / "val1.png")


def zero_byte_photo(data: Path) -> None:
    (data / "img" / "val1.png").write_bytes(b"")


def no_photos(data: Path) -> None:
    shutil.rmtree(data / "img")


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
        (mask_of_another_size, "val1.png: the mask is 9 x 5 pixels"),
        (photo_of_another_size, "val1.png: the image is 9 x 5 pixels"),
        (zero_byte_photo, "val1.png: the file is empty (0 bytes)"),
        (no_photos, "no photo of image"),
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
    if not data.is_dir() or not (data / "lst" / "val.txt").is_file() or spoil is empty_list:
        assert not (tmp_path / "run").exists(), "a run that was refused leaves nothing"


def test_a_run_folder_that_is_there_stays(micro_config, micro, tmp_path, refused) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "notes.txt").write_text("mine")
    refused("train", micro_config, micro, "--set", "dataloader.train_set=none", "--log-dir", run)
    assert sorted(p.name for p in run.iterdir()) == ["notes.txt", "training.log"]


# --- photos


def test_folders_without_photos(micro_run, tmp_path, refused) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "readme.txt").write_text("no photo")
    for inputs in ("photos", "photos/*.jpg"):
        assert "0 images" in refused("predict", micro_run, tmp_path / inputs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_photos_of_every_kind(micro_run, micro, tmp_path, seamseg_main) -> None:
    """Each gives a result at its own size, turned as viewers turn it, equal to that of the plain photo."""
    folder = tmp_path / "photos ä 街"
    folder.mkdir()
    street = Image.open(micro / "img" / "val0.png").convert("RGB").quantize(200)
    plain, grey = street.convert("RGB"), street.convert("L")
    exif = Image.Exif()
    exif[0x0112] = 6
    plain.save(folder / "plain.png")
    street.save(folder / "palette.png")
    plain.transpose(Image.Transpose.ROTATE_90).save(folder / "turned.png", exif=exif)
    grey.save(folder / "grey.png")
    Image.fromarray(np.asarray(grey).astype(np.uint16) * 257).save(folder / "grey16.png")
    plain.convert("CMYK").save(folder / "cmyk.tif")
    out = tmp_path / "out ö"
    words = ("--format", "coco,overlay", "--workers", "0", "--min-area", "0")
    assert seamseg_main("predict", micro_run, folder, out, *words, *QUIET) == 0
    maps = {path.stem: read_id_png(path) for path in (out / "panoptic").iterdir()}
    assert {name: ids.shape for name, ids in maps.items()} == dict.fromkeys(
        ("plain", "palette", "turned", "grey", "grey16", "cmyk"), (64, 96)
    )
    for one, other in (("palette", "plain"), ("turned", "plain"), ("cmyk", "plain"), ("grey16", "grey")):
        # ids are colours near that of the class, so the same map has the same ids
        assert (maps[one] == maps[other]).mean() > 0.99, one
    assert all(Image.open(path).size == (96, 64) for path in out.glob("*.jpg"))


def test_names_of_every_kind(micro_run, micro, tmp_path, seamseg_main) -> None:
    """As long as file systems allow, with blanks, dashes, quotes and bytes that are no text; links in a circle."""
    folder, out = tmp_path / "photos", tmp_path / "out"
    folder.mkdir()
    names = ["--format.jpg", "with blank .jpg", "new\nline.jpg", "q'\"$HOME%41#?.jpg", "街" * 83 + ".jpg"]
    for name in (*(os.fsencode(n) for n in names), b"\xff\xfe.jpg"):
        shutil.copy(micro / "img" / "val0.png", os.path.join(os.fsencode(folder), name))
    (folder / "circle").symlink_to(folder)
    (folder / "self.jpg").symlink_to(folder / "self.jpg")
    words = ("--workers", "0", "--format", "overlay,coco", *QUIET)
    assert seamseg_main("predict", micro_run, folder, out, *words) == 1
    assert sum(p.suffix == ".jpg" for p in out.iterdir()) == len(names) + 1
    assert len(list((out / "panoptic").iterdir())) == len(names) + 1
    (folder / "self.jpg").unlink()
    assert seamseg_main("predict", micro_run, folder, out, *words) == 0
    assert len(json.loads((out / "panoptic.json").read_text())["images"]) == len(names) + 1


def test_outputs_around_the_photos(micro_run, micro, tmp_path, seamseg_main, monkeypatch) -> None:
    """`predict RUN photos .` works on all of photos/, and outputs within photos/ are no photos the next time."""
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    for name in ("a.png", "sub/b.png"):
        shutil.copy(micro / "img" / "val0.png", tmp_path / "photos" / name)
    monkeypatch.chdir(tmp_path)
    assert seamseg_main("predict", micro_run, "photos", ".", "--workers", "0", *QUIET) == 0
    assert sorted(p.as_posix() for p in Path().rglob("*.jpg")) == ["a.jpg", "sub/b.jpg"]
    for _ in range(2):
        assert seamseg_main("predict", micro_run, "photos", "photos/out", "--workers", "0", *QUIET) == 0
        assert sorted(p.name for p in Path("photos/out").rglob("*.jpg")) == ["a.jpg", "b.jpg"]


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
LIMITED = {
    *(
        "--workers",
        "--rounds",
        "--train",
        "--val",
        "--pad-to",
        "--tile-overlap",
        "--opset",
        "--port",
        "--size",
        "--crop",
        "--scale",
    ),
    *("--score-threshold", "--overlap-threshold", "--anonymize-score", "--hold-out"),
}
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
    values = ("nan", "-inf", "", "-1")
    for value in (*values, "9223372036854775808") if option in LIMITED else values:
        if (option, value) == ("--scale", "-1"):
            continue  # the size of the image
        assert seamseg_main(*words, f"{option}={value}", "--quiet") == 2, value
        printed = capsys.readouterr()
        (line,) = printed.err.strip().splitlines()
        assert printed.out == ""
        assert option in line or (option in INPUT_SIZE and "network size: " in line), line
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["gt.json", "list.json"]
