"""Names from data lead to no file outside of the folder that they are in."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from seamseg.maps.formats.metadata import read_metadata, write_metadata

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.mark.parametrize("name", ["../secret", "{}/secret", "a/../../secret", "..\\secret", "C:secret"])
def test_names_in_data(name, micro, micro_run, tmp_path, seamseg_main, capsys) -> None:
    name, data = name.format(tmp_path), Path(shutil.copytree(micro, tmp_path / "data"))
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
