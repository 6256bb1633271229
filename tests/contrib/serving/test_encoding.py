"""Responses hold what the library returns and `seamseg predict` writes; concurrent requests get the same."""

import base64
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from support.browsers import decode_index_map
from support.exported import detector
from support.onnx_scenes import record, scene, write_classifier, write_network
from support.predictors import predictor_of
from support.serving import in_thread, png, serving

import seamseg
from seamseg.cli.main import main
from seamseg.contrib.serving import encoding
from seamseg.contrib.serving.encoding import ResultEncoder
from seamseg.data.input_size import InputSize
from seamseg.maps.formats.metadata import Metadata
from seamseg.results import Thresholds

SIZE = (90, 140)
OPTIONS = {"panoptic": {"shortest_size": 90, "min_stuff_area": 0}, "classification": {}}
FLAGS = {"panoptic": ["--shortest-size", "90", "--min-area", "0"], "classification": []}


@pytest.fixture(params=("panoptic", "semantic", "instance_seg", "detection", "classification"))
def model(request, tmp_path):
    kind, path = request.param, tmp_path / f"{request.param}.onnx"
    write_classifier(path) if kind == "classification" else write_network(path, record(kind))
    return path, seamseg.load(path, **OPTIONS.get(kind, {"shortest_size": 90}))


def encoded(predictor, name):
    pixels = scene(SIZE)
    result = predictor.predict(pixels)
    return ResultEncoder(predictor).encode(name, result.prediction, SIZE, lambda: Image.fromarray(pixels))


def test_images_are_the_files_of_predict(model, tmp_path):
    path, predictor = model
    Image.fromarray(scene(SIZE)).save(tmp_path / "a.png")
    ids = {"panoptic": ("coco", "panoptic/a.png"), "semantic": ("labels", "a.png")}.get(predictor.kind)
    flags = [*FLAGS.get(predictor.kind, ["--shortest-size", "90"]), "--workers", "0", "--quiet"]
    words = ["predict", str(path), str(tmp_path / "a.png"), str(tmp_path / "out")]
    formats = "overlay" if ids is None else f"overlay,{ids[0]}"
    assert main([*words, "--format", formats, *flags]) == 0
    assert encoded(predictor, "overlay").data == (tmp_path / "out" / "a.jpg").read_bytes()
    if ids is not None:
        assert encoded(predictor, "png").data == (tmp_path / "out" / ids[1]).read_bytes()
    else:
        assert "png" not in ResultEncoder(predictor).formats
    found = [entry for _, entry in predictor.predict(scene(SIZE)).entries()]
    if predictor.kind == "panoptic":
        wanted = [("car", 0.9, 26), ("person", 0.7, 24), ("road", None, 7), ("sky", None, 23)]
        assert [(s["class"], s["score"], s["category_id"]) for s in found] == wanted, "the ids of the data set"


def test_view(model, monkeypatch):
    _, predictor = model
    monkeypatch.setattr(encoding, "VIEW_SIZE", 70)
    content = encoding.json.loads(encoded(predictor, "view").data)
    assert (content["width"], content["height"], content["full"]) == (70, 45, [140, 90])
    assert Image.open(BytesIO(base64.b64decode(content["photo"]))).size == (70, 45)
    assert set(content["formats"]) == {*ResultEncoder(predictor).formats} - {"view"}
    shown = content["segments"]
    found = decode_index_map(content["map"], 45, 70, len(shown))
    classes = np.array(["void", *(s["class"] for s in shown)])[found]
    names = [s["class"] for s in shown]
    if predictor.kind == "classification":
        assert names == [name for name, _ in predictor.predict(scene(SIZE)).top()]
        assert not found.any()
        assert [s["area"] for s in shown] == [None] * 3
    elif predictor.kind in ("panoptic", "semantic"):
        assert (classes[0, 69], classes[44, 0]) == ("sky", "road")
        assert names == (["car", "person", "road", "sky"] if predictor.kind == "panoptic" else ["road", "sky"])
    else:
        assert names == ["car", "person"]
        # of 30 x 48 and 30 x 40 pixels, of which half if there are masks, at half the size
        assert (classes[12, 15], classes[22, 50], classes[0, 0]) == ("car", "person", "void")
        assert (classes[22, 38] == "person") == (predictor.kind == "detection")


def test_concurrent_requests_get_the_results_of_single_predictions():
    metadata = Metadata(2, 3, list("abcde"), [(40 * k, 0, 0) for k in range(5)], list(range(5)))
    predictor = predictor_of(detector(), metadata, Thresholds(0.1, 0.5, 16), InputSize(96))
    rng = np.random.default_rng(0)
    sizes = [(96, 128), (128, 96), (96, 128), (100, 140)] * 3
    photos = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    wanted = [predictor.predict(pixels) for pixels in photos]
    assert len({len(result.segments) for result in wanted}) > 1, "the images differ"
    with serving(predictor, batch_size=3) as client:
        sent = [in_thread(client.predict, png(pixels)) for pixels in photos]
        images = [in_thread(client.predict, png(pixels), "?format=png") for pixels in photos]
        for thread, _ in (*sent, *images):
            thread.join(60)
        sizes_of_batches = client.metric("seamseg_batch_size_sum") / client.metric("seamseg_batch_size_count")
    assert sizes_of_batches > 1, "they are batched"
    assert predictor.map_only
    for result, (_, answers), (_, pngs) in zip(wanted, sent, images):
        found, segments = answers[0].json["segments"], [entry for _, entry in result.entries()]
        assert [s["class"] for s in found] == [s["class"] for s in segments]
        for a, b in zip(found, segments):
            assert (a["score"] is None) == (b["score"] is None)
            assert a["score"] is None or a["score"] == pytest.approx(b["score"], abs=1e-5)
            assert (a["bbox"], a["area"], a["id"]) == (b["bbox"], b["area"], b["id"])
        assert Image.open(BytesIO(pngs[0].body)).tobytes() == result.to_coco()[1].tobytes()
