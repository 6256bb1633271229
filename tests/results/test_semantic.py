"""Class maps as results: sizes, probabilities, views, tiles, drawings, files."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask
from support.small_models import SEMANTIC_CLASSES as CLASSES
from torch.nn import functional

from seamseg.inference.images import network_input
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.predictions import Prediction
from seamseg.ops.upsample import upsample_fusion
from seamseg.results import SemanticMap
from seamseg.structures import PackedSequence
from seamseg.utils.errors import InputError

RNG = np.random.default_rng(0)
PHOTO = Image.fromarray(RNG.integers(0, 255, (9, 13, 3), np.uint8).repeat(10, 0).repeat(10, 1))


def prediction(probability=True):
    classes = torch.tensor([[0, 0, 1], [2, 2, 1]], dtype=torch.uint8)
    surest = torch.tensor([[255, 128, 64], [32, 16, 8]], dtype=torch.uint8)
    nothing, maps = torch.zeros(0), {"probability": surest} if probability else {}
    return Prediction(nothing.view(0, 4), nothing.long(), nothing, None, classes, (2, 3), maps=maps)


@pytest.fixture
def result():
    return SemanticMap.of(prediction(), (4, 6), CLASSES)


def test_properties(result):
    assert result.classes.tolist() == np.kron([[0, 0, 1], [2, 2, 1]], np.ones((2, 2), int)).tolist()
    assert result.probability[0].tolist() == [255, 255, 128, 128, 64, 64]
    assert result.size == (4, 6)
    assert result.mask("road").sum() == 8
    assert result.counts() == {"sky": 1, "road": 1, "human--person": 1}
    assert np.unique(result.only("person").classes).tolist() == [2, VOID]
    chosen = SemanticMap.of(prediction(), (4, 6), CLASSES, classes=[1])
    assert np.unique(chosen.classes).tolist() == [1, VOID]
    assert repr(result) == "SemanticMap(6 x 4: sky, road, human--person)"
    assert repr(SemanticMap(np.array([[0, 1, 1]], np.uint8), metadata=CLASSES)) == "SemanticMap(3 x 1: road, sky)"
    assert result.shares() == [("sky", 0, False, 1 / 3), ("road", 1, False, 1 / 3), ("human--person", 2, False, 1 / 3)]
    assert [(c, e["category_id"], e["class"], e["score"], e["bbox"], e["area"]) for c, e in result.entries()] == [
        (0, 0, "sky", None, [0, 0, 4, 2], 8),
        (1, 1, "road", None, [4, 0, 2, 4], 8),
        (2, 2, "human--person", None, [0, 2, 4, 2], 8),
    ]
    assert {(e["image_id"], e["score"]) for e in result.to_coco()} == {(0, 1.0)}
    assert result.index_map((2, 3)).tolist() == [[1, 1, 2], [3, 3, 2]]
    many = replace(CLASSES, categories=[str(k) for k in range(VOID)])
    last = SemanticMap(np.array([[254, 254]], np.uint8), metadata=many).entries()
    assert [(e["class"], e["area"]) for _, e in last] == [("254", 2)]
    entries = result.to_coco("a")
    assert [e["category_id"] for e in entries] == [0, 1, 2]
    assert np.array_equal(mask.decode(entries[1]["segmentation"]).astype(bool), result.mask("road"))
    colours = np.asarray(result.draw())
    assert colours[0, 0].tolist() == [70, 130, 180]
    assert colours[3, 0].tolist() == [220, 20, 60]
    photo = np.full((4, 6, 3), 100, np.uint8)
    assert np.abs(np.asarray(result.draw(photo, classes="sky"))[0, 0].astype(int) - [85, 115, 140]).max() <= 1


def test_files(result, tmp_path):
    assert SemanticMap.of(prediction(False), (4, 6), CLASSES) != result == SemanticMap.of(prediction(), (4, 6), CLASSES)
    assert SemanticMap.__hash__ is None
    assert Image.open(result.save(tmp_path / "r.png")).size == (6, 4)
    result.save(tmp_path / "r.json")


def test_sizes_and_options(semantic_predictor):
    for size, expected in ((50, (34, 50)), (200, (138, 200))):
        assert network_input(PHOTO, semantic_predictor(size=size).input_size).shape[:2] == expected, "int(side * scale)"
    for options, words in (
        ({"size": 64, "shortest_size": 64}, "`size` and `shortest_size` are mutually exclusive"),
        ({"size": 0}, "`size` must be positive, not 0"),
        ({"tta": "flip", "tta_fusion": "median"}, "`tta_fusion=median`: choose one of mean, max, voting"),
        ({"score_threshold": 0.5}, "`score_threshold` has no effect: the model is of kind semantic"),
    ):
        with pytest.raises(InputError, match=words):
            semantic_predictor(**options)


@pytest.mark.parametrize("fusion", ["mean", "max", "voting"])
def test_views(semantic_predictor, fusion):
    model = semantic_predictor(tta="flip,0.5,1", tta_fusion=fusion, probabilities=True)
    pixels = network_input(PHOTO, model.input_size)
    (found,) = model.raw([pixels])
    image = model.network.prepare(pixels)
    views = []
    with torch.inference_mode():
        for scale in (0.5, 1):
            size = (round(64 * scale), round(92 * scale))
            view = functional.interpolate(image[None], size, mode="bilinear", align_corners=False)[0]
            for mirrored in (False, True):
                logits = model.network.net(PackedSequence([view.flip(-1) if mirrored else view])).logits[0]
                views.append(logits.flip(-1) if mirrored else logits)
    classes, scores = upsample_fusion(views, (64, 92), fusion)
    assert (found.semantic == classes.numpy()).mean() > 0.999
    assert (abs(found.maps["probability"].astype(int) - (scores * 255).int().numpy()) <= 1).all()


def test_tiles(semantic_predictor):
    photo = PHOTO.resize((400, 300))
    model = semantic_predictor(probabilities=True, shortest_size=300)
    whole = model.raw([network_input(photo, model.input_size)])[0]
    result = model.predict(photo, tiles=192)
    assert isinstance(result, SemanticMap)
    tiled = result.prediction
    assert tiled.semantic.shape == tiled.maps["probability"].shape == tiled.size == result.size == (300, 400)
    assert tiled.semantic.dtype == tiled.maps["probability"].dtype == np.uint8
    assert semantic_predictor().predict(PHOTO).probability is None
    # the global branch and the borders of the tiles differ
    assert (whole.semantic == tiled.semantic).mean() > 0.7
