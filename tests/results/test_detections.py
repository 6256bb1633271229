"""The result of detection and instance segmentation: objects, overlays, files, other libraries."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import Prediction
from seamseg.results import Detections, Thresholds
from seamseg.results.detections import Detection, choose_detections, ranked_by_masks
from seamseg.utils.errors import InputError

CLASSES = Metadata(
    1, 3, ["road", "car", "human--person", "bus"], [(9, 9, 9), (250, 0, 0), (0, 250, 0), (0, 0, 250)], [7, 26, 24, 28]
)
SIZE = (60, 90)


def prediction(masks=True):
    """Three objects on 40 x 60 pixels: two cars, one of them at the border, and a bus."""
    logits = torch.full((3, 28, 28), 4.0)
    logits[1, :, 14:] = -4.0
    return Prediction(
        torch.tensor([[10.0, 10, 20, 30], [25.0, 40, 40, 60], [0.0, 0, 30, 20]]),
        torch.tensor([0, 0, 2]),
        torch.tensor([0.9, 0.6, 0.3]),
        logits if masks else None,
        None,
        (40, 60),
    )


def nothing(masks=True):
    whole = prediction(masks)
    return replace(choose_detections(whole, 1, 1.0), size=whole.size)


@pytest.fixture
def result():
    return Detections.of(prediction(), SIZE, CLASSES)


def test_objects(result):
    assert [d.name for d in result] == result.names == ["car", "car", "bus"]
    assert [d.category for d in result] == result.classes.tolist() == [1, 1, 3]
    assert result.scores.tolist() == pytest.approx([0.9, 0.6, 0.3])
    assert result.boxes.tolist() == [[15, 15, 30, 45], [37.5, 60, 60, 90], [0, 0, 45, 30]]
    assert result.size == (60, 90)
    assert len(result) == 3
    assert result[0].box == (15.0, 15.0, 30.0, 45.0)
    assert result[1:].names == ["car", "bus"]
    assert result.counts() == {"car": 2, "bus": 1}
    assert repr(result) == "Detections(90 x 60: 2 car, 1 bus)"
    # the right half of the second mask is not on the object
    assert result[1].mask[40:58, 61:74].all()
    assert not result[1].mask[:, 76:].any()
    assert "car &times; 2" in result._repr_html_()
    assert Detection("car", 1, 0.5, (0.0, 0.0, 2.0, 4.0), (10, 10)).area == 8
    bare = Detections.of(prediction(masks=False), SIZE, CLASSES)
    assert bare.masks is None
    assert bare[0].mask is None
    assert bare[0].area == 15 * 30
    assert bare.shares() == [("car", 1, True, 450 / 5400), ("car", 1, True, 675 / 5400), ("bus", 3, True, 1350 / 5400)]
    for found in (result, bare):
        numbers = found.index_map(SIZE)
        # the first car before the bus, for its score or its smaller box
        assert numbers[[20, 20, 2, 50, 59], [35, 25, 2, 65, 0]].tolist() == [1, 1, 3, 2, 0]
        assert found.to_json(masks=True)["segments"] == [entry for _, entry in found.entries()]
    outside = replace(bare, detections=[replace(bare[0], box=(-1.0, -2.0, 30.0, 45.0))])
    assert outside.index_map(SIZE).sum() == 30 * 45
    assert all("segmentation" not in entry for entry in bare.to_coco())
    ids = np.kron([[1, 0, 2], [3, 1, 2]], np.ones((20, 20), np.int32))
    own = Detections.of(replace(prediction(masks=False), maps={"ids": torch.from_numpy(ids)}), (40, 60), CLASSES)
    assert np.array_equal([d.mask for d in own], [ids == number for number in (1, 2, 3)])


def test_supervision(result):
    supervision = pytest.importorskip("supervision")
    found = result.to_supervision()
    assert isinstance(found, supervision.Detections)
    assert found.xyxy[0].tolist() == [15, 15, 45, 30]
    assert np.array_equal(found.mask, result.masks)
    assert found.data["class_name"].tolist() == result.names
    assert len(Detections.of(nothing(), SIZE, CLASSES).to_supervision()) == 0
    assert Detections.of(prediction(masks=False), SIZE, CLASSES).to_supervision().mask is None


def test_only_some_classes_and_equality(result):
    assert result.only("car").names == ["car", "car"]
    assert result.only(["BUS", "person"]).names == ["bus"]
    with pytest.raises(InputError, match="no class 'tram'"):
        result.only("tram")
    assert Detections.of(prediction(), SIZE, CLASSES, Thresholds(0.5), [1, 2]) == result[:2]
    assert Detections.of(prediction(), SIZE, CLASSES, Thresholds(0.6)).names == ["car"], "above the threshold"
    assert Detections.of(prediction(), SIZE, CLASSES, classes=[3]).names == ["bus"]
    assert choose_detections(prediction(), 3, classes=[5]).classes.tolist() == [2]
    assert result == Detections.of(prediction(), SIZE, CLASSES)
    for other in (Detections.of(prediction(), (61, 90), CLASSES), Detections.of(prediction(False), SIZE, CLASSES)):
        assert result != other
    for other in (result[1], replace(result[0], crop=~result[0].crop), replace(result[0], score=0.5), "car"):
        assert result[0] != other


def test_the_ranking_of_queries():
    ranked = ranked_by_masks(
        replace(prediction().on_cpu(), mask_logits=np.array([[[4, -4]], [[0, 4]], [[-1, -1]]], np.float32))
    )
    sure = 1 / (1 + np.exp(-4))
    assert ranked.scores.dtype == np.float32
    assert ranked.scores.tolist() == pytest.approx([0.9 * sure, 0.6 * (0.5 + sure) / 2, 0])


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools
def test_coco_results_are_read_by_pycocotools(result, tmp_path):
    truth = COCO()
    entries = result.to_coco("a")
    truth.dataset = {
        "images": [{"id": "a", "height": 60, "width": 90}],
        "annotations": [
            {**e, "id": k, "iscrowd": 0, "area": coco_masks.area(e["segmentation"])} for k, e in enumerate(entries, 1)
        ],
        "categories": [{"id": 1, "name": "car"}, {"id": 3, "name": "bus"}],
    }
    truth.createIndex()
    found = truth.loadRes(str(result.save(tmp_path / "a.json")))
    evaluation = COCOeval(truth, found, "segm")
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    assert evaluation.stats[0] == 1.0
    for entry, d in zip(entries, result):
        assert np.array_equal(coco_masks.decode(entry["segmentation"]).astype(bool), d.mask)
        assert entry["bbox"] == [d.box[1], d.box[0], d.box[3] - d.box[1], d.box[2] - d.box[0]]


def test_overlay(result):
    black = np.zeros((*SIZE, 3), np.uint8)
    plain = np.asarray(result.draw(black, labels=False))
    # in the mask of the first car, its outlines, the lower edge, which is exclusive
    assert plain[[20, 15, 29, 30], 35].tolist() == [[125, 0, 0], [250, 0, 0], [250, 0, 0], [0, 0, 0]]
    assert plain[50, 88].tolist() == [0, 0, 0], "in the box of the second, not in its mask"
    assert plain[20, 25].tolist() == [125, 0, 62], "the object of higher score is on top"
    labelled = np.asarray(result.draw(black))
    assert (labelled != plain).any()
    assert np.array_equal(np.asarray(result.draw()), labelled), "a black image without an image"
    only = np.asarray(result.draw(black, classes="bus", labels=False))
    assert not only[..., 0].any()
    assert np.asarray(result.draw(black, labels=False, opacity=0))[20, 35].tolist() == [0, 0, 0]
    # an image of another size
    large = np.asarray(result.draw(np.zeros((120, 180, 3), np.uint8), labels=False))
    assert (large[40, 70].tolist(), large[30, 70].tolist()) == ([125, 0, 0], [250, 0, 0])
    assert result.draw(Image.new("RGB", (3, 2))).size == (3, 2)


def test_the_photo_is_kept_and_anonymised(result):
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8))
    kept = result.with_image(photo, prediction())
    assert np.array_equal(kept.image, np.asarray(photo))
    hidden = np.asarray(kept.anonymize("bus")).astype(int)
    changed = np.abs(hidden - np.asarray(photo)).sum(2) > 0
    assert changed[:44, :29].mean() > 0.9
    assert not changed[50:, 50:].any()
    boxes = np.asarray(kept.with_image(photo, prediction(masks=False)).anonymize("car"))
    assert (np.asarray(photo)[40:58, 80:88] != boxes[40:58, 80:88]).any(), "without masks the whole box"
    with pytest.raises(InputError, match="no image to anonymise"):
        result.anonymize("bus")
