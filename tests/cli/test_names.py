"""Names from data lead to no file outside of the folder that they are in."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from seamseg.maps.formats.metadata import read_metadata, write_metadata

pytestmark = pytest.mark.usefixtures("narrow")
CPU = ("--device", "cpu", "--workers", "0", "--quiet")


@pytest.fixture
def data(micro: Path, tmp_path: Path) -> Path:
    """A data set with an image `town/a` in a list of its own, whose class names are of Cityscapes."""
    root = Path(shutil.copytree(micro, tmp_path / "data"))
    classes = read_metadata(root / "metadata.bin")
    for folder in ("img", "msk"):
        (root / folder / "town").mkdir()
        shutil.copy(root / folder / "val0.png", root / folder / "town" / "town_000000_000000.png")
    own = replace(next(i for i in classes.images if i.id == "val0"), id="town/town_000000_000000")
    write_metadata(root / "metadata.bin", replace(classes, images=[*classes.images, own]))
    (root / "lst" / "town.txt").write_text(f"{own.id}\n")
    return root


def _images(folder: Path) -> Path:
    (folder / "town").mkdir(parents=True)
    Image.new("RGB", (48, 32), (90, 150, 220)).save(folder / "town" / "town_000000_000000_leftImg8bit.png")
    return folder


def test_out_may_be_a_link(micro_run, tmp_path, seamseg_main) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    assert seamseg_main("predict", micro_run, _images(tmp_path / "images"), tmp_path / "out", *CPU) == 0
    assert len(list((tmp_path / "disk").rglob("*_leftImg8bit.*"))) == 1


@pytest.mark.parametrize("name", ["../secret", "{}/secret", "a/../../secret", "..\\secret", "C:secret"])
def test_names_in_data(name, data, micro_run, tmp_path, seamseg_main, capsys) -> None:
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
        ("prepare", "check", data, "--quiet"),
    ):
        assert seamseg_main(*words) in (1, 2)
        printed = capsys.readouterr()
        assert "is not a path inside this folder" in printed.err + printed.out
    assert not list(tmp_path.rglob("out/**/*.png"))
