"""`evaluate MODEL DATA` scores what `predict` writes with the same options."""

from __future__ import annotations

import json
import shutil

import pytest
from support.tiny_transformers import save

from seamseg.cli.main import main
from seamseg.formats.metadata import read_metadata

OPTIONS = {
    "bf16": ["--precision", "bf16", "--score-threshold", "0.1", "--overlap-threshold", "0.9", "--min-area", "7"],
    "views": ["--tta", "flip,0.75,1.0"],
    "tiles": ["--shortest-size", "300", "--tiles", "256", "--min-area", "0"],
    "preview": ["--preview"],
}


def check_equal(model, data, out, options):
    """The scores of a model are those of the files that it writes."""
    (out / "photos").mkdir()
    for name in ("val0", "val1", "val2"):
        shutil.copy(data / "img" / f"{name}.png", out / "photos")
    words = ["--device", "cpu", "--quiet", *options]
    files = ["--json", str(out / "m.json"), "--out", str(out / "e")]
    assert main(["evaluate", str(model), str(data), *files, *words]) == 0
    assert main(["predict", str(model), str(out / "photos"), str(out / "p"), "--format", "coco", *words]) == 0
    files = ["--gt", str(out / "e/ground_truth.json"), "--pred", str(out / "p/panoptic.json")]
    assert main(["evaluate", *files, "--json", str(out / "f.json"), "--quiet"]) == 0
    of_model, of_files = (json.loads((out / name).read_text()) for name in ("m.json", "f.json"))
    assert of_model["mIoU_segments"] > 0
    for key in ("PQ", "SQ", "RQ", "PQ_things", "PQ_stuff", "mIoU_segments"):
        assert of_model[key] == pytest.approx(of_files[key], abs=1e-6), key


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_of_a_snapshot(micro, micro_run, tmp_path, options):
    check_equal(micro_run, micro, tmp_path, options)


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_of_an_exported_network(micro, micro_run, tmp_path):
    file = tmp_path / "net.onnx"
    assert main(["export", str(micro_run), str(file), "--size", "64x96", "--quiet"]) == 0
    check_equal(file, micro, tmp_path, ["--min-area", "10"])


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--tiles", "128"], ["--precision", "bf16"]], ids=["tiles", "bf16"])
def test_of_a_network_of_queries(micro, tmp_path, options):
    pytest.importorskip("transformers")
    folder = save("mask2former", tmp_path / "net", read_metadata(micro / "metadata.bin").categories)
    words = ["--meta", str(micro / "metadata.bin"), "--shortest-size", "160", "--score-threshold", "0.1"]
    check_equal(folder, micro, tmp_path, [*words, "--overlap-threshold", "0", *options])


@pytest.mark.usefixtures("narrow")
def test_options_change_the_scores(micro, micro_run, tmp_path):
    found = []
    for options in ([], ["--score-threshold", "0.99", "--min-area", "100000"]):
        words = ["--device", "cpu", "--quiet", "--json", str(tmp_path / "m.json"), *options]
        assert main(["evaluate", str(micro_run), str(micro), *words]) == 0
        found.append(json.loads((tmp_path / "m.json").read_text())["PQ"])
    assert found[0] > found[1] == 0
