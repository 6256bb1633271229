"""`evaluate MODEL DATA` scores what `predict` writes with the same options."""

from __future__ import annotations

import json
import shutil

import pytest
from support.tiny_transformers import save

from seamseg.cli.main import main
from seamseg.formats.metadata import read_metadata

OPTIONS = {
    "default": [],
    "bf16": ["--precision", "bf16"],
    "views": ["--tta", "flip,0.75,1.0"],
    "tiles": ["--shortest-size", "300", "--tiles", "256", "--min-area", "0"],
    "thresholds": ["--score-threshold", "0.1", "--overlap-threshold", "0.9", "--min-area", "7"],
    "preview": ["--preview"],
}


@pytest.fixture
def photos(micro, tmp_path):
    for name in ("val0", "val1", "val2"):
        (tmp_path / "photos").mkdir(exist_ok=True)
        shutil.copy(micro / "img" / f"{name}.png", tmp_path / "photos")
    return tmp_path / "photos"


def both(model, data, photos, out, options):
    """Return the scores of a model, and those of the files that it writes."""
    words = ["--device", "cpu", "--quiet", *options]
    assert (
        main(["evaluate", str(model), str(data), "--json", str(out / "m.json"), "--out", str(out / "e"), *words]) == 0
    )
    assert main(["predict", str(model), str(photos), str(out / "p"), "--format", "coco", *words]) == 0
    files = ["--gt", str(out / "e/ground_truth.json"), "--pred", str(out / "p/panoptic.json")]
    assert main(["evaluate", *files, "--json", str(out / "f.json"), "--quiet"]) == 0
    return json.loads((out / "m.json").read_text()), json.loads((out / "f.json").read_text())


def check_equal(model, files):
    assert model["mIoU_segments"] > 0
    for key in ("PQ", "SQ", "RQ", "PQ_things", "PQ_stuff", "mIoU_segments"):
        assert model[key] == pytest.approx(files[key], abs=1e-6), key


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_of_a_snapshot(micro, micro_run, photos, tmp_path, options):
    check_equal(*both(micro_run, micro, photos, tmp_path, options))


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_of_an_exported_network(micro, micro_run, photos, tmp_path):
    file = tmp_path / "net.onnx"
    assert main(["export", str(micro_run), str(file), "--size", "64x96", "--quiet"]) == 0
    check_equal(*both(file, micro, photos, tmp_path, ["--min-area", "10"]))


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--tiles", "128"], ["--precision", "bf16"]], ids=["whole", "tiles", "bf16"])
def test_of_a_network_of_queries(micro, photos, tmp_path, options):
    pytest.importorskip("transformers")
    folder = save("mask2former", tmp_path / "net", read_metadata(micro / "metadata.bin").categories)
    words = ["--meta", str(micro / "metadata.bin"), "--shortest-size", "160", "--score-threshold", "0.1"]
    check_equal(*both(folder, micro, photos, tmp_path, [*words, "--overlap-threshold", "0", *options]))


@pytest.mark.usefixtures("narrow")
def test_options_change_the_scores(micro, micro_run, tmp_path):
    found = []
    for options in ([], ["--score-threshold", "0.99", "--min-area", "100000"]):
        words = ["--device", "cpu", "--quiet", "--json", str(tmp_path / "m.json"), *options]
        assert main(["evaluate", str(micro_run), str(micro), *words]) == 0
        found.append(json.loads((tmp_path / "m.json").read_text())["PQ"])
    assert found[0] > found[1] == 0
