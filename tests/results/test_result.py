"""Results: properties, drawing, saving, loading and pickling; names of classes; labels of other libraries."""

import importlib
import json
import os
import pickle
import sys
from dataclasses import replace
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask
from support.onnx_scenes import CLASSES

from seamseg.maps.evaluation.evaluate_files import evaluate_panoptic_json
from seamseg.maps.formats.id_png import read_id_png
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.panoptic_map import VOID, PanopticResult, Segment
from seamseg.maps.predictions import Prediction
from seamseg.results import Detections, Panoptic, SemanticMap
from seamseg.results.base import choose_classes
from seamseg.results.detections import Detection
from seamseg.utils.errors import InputError, SeamsegError

CITY = replace(CLASSES, categories=["road", "sky", "person <b>", "car"])


def bare(height=60, width=80):
    ids = np.zeros((height, width), np.int32)
    ids[30:] = 1
    ids[10:40, 20:40] = 2
    ids[:5, :30] = 4
    segments = [
        Segment(1, 0, False, None, int((ids == 1).sum()), (30, 0, 60, 80)),
        Segment(2, 3, True, 0.875, 600, (10, 20, 40, 40)),
        Segment(4, 2, True, None, 150, (0, 0, 5, 30), iscrowd=True),
    ]
    return PanopticResult(ids, segments)


@pytest.fixture
def result():
    return Panoptic.of_map(bare(), CITY, Image.new("RGB", (80, 60), (200, 100, 50)))


def empty(height=4, width=5, photo=None):
    return Panoptic.of_map(PanopticResult(np.zeros((height, width), np.int32), []), CITY, photo)


def test_properties(result):
    assert [(s.name, s.category) for s in result.segments] == [("road", 0), ("car", 3), ("person <b>", 2)]
    assert result.size == (60, 80)
    classes = result.classes
    assert classes.dtype == np.uint8
    assert [classes[50, 5], classes[20, 30], classes[2, 2], classes[20, 60]] == [0, 3, 2, VOID]
    assert (classes == 3).sum() == 600
    assert result.mask(2).sum() == result.mask(result.segments[1]).sum() == result.mask("car").sum() == 600
    with pytest.raises(InputError, match="no segment has the id 999"):
        result.mask(999)
    assert result.counts() == {"road": 1, "car": 1}
    assert result.shares() == [("road", 0, False, 11 / 24), ("car", 3, True, 0.125), ("person <b>", 2, False, 1 / 32)]
    assert repr(result) == "Panoptic(80 x 60: 1 car, road, person <b> (crowd))"
    assert repr(replace(result, segments=result.segments[::-1])) == repr(result), "by area"
    assert repr(empty()) == "Panoptic(5 x 4: no segments)"
    assert (empty().classes == VOID).all()
    numbers = result.index_map((60, 80))
    assert [numbers[50, 5], numbers[20, 30], numbers[2, 2], numbers[20, 60]] == [1, 2, 0, 0]
    for entry, number in zip(result.to_json(masks=True)["segments"], (1, 2), strict=True):
        assert np.array_equal(mask.decode(entry["segmentation"]).astype(bool), numbers == number)


def test_of_the_output_of_a_network():
    nothing = np.zeros(0, np.float32)
    classes = np.zeros((60, 80), np.uint8)
    found = Prediction(nothing.reshape(0, 4), nothing.astype(np.int64), nothing, None, classes, (60, 80))
    (road,) = Panoptic.of(found, (30, 40), CITY).to_json(masks=True)["segments"]
    assert (road["class"], road["area"], mask.decode(road["segmentation"]).sum()) == ("road", 1200, 1200)
    assert Panoptic.of(found, (30, 40), CITY, classes=[1]).segments == []


