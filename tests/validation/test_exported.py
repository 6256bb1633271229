"""Exported networks are scored like any model."""

import json

import numpy as np
import pytest
from PIL import Image
from support.onnx_scenes import BOXES, CLASSES, record, write_network

from seamseg.formats.metadata import ImageInfo, Metadata, write_metadata
from seamseg.inference.options import InferenceOptions
from seamseg.inference.predictor import build_predictor
from seamseg.panoptic_map import VOID
from seamseg.validation.evaluate import EvaluationOptions, evaluate_model

SIZE = (64, 128)


@pytest.fixture
def data(tmp_path):
    """Two photos whose red value is the class of the pixel, with the objects that the network finds."""
    for folder in ("img", "msk", "lst"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    cat, images = [VOID, 0, 1, 3, 2], []
    for name in ("a", "b"):
        ids = np.ones(SIZE, np.uint8)
        ids[:20] = 2
        for number, (y0, x0, y1, x1) in enumerate(BOXES.astype(int).tolist(), 3):
            ids[y0:y1, x0 if number == 3 else (x0 + x1) // 2 : x1] = number
        pixels = np.zeros((*SIZE, 3), np.uint8)
        pixels[..., 0] = np.array(cat)[ids]
        Image.fromarray(pixels).save(tmp_path / "data/img" / f"{name}.png")
        Image.fromarray(ids).save(tmp_path / "data/msk" / f"{name}.png")
        images.append(ImageInfo(name, cat, SIZE, [0] * len(cat)))
    (tmp_path / "data/lst/val.txt").write_text("a\nb\n")
    write_metadata(tmp_path / "data/metadata.bin", Metadata(**{**vars(CLASSES), "images": images}))
    return tmp_path / "data"


@pytest.mark.parametrize("kind", ["panoptic", "semantic", "detection"])
@pytest.mark.parametrize("size", [None, SIZE])
def test_scores(data, tmp_path, seamseg_main, capsys, kind, size):
    model = write_network(tmp_path / "net.onnx", record(kind, size))
    words = ("--split", "val", "--json", tmp_path / "scores.json", "--quiet", "--set", "dataloader.num_workers=0")
    words += ("--set", f"dataloader.shortest_size={SIZE[0]}")
    if kind == "panoptic":
        words += ("--set", "general.min_stuff_area=0")
    assert seamseg_main("evaluate", model, data, *words) == 0, capsys.readouterr().err
    scores = json.loads((tmp_path / "scores.json").read_text())
    # one of two boxes is twice as wide as its object, of which the mask leaves out a half
    wanted = {"panoptic": {"PQ": 1, "mIoU": 1}, "semantic": {"mIoU": 1, "accuracy": 1}, "detection": {"det_map": 0.55}}
    assert {name: scores[name] for name in wanted[kind]} == pytest.approx(wanted[kind])


def test_the_size_of_the_file(data, tmp_path, monkeypatch):
    """`export --data` scores the network at it."""

    def build(opened, options, size):
        sizes.append(size.of(SIZE))
        return build_predictor(opened, options, size)

    sizes = []
    model = write_network(tmp_path / "net.onnx", record("semantic", None))
    monkeypatch.setattr("seamseg.validation.evaluate.build_predictor", build)
    inference = InferenceOptions(overrides=("dataloader.shortest_size=64", "dataloader.num_workers=0"))
    options = EvaluationOptions("val", device="cpu", quiet=True, inference=inference)
    for size in (None, SIZE, (64, 64)):
        evaluate_model(model, data, options, size)
    assert sizes == [SIZE, SIZE, (32, 64)]


def test_what_cannot_be_set(data, tmp_path, seamseg_main, capsys):
    model = write_network(tmp_path / "net.onnx", record())
    assert seamseg_main("evaluate", model, data, "--split", "val", "--set", "roi.nms_threshold=0.1") == 2
    assert "--set roi.nms_threshold=0.1: cannot be changed after the export" in capsys.readouterr().err
