"""COCO panoptic files with unusual values: one-line errors, or the same scores."""

from __future__ import annotations

import copy
import json
import time

import numpy as np
import pytest

from seamseg.evaluation import evaluate_panoptic_json
from seamseg.evaluation.record import read_evaluation
from seamseg.formats.id_png import write_id_png
from seamseg.utils.errors import InputError

MINUTE = 60
CONTENT = {
    "images": [{"id": 1, "file_name": "a.jpg"}],
    "annotations": [
        {
            "image_id": 1,
            "file_name": "a.png",
            "segments_info": [
                {"id": 5, "category_id": 1, "iscrowd": 0, "area": 12},
                {"id": 7, "category_id": 2, "iscrowd": 0, "area": 6, "score": 0.5},
            ],
        }
    ],
    "categories": [{"id": 1, "name": "road", "isthing": 0}, {"id": 2, "name": "car", "isthing": 1}],
}


@pytest.fixture
def content():
    return copy.deepcopy(CONTENT)


@pytest.fixture
def score(tmp_path):
    """Scores a ground truth and a prediction of the same map."""
    ids = np.zeros((4, 6), np.uint32)
    ids[:, :3], ids[:2, 3:] = 5, 7

    def run(gt, pred=CONTENT, **options):
        for name, side in (("gt", gt), ("pred", pred)):
            (tmp_path / f"{name}.json").write_text(json.dumps(side))
            write_id_png(tmp_path / name / "a.png", ids)
        return evaluate_panoptic_json(tmp_path / "gt.json", tmp_path / "pred.json", **options)

    return run


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("id", float("inf"), "invalid segment"),
        ("category_id", 1.9, "'1.9' is not a whole number"),
        ("category_id", "1", "'1' is not a whole number"),
        ("area", 10**400, "invalid segment"),
        ("area", 1e-12, "segment 7 has an annotated area of 1e-12, but more pixels in its map"),
    ],
)
def test_invalid_segments(score, content, key, value, words):
    content["annotations"][0]["segments_info"][1][key] = value
    with pytest.raises(InputError, match=words):
        score(content)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("categories", [{"id": float("inf"), "name": "road", "isthing": 0}], "every category needs"),
        ("categories", [{"id": 1, "name": "road", "isthing": "0"}], "every category needs"),
        ("categories", [{"id": 1, "name": "road", "isthing": 2}], "every category needs"),
        ("images", 5, "`images` is not a list"),
    ],
)
def test_invalid_parts(score, content, part, value, words):
    content[part] = value
    with pytest.raises(InputError, match=words):
        score(content)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["segments_info", "categories", "images", "annotations"])
def test_ids_of_equal_hash_are_refused_in_time(score, content, what):
    """A table of them takes time that grows with the square of their number: half an hour for a file of some MB."""
    owner = content["annotations"][0] if what == "segments_info" else content
    key = "image_id" if what == "annotations" else "id"
    owner[what] = [{**owner[what][0], key: (2**61 - 1) * i} for i in range(1, 200_000)]
    before = time.process_time()
    with pytest.raises(InputError, match=r"2\.305843009213694e\+18. is not a whole number"):
        score(content)
    assert time.process_time() - before < MINUTE


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite(score, content, tmp_path, value):
    content["annotations"][0]["segments_info"][1]["score"] = value
    assert score(CONTENT, content, out=tmp_path / "out").PQ == 1
    (image,) = read_evaluation(tmp_path / "out").images()
    assert [s.score for s in image.prediction] == [None, None]


@pytest.mark.parametrize("name", ["", "."])
def test_photos_without_a_name(score, content, name):
    content["images"][0]["file_name"] = name
    assert score(content).PQ == 1
    other = copy.deepcopy(CONTENT)
    other["annotations"][0]["image_id"] = "other"
    with pytest.raises(InputError, match="no prediction for image 1"):
        score(content, other)


def test_predictions_that_are_named_by_photos_are_not_missing(score, content):
    for name in ("b", "c"):
        content["images"].append({"id": name, "file_name": f"{name}.jpg"})
        content["annotations"].append({**content["annotations"][0], "image_id": name})
    named = copy.deepcopy(CONTENT)
    named["annotations"][0]["image_id"] = "city/a_leftImg8bit"
    with pytest.raises(InputError, match=r"no prediction for image b of gt\.json \(and 1 more\); the first"):
        score(content, named)


def test_legacy_metrics_have_no_evaluation_folder(score, tmp_path):
    with pytest.raises(InputError, match="not supported with legacy"):
        score(CONTENT, legacy=True, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