def test_equality_and_only(result):
    assert result == Panoptic.of_map(bare(), CITY)
    assert empty() != result != "result"
    assert replace(result, segments=result.segments[:1]) != result, "of the same ids"
    kept = result.only("car")
    assert [s.name for s in kept.segments] == ["car"]
    assert set(np.unique(kept.id_map)) == {0, 2}
    assert len(result.segments) == 3, "the result itself has changed"
    assert result.only(["road"]).only("car").segments == []
    with pytest.raises(InputError, match="did you mean car"):
        result.only("cat")
    with pytest.raises(TypeError, match="unhashable type: 'Panoptic'"):
        hash(result)
    pickled = pickle.loads(pickle.dumps(result))
    assert pickled == result
    assert pickled.metadata == CITY
    assert np.array_equal(pickled.image, result.image)


def test_draw(result):
    picture = np.asarray(result.draw(labels=False))
    assert picture.shape == (60, 80, 3)
    assert tuple(picture[55, 70]) == ((200 + 128) // 2, (100 + 64) // 2, (50 + 128) // 2)
    assert not np.array_equal(np.asarray(result.draw(labels=False, outlined=False)), picture)
    assert np.array_equal(np.asarray(result.draw(opacity=0, labels=False, outlined=False)), result.image)
    colours = np.asarray(result.draw(opacity=1, labels=False, outlined=False))
    assert tuple(colours[20, 30]) == (0, 0, 142)
    mixed = np.asarray(result.draw(opacity=0.25, labels=False, outlined=False))[20, 30]
    assert np.abs(mixed - np.array([150, 75, 73])).max() <= 1
    alone = Panoptic.of_map(bare(), CITY).draw(labels=False, outlined=False)
    shown = result.classes != 2  # crowds are drawn as void
    assert np.array_equal(np.asarray(alone)[shown], colours[shown])
    assert result.draw(Image.new("L", (160, 120))).size == (160, 120)
    assert tuple(np.asarray(result.draw(classes="car", labels=False))[55, 70]) == (100, 50, 25)
    assert not np.array_equal(np.asarray(result.draw()), picture), "labels are not drawn"
    with pytest.raises(InputError, match="opacity"):
        result.draw(opacity=1.5)
    for wrong in (np.zeros((4, 4)), np.zeros((4, 4, 3, 3), np.uint8)):
        with pytest.raises(InputError, match="H x W x 3 uint8"):
            result.draw(wrong)


def test_notebook(result, tmp_path):
    page = result._repr_html_()
    assert "data:image/jpeg;base64," in page
    assert "car &times; 1" in page
    assert "person &lt;b&gt;" in page
    assert "<b>" not in page
    assert "12.5 %" in page
    gone = Panoptic.of_map(bare(), CITY, tmp_path / "gone.jpg")
    assert "<img" in gone._repr_html_(), "an image that has moved must not break a notebook"
    with pytest.raises(InputError, match=r"gone\.jpg"):
        gone.draw()
    Image.new("RGB", (10, 10)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="now 10 x 10 pixels, the result is of 80 x 60"):
        Panoptic.of_map(bare(), CITY, tmp_path / "a.png").draw()


def test_to_coco(result):
    annotation, picture = result.to_coco(17)
    assert annotation["image_id"] == 17
    assert annotation["file_name"] == "17.png"
    rgb = np.asarray(picture).astype(int)
    ids = rgb[..., 0] + 256 * rgb[..., 1] + 65536 * rgb[..., 2]
    assert [(s["category_id"], s["area"], s["bbox"]) for s in annotation["segments_info"]] == [
        (7, (result.id_map == 1).sum(), [0, 30, 80, 30]),
        (26, 600, [20, 10, 20, 30]),
    ]
    for info, own in zip(annotation["segments_info"], (1, 2)):
        assert np.array_equal(ids == info["id"], result.id_map == own)
    assert (ids[result.id_map == 4] == 0).all()
    json.dumps(annotation)
    assert empty().to_coco()[0] == {"image_id": 0, "file_name": "0.png", "segments_info": []}


@pytest.mark.parametrize(("ending", "kind"), [("JPEG", "JPEG"), ("png", "PNG"), ("webp", "WEBP")])
def test_save_pictures(result, tmp_path, ending, kind):
    path = result.save(tmp_path / "new" / f"x.{ending}", opacity=0.2)
    with Image.open(path) as picture:
        assert picture.format == kind
        assert picture.size == (80, 60)
    buffer = BytesIO()
    result.draw(opacity=0.2).save(buffer, kind, **({} if kind == "PNG" else {"quality": 92}))
    assert path.read_bytes() == buffer.getvalue()
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    saved = result.save(tmp_path / "street.json")
    assert set(np.unique(read_id_png(tmp_path / "street" / "street.png"))) > {0}
    assert evaluate_panoptic_json(saved, saved).PQ == 1


def test_errors_of_save(result, tmp_path):
    with pytest.raises(InputError, match=r"saved as \.jpg, .*\.json"):
        result.save(tmp_path / "x.gif")
    with pytest.raises(InputError, match="options for overlays only"):
        result.save(tmp_path / "x.json", opacity=0.3)
    (tmp_path / "file").write_text("")
    for ending in ("png", "json"):
        with pytest.raises(SeamsegError, match="cannot be written"):
            result.save(tmp_path / "file" / f"x.{ending}")


def test_anonymize(result):
    rng = np.random.default_rng(0)
    noisy = Panoptic.of_map(bare(), CITY, Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)))
    out = np.asarray(noisy.anonymize("person <b>,car", "pixels"))
    changed = (out != noisy.image).any(-1)
    assert changed[noisy.mask(2)].mean() > 0.99
    assert changed[noisy.mask(4)].mean() > 0.99
    assert not changed[50:, 60:].any()
    with pytest.raises(InputError, match="keep_image"):
        Panoptic.of_map(bare(), CITY).anonymize("car")
    with pytest.raises(InputError, match="blur or pixels"):
        result.anonymize("car", "black")
    with pytest.raises(InputError, match="between 0 and 1"):
        result.anonymize("car", least_score=2)


