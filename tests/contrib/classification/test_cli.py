"""`seamseg classify`: output, exit codes, and one line for bad input."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.classes import make_class_folders, write_config

from seamseg.contrib.classification.config import load_classifier_config
from seamseg.contrib.classification.network import build_classifier


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`data`, `c.json`, and `model.pth.tar`, a checkpoint with random weights."""
    folder = tmp_path_factory.mktemp("classify")
    make_class_folders(folder / "data")
    config = write_config(folder / "c.json")
    state = build_classifier(load_classifier_config(config)).state_dict()
    content = {"arch": "resnext50", "state_dict": {f"module.{key}": value for key, value in state.items()}}
    torch.save(content, folder / "model.pth.tar")
    return folder


def test_train_and_validate(folder, tmp_path, seamseg_main, capsys):
    run, one = tmp_path / "run", ("--set", "optimizer.schedule.epochs=1", "--device", "cpu", "--quiet")
    assert seamseg_main("classify", "train", folder / "c.json", folder / "data", "--log-dir", run, *one) == 0
    line = re.compile(r"9 images in [\d.]+ s, [\d.]+ images/s, loss [\d.]+\n \* Prec@1 \d+\.\d{3} Prec@5 100\.000\n")
    assert line.fullmatch(capsys.readouterr().out)
    words = ("validate", run / "config.json", run / "model_best.pth.tar", folder / "data", "--device", "cpu", "--quiet")
    scores = tmp_path / "scores.json"
    assert seamseg_main("classify", *words, "--ten-crops", "--crop", 24, "--scale", -1, "--json", scores) == 0
    assert line.fullmatch(capsys.readouterr().out)
    content = json.loads(scores.read_text())
    assert set(content) == {"top1", "top5", "loss", "n_images", "seconds", "images_per_second"}
    assert content["n_images"] == 9


def test_bad_arguments(folder: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    run = ("--log-dir", tmp_path / "run")
    train = ("classify", "train", folder / "c.json", folder / "data", *run)
    model = ("classify", "validate", folder / "c.json", folder / "model.pth.tar", folder / "data")
    assert "did you mean 'optimizer.learning_rate'" in refused(*train, "--set", "optimizer.lerning_rate=1")
    assert "--set optimizer.clip=x: expected a number" in refused(*train, "--set", "optimizer.clip=x")
    assert "no such file" in refused(*train, "--resume", tmp_path / "none.pth.tar")
    assert "mutually exclusive" in refused(*train, "--resume", folder / "model.pth.tar", "--pre-train", "x")
    assert "its training progress is missing" in refused(*train, "--resume", folder / "model.pth.tar")
    assert "no such config file" in refused("classify", "train", tmp_path / "c.json", folder / "data", *run)
    assert "no such folder" in refused("classify", "train", folder / "c.json", tmp_path, *run)
    assert "--set input.crop_val=0: expected a value from 1 to 16384" in refused(*model, "--crop", 0)
    assert "input.crop_val = 300: does not fit" in refused(*model, "--crop", 300)
    assert "name train or validate" in refused("classify")


def test_bad_data(folder: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    data = Path(shutil.copytree(folder / "data", tmp_path / "data"))
    train = ("classify", "train", folder / "c.json", data, "--log-dir", tmp_path / "run")
    model = ("classify", "validate", folder / "c.json", folder / "model.pth.tar", data)
    (data / "val" / "red" / "0.png").write_bytes(b"no image")
    assert re.search(r"val/red/0\.png: not an image", refused(*model))
    for name in ("blue", "green", "red"):
        Image.new("RGB", (10, 10)).save(data / "val" / name / "0.png")
    assert re.search(r"10 x 10 pixels.*crop", refused(*model, "--scale", -1, "--crop", 24, "--ten-crops"))
    (data / "train" / "yellow").mkdir()
    assert "hold no images: yellow" in refused(*train)
    (data / "train" / "yellow").rmdir()
    assert "--set network.classes=3 fits them" in refused(*train, "--set", "network.classes=4")
    shutil.rmtree(data / "train" / "red")
    assert "train and val have other class folders: red" in refused(*train)
