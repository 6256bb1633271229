"""`seamseg export`: the table, the file that runs in `seamseg predict`, and bad input in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.classes import write_classifier

import seamseg
from seamseg.contrib.deploy.export import compare
from seamseg.maps.formats.exported import METADATA_KEY, ExportedMetadata

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a.engine",), "a.engine: its ending decides the format: .onnx"),
        (("a.onnx", "--size", "512"), "--size 512: give HEIGHTxWIDTH in pixels"),
        (("a.onnx", "--size", "16x512"), "--size: height and width must be 32 to 8192"),
        (("a.onnx", "--size", "64x64", "--dynamic"), "--size and --dynamic are mutually exclusive"),
        (("a.onnx", "--precision", "bf16"), "--precision bf16: ONNX files are exported in fp32"),
        (("a.onnx", "--calibrate", "3"), "--calibrate is the number of images of --int8"),
        (("a.onnx", "--int8", "d", "--precision", "bf16"), "--int8 d and --precision bf16 exclude each other"),
        (("a.onnx", "--int8", "none"), "none: no such data set folder"),
        (("a.pt2", "--int8", "d"), "--int8 d: only ONNX files are quantised, not a.pt2"),
        (("a.onnx", "--check", "b.png"), "b.png: no such image"),
    ],
)
def test_bad_options(words, message, micro_run, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused("export", micro_run, *words)
    assert not list(tmp_path.iterdir())


def test_files_that_are_in_the_way_or_missing(micro_run: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "a.onnx"
    assert "no such model" in refused("export", tmp_path / "none", out)
    out.write_text("mine")
    assert f"{out}: exists; use --force to overwrite it" in refused("export", micro_run, out)
    assert "is an exported network" in refused("export", out, tmp_path / "b.onnx")
    (tmp_path / "c.onnx").mkdir()
    assert "is a folder" in refused("export", micro_run, tmp_path / "c.onnx")
    assert out.read_text() == "mine"


def metadata_of(path: Path) -> ExportedMetadata:
    import onnx

    stored = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    return ExportedMetadata.from_json(stored[METADATA_KEY], str(path))


@pytest.mark.slow
def test_a_trained_model(micro, micro_run, seamseg_main, capsys, tmp_path):
    out, photo = tmp_path / "city.onnx", micro / "img" / "val0.png"
    words = ("export", micro_run, out, "--size", "64x128", "--check", photo, "--licence", "CC0")
    assert seamseg_main(*words, "--set", "roi.score_threshold=0.02") == 0
    captured = capsys.readouterr()
    rows = dict(line.split("  ", 1) for line in captured.out.splitlines())
    assert "64 x 128 (height x width), fp32" in rows["network"]
    # two pixels of 8192 have nearly equal logits of two classes
    assert float(rows[str(photo)].partition("classes of ")[2].split()[0]) >= 99.97
    assert "tracing the network" in captured.err
    stated = metadata_of(out)
    assert (stated.size, stated.multiple, stated.licence) == ((64, 128), 1, "CC0")
    assert "score_threshold = 0.02" in stated.config

    results = tmp_path / "results"
    assert seamseg_main("predict", out, photo, results, "--format", "coco", "--quiet") == 0
    assert json.loads((results / "panoptic.json").read_text())["annotations"]
    assert seamseg_main("export", micro_run, out, "--force", "--quiet") == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert "part all, input free" in rows["network"]
    # also of the upright image
    network, file = (seamseg.evaluate(model, micro, device="cpu", quiet=True).line() for model in (micro_run, out))
    assert file == network


@pytest.mark.slow
def test_a_classifier(seamseg_main: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run, out = write_classifier(tmp_path / "run"), tmp_path / "classifier.onnx"
    assert seamseg_main("export", run, out, "--quiet") == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert "classification, part all, input " in rows["network"]
    assert float(rows["noise"].split()[1]) < 1e-4
    assert metadata_of(out).metadata.categories[0] == "class 0"
    assert seamseg_main("export", run, out, "--quiet", "--part", "dense", "--force") == 2
    assert "a classifier has no dense part" in capsys.readouterr().err


def outputs(**changes: object) -> dict[str, np.ndarray]:
    """Outputs of a network that finds three things in an image of 4 x 6 valid pixels."""
    found = {
        "boxes": np.array([[0, 0, 2, 2], [1, 1, 4, 4], [1, 1, 4, 4], [0, 0, 0, 0]], np.float32),
        "classes": np.array([0, 0, 1, 0]),
        "scores": np.array([0.9, 0.8, 0.7, 0], np.float32),
        "count": np.array(3),
        "classmap": np.zeros((8, 8), np.uint8),
    }
    return {**found, **changes}  # type: ignore[dict-item]


INPUTS = {"image": np.zeros((1, 3, 8, 8), np.uint8), "size": np.array([4, 6])}


def test_differences_of_outputs() -> None:
    same = compare(outputs(), outputs(), INPUTS)
    assert same.detections == (3, 3, 3)
    assert (same.box, same.score, same.equal_pixels) == (0, 0, 1)
    swapped = np.array([1, 0, 2, 3])
    other = outputs()
    found = {**other, **{name: other[name][swapped] for name in ("boxes", "classes", "scores")}}
    assert compare(outputs(), found, INPUTS) == same, "equal scores may change places"
    moved = outputs(boxes=outputs()["boxes"] + np.float32(0.25), count=np.array(2))
    moved["classmap"] = np.zeros((8, 8), np.uint8)
    moved["classmap"][3:, :] = 1
    found = compare(outputs(), moved, INPUTS)
    assert found.detections == (3, 2, 2)
    assert (found.box, found.equal_pixels) == (0.25, 0.75)
    assert (
        str(found) == "detections 2 of 3 equal (2 in the file), box 0.25 px, score 0, classes of 75 % of pixels equal"
    )
    nothing = outputs(count=np.array(0))
    assert compare(nothing, nothing, INPUTS).detections == (0, 0, 0)
    found = compare({"logits": np.array([[1.0, -4.0]])}, {"logits": np.array([[1.0, -3.0]])}, {"image": np.zeros(1)})
    assert found.values == 0.25