def test_supervision(result, monkeypatch):
    supervision = pytest.importorskip("supervision")
    found = result.to_supervision()
    assert isinstance(found, supervision.Detections)
    values = found.xyxy.tolist(), found.confidence.tolist(), found.class_id.tolist()
    assert values == ([[20, 10, 40, 40]], [0.875], [3])
    assert np.array_equal(found.mask[0], result.mask(2))
    both = result.to_supervision(stuff=True)
    assert (both.data["class_name"].tolist(), both.confidence.tolist()) == (["road", "car"], [1, 0.875])
    assert both.xyxy.tolist() == [[0, 30, 80, 60], [20, 10, 40, 40]]
    assert len(empty().to_supervision()) == 0
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(SeamsegError, match=r"needs supervision .*: pip install 'seamseg\[supervision\]'"):
        result.to_supervision()


# --- Labels of FiftyOne: the package takes half a gigabyte and brings a database, so a stand-in with the documented
# arguments of its labels is used; with SEAMSEG_REAL_FIFTYONE=1, and the package installed, the package itself


def detection_of(*, label, bounding_box, confidence, mask):
    assert isinstance(label, str)
    assert [type(v) for v in bounding_box] == [float] * 4
    assert confidence is None or type(confidence) is float
    assert mask is None or (mask.ndim == 2 and mask.dtype == bool)
    return SimpleNamespace(label=label, bounding_box=bounding_box, confidence=confidence, mask=mask)


STAND_IN = SimpleNamespace(
    Detection=detection_of, Detections=lambda *, detections: SimpleNamespace(detections=detections),
    Segmentation=lambda *, mask: SimpleNamespace(mask=mask),
)  # fmt: skip


@pytest.fixture
def library(monkeypatch):
    if os.environ.get("SEAMSEG_REAL_FIFTYONE"):
        importlib.import_module("fiftyone")
    else:
        monkeypatch.setitem(sys.modules, "fiftyone", STAND_IN)


