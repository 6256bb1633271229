"""What only reads and writes files starts without torch, which costs half a gigabyte and seconds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seamseg

PROGRAM = """
import sys, traceback
class Forbidden:
    # whoever asks is written down: it could be a process of its own, or content without
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch":
            with open(sys.argv[1], "a") as file:
                file.writelines(traceback.format_stack())
            raise ImportError("torch was asked for")
sys.meta_path.insert(0, Forbidden)
from seamseg.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def run(folder: Path, *words: str, code: int = 0) -> str:
    """What a command prints; its exit code must be this one, and nobody may ask for torch."""
    log = folder / "asked.txt"
    environment = {**os.environ, "PYTHONPATH": str(Path(seamseg.__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM, str(log), "--debug", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert not log.exists(), log.read_text()
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy city as raw Cityscapes in `raw`, as a dataset folder in `data`, exported to `exported`."""
    folder = tmp_path_factory.mktemp("city")
    run(folder, "prepare", "toy-city", "raw", "--train", "2", "--val", "2", "--size", "64x128", "--workers", "2")
    run(folder, "prepare", "cityscapes", "raw", "data", "--workers", "2")
    run(folder, "prepare", "export", "data", "exported", "--format", "coco,cityscapes", "--workers", "2")
    return folder


def test_things_of_the_toy_city(tmp_path: Path) -> None:
    printed = run(tmp_path, "prepare", "toy-things", "things", "--train", "2", "--val", "2", "--workers", "1")
    assert "things/train: " in printed


def test_check(city: Path) -> None:
    assert "errors: 0" in run(city, "prepare", "--check", "data", "--workers", "2")


def test_other_sources(city: Path) -> None:
    run(city, "prepare", "merge", "data", "data", "merged", "--workers", "2")
    coco = sorted((city / "exported" / "coco").rglob("*.json"))
    photos = city / "data" / "img"
    split = ("val", str(photos), str(coco[-1]), str(coco[-1].with_suffix("")))
    run(city, "prepare", "panoptic", "own", "--split", *split, "--workers", "2")


def test_the_cityscapes_protocol(city: Path) -> None:
    truth = max((city / "exported" / "coco").rglob("*.json"))
    (city / "results").mkdir()
    shutil.copy(truth, city / "results" / "panoptic.json")
    shutil.copytree(truth.with_suffix(""), city / "results" / "panoptic")
    words = ("--protocol", "cityscapes", "--gt", "raw/gtFine/val", "--pred", "results", "--workers", "2")
    assert "100.00" in run(city, "evaluate", *words)


def test_files_and_their_report(city: Path) -> None:
    truth = str(max((city / "exported" / "coco").rglob("*.json")))
    scored = ("evaluate", "--gt", truth, "--pred", truth, "--workers", "2")
    assert " 100.00" in run(city, *scored, "--json", "metrics.json")
    assert " 100.00" in run(city, *scored, "--legacy-metrics")
    run(city, *scored, "--out", "evaluation", "--photos", "data/img")
    assert "open evaluation" in run(city, "report", "evaluation")
    assert "open page.html" in run(city, "report", "evaluation", "--against", "evaluation", "--out", "page.html")


@pytest.mark.parametrize(
    ("words", "message"),
    [(("none.zip", "photos", "out"), "no such model"), ((".", "photos", "out", "--limit", "0"), "must be at least 1")],
    ids=["model", "limit"],
)
def test_invalid_arguments_are_refused(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    assert message in run(tmp_path, "predict", *words, code=2)
