"""The files that `predict` writes for semantic networks, and the published network's own file."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_masks
from support.micro import narrow_body
from support.small_models import SEMANTIC_CLASSES as CLASSES

import seamseg
from seamseg.checkpoints.bundle import open_model
from seamseg.maps.formats.metadata import write_metadata
from seamseg.maps.formats.vistas import published_classes
from seamseg.utils.errors import InputError


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(1)
    for name, size in (("a.jpg", (48, 80)), ("b.png", (90, 70))):
        Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(tmp_path / name)
    return tmp_path


def test_formats(semantic_model, photos, seamseg_main):
    out = photos / "out"
    with narrow_body():
        words = ("--format", "labels,probabilities,overlay,json", "--tta", "flip", "--workers", 0)
        assert seamseg_main("predict", semantic_model, photos, out, "--device", "cpu", *words) == 0
        result = seamseg.load(semantic_model, "cpu", tta="flip", probabilities=True).predict(photos / "a.jpg")
    labels, probabilities = Image.open(out / "a.png"), Image.open(out / "a_prob.png")
    assert labels.mode == "P"
    assert np.array_equal(np.asarray(labels), result.classes)
    assert np.array_equal(np.asarray(labels.convert("RGB")), np.array(CLASSES.palette, np.uint8)[result.classes])
    assert labels.getpalette()[9:768] == [0] * 759, "black after the last class"
    assert np.array_equal(np.asarray(probabilities), result.probability)
    assert Image.open(out / "b.jpg").size == Image.open(out / "b.png").size == (70, 90)
    for segment in json.loads((out / "json" / "a.json").read_text())["segments"]:
        assert np.array_equal(coco_masks.decode(segment["segmentation"]), result.classes == segment["category_id"])
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert {"sky", "road", "human--person"} >= set(lines[1]["segments"])


def test_greyscale(semantic_model, photos, seamseg_main):
    with narrow_body():
        arguments = ("predict", semantic_model, photos / "a.jpg", photos / "out", "--device", "cpu")
        assert seamseg_main(*arguments, "--format", "ids", "--classes", "road") == 0
    image = Image.open(photos / "out" / "a.png")
    assert image.mode == "L"
    assert set(np.unique(np.asarray(image))) <= {1, 255}


def test_formats_of_one_file(semantic_model, photos, narrow, refused):
    words = ("predict", semantic_model, photos, photos / "out", "--device", "cpu", "--format", "labels,ids")
    assert "labels and ids would both write NAME.png" in refused(*words)
    assert not (photos / "out").exists()


def published(path):
    state = {
        "body": {"mod7.block1.convs.conv3.weight": torch.zeros(1)},
        "head": {"red_conv.weight": torch.zeros(1)},
        "cls": {"weight": torch.zeros(65, 256, 1, 1), "bias": torch.zeros(65)},
    }
    torch.save({"state_dict": state}, path)
    return path


def test_published_file(tmp_path):
    model = open_model(published(tmp_path / "wide_resnet38_deeplab_vistas.pth.tar"))
    assert model.config.kind == "semantic"
    assert model.config.body.body == "wider_resnet38_a2"
    assert model.config.dataloader.longest_size == 2048
    assert model.metadata == published_classes()
    assert model.metadata.categories[13] == "construction--flat--road"
    assert model.metadata.palette[:3] == [(165, 42, 42), (0, 192, 0), (196, 196, 196)]
    write_metadata(tmp_path / "metadata.bin", CLASSES)
    with pytest.raises(InputError, match="trained on 65 classes, the metadata lists 3"):
        open_model(published(tmp_path / "more.pth.tar"), meta=tmp_path)