@pytest.mark.usefixtures("library")
def test_a_panoptic_map_in_fiftyone():
    ids = np.zeros((40, 80), np.int32)
    ids[20:] = 1
    ids[10:30, 20:40] = 2
    ids[12, 20] = 0
    ids[:5, :30] = 4
    kinds = [(1, 0, None, False), (2, 3, 0.875, False), (4, 2, None, True), (9, 3, 0.5, False)]
    segments = [Segment(i, c, c > 1, score, int((ids == i).sum()), (0, 0, 1, 1), crowd) for i, c, score, crowd in kinds]
    result = Panoptic.of_map(PanopticResult(ids, segments), CLASSES)
    labels = result.to_fiftyone()
    assert list(labels) == ["segmentation", "detections"]
    assert labels["segmentation"].mask.dtype == np.uint8
    np.testing.assert_array_equal(labels["segmentation"].mask, np.select([ids == k for k in (1, 2, 4)], [1, 4, 3]))
    # neither crowds nor things without a pixel
    (car,) = labels["detections"].detections
    assert (car.label, car.confidence) == ("car", 0.875)
    assert car.bounding_box == [20 / 80, 10 / 40, 20 / 80, 20 / 40]
    np.testing.assert_array_equal(car.mask, ids[10:30, 20:40] == 2)


def test_class_maps_in_fiftyone(library, monkeypatch):
    found = SemanticMap(np.array([[0, 3, VOID]], np.uint8), metadata=CLASSES)
    assert found.to_fiftyone()["segmentation"].mask.tolist() == [[1, 4, 0]]
    monkeypatch.setitem(sys.modules, "fiftyone", None)
    with pytest.raises(SeamsegError, match=r"to_fiftyone\(\) needs fiftyone .*: pip install fiftyone"):
        found.to_fiftyone()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("masks", [True, False])
def test_detections_in_fiftyone(masks):
    crop = np.zeros((6, 8), bool)
    crop[1:5, 2:8] = True
    crop[1, 2] = False
    objects = [
        Detection("car", 3, 0.75, (9.5, 19.25, 16.0, 28.0), (40, 80), crop if masks else None, (10, 20)),
        Detection("person", 2, 0.5, (0.0, 0.0, 4.0, 8.0), (40, 80), np.zeros((2, 2), bool) if masks else None),
    ]
    (label,) = Detections(objects, (40, 80), masks, metadata=CLASSES).to_fiftyone().values()
    car, person = label.detections
    assert [(d.label, d.confidence) for d in (car, person)] == [("car", 0.75), ("person", 0.5)]
    assert person.mask is None
    assert person.bounding_box == [0.0, 0.0, 0.1, 0.1]
    whole = [19.25 / 80, 9.5 / 40, 8.75 / 80, 6.5 / 40]
    assert car.bounding_box == ([22 / 80, 11 / 40, 6 / 80, 4 / 40] if masks else whole)
    np.testing.assert_array_equal(car.mask, crop[1:5, 2:8] if masks else None)


# --- Classes by name: spelling, parts of Vistas' names, suggestions


def classes_of(*names):
    return Metadata(0, len(names), list(names), [(0, 0, 0)] * len(names), list(range(len(names))))


STREET = classes_of("road", "traffic light", "person", "rider", "car")
VISTAS = classes_of("human--person", "human--rider--bicyclist", "human--rider--motorcyclist", "object--vehicle--car")


@pytest.mark.parametrize(
    ("names", "classes", "expected"),
    [
        (["Car", "traffic_light", "car"], STREET, [1, 4]),
        (" traffic-light ,", STREET, [1]),
        ("person", VISTAS, [0]),
        ("rider,car", VISTAS, [1, 2, 3]),
        ("human", VISTAS, [0, 1, 2]),
        ("object--vehicle--car", VISTAS, [3]),
    ],
)
def test_names(names, classes, expected):
    assert choose_classes(names, classes) == expected


@pytest.mark.parametrize(
    ("names", "classes", "message"),
    [
        ("persn", STREET, "no class 'persn'; did you mean person"),
        ("bicylist", VISTAS, "did you mean bicyclist"),
        ("Bicylist", VISTAS, "did you mean bicyclist"),
        ("cra", STREET, "did you mean car? its classes are road, traffic light, person, rider, car"),
        ("x", classes_of(*(f"c{k}" for k in range(46))), "c18, c19 and 26 more"),
        ("human--car", VISTAS, "no class 'human--car'"),
        ("", STREET, "no class is given"),
    ],
)
def test_unknown_names(names, classes, message):
    with pytest.raises(InputError, match=r"^`hide`: ") as raised:
        choose_classes(names, classes, "hide")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
