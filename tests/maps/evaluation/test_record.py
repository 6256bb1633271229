"""The evaluation folder: outcomes of segments, written, read, and rejected if broken."""

import json

import numpy as np
import pytest

from seamseg.cli.main import main
from seamseg.maps.evaluation import ClassInfo, evaluate_panoptic_json
from seamseg.maps.evaluation.record import IMAGES, SUMMARY, SegmentRecord, read_evaluation
from seamseg.maps.formats.id_png import write_id_png
from seamseg.utils.errors import InputError

CATEGORIES = [{"id": 7, "name": "road", "isthing": 0, "color": [128, 64, 128]}, {"id": 26, "name": "car", "isthing": 1}]


def make(folder, name, maps, categories, scores=()):
    annotations = []
    for image_id, ids, segments in maps:
        ids = np.array(ids)
        write_id_png(folder / name / f"{image_id}.png", ids)
        entries = [
            {"id": i, "category_id": c, "iscrowd": crowd, "area": int((ids == i).sum())} for i, c, crowd in segments
        ]
        for entry, score in zip(entries, scores):
            entry["score"] = score
        annotations.append({"image_id": image_id, "file_name": f"{image_id}.png", "segments_info": entries})
    images = [{"id": image_id, "file_name": f"{image_id}.jpg"} for image_id, _, _ in maps]
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


@pytest.fixture
def files(tmp_path):
    gt = [
        ("a", [[1, 1, 1, 2], [1, 1, 1, 2], [3, 3, 0, 0]], [(1, 7, 0), (2, 26, 0), (3, 26, 1)]),
        ("b", [[5, 5, 5, 5]], [(5, 7, 0)]),
    ]
    pred = [
        ("a", [[9, 9, 9, 8], [9, 9, 8, 8], [8, 6, 6, 4]], [(9, 7, 0), (8, 26, 0), (6, 26, 0), (4, 7, 0)]),
        ("b", [[0, 0, 0, 0]], []),
    ]
    return make(tmp_path, "gt", gt, CATEGORIES), make(tmp_path, "pred", pred, CATEGORIES, [None, 0.75, 0.5, None])


def change(path, function):
    content = json.loads(path.read_text())
    function(content)
    path.write_text(json.dumps(content))


def test_every_outcome(files, tmp_path):
    out = tmp_path / "evaluation"
    scores = evaluate_panoptic_json(*files, workers=2, out=out, photos=tmp_path / "photos")
    found = read_evaluation(out)
    assert found.title == "pred.json against gt.json"
    assert found.scores == scores.to_json() == evaluate_panoptic_json(*files).to_json()
    assert found.classes == [ClassInfo("road", 7, False), ClassInfo("car", 26, True)]
    assert found.colours == [(128, 64, 128), None]
    assert (found.ground_truth.json, found.ground_truth.folder) == (files[0], tmp_path / "gt")
    assert (found.prediction.json, found.prediction.folder) == (files[1], tmp_path / "pred")
    assert found.photos == tmp_path / "photos"
    # void of the ground truth does not count; the road of image b is predicted void
    assert found.confusion.tolist() == [[5, 1, 4], [0, 4, 0]]
    first, second = found.images()
    assert (first.image_id, first.photo, first.width, first.height) == ("a", "a.jpg", 4, 3)
    assert (first.ground_truth_png, first.prediction_png) == ("a.png", "a.png")
    assert first.ground_truth == [
        SegmentRecord(1, 0, 6, "matched", 9, 5 / 6),
        SegmentRecord(2, 1, 2, "missed", 8, 0.5),
        SegmentRecord(3, 1, 2, "crowd", None, None, iscrowd=True),
    ]
    assert first.prediction == [
        SegmentRecord(9, 0, 5, "matched", 1, 5 / 6),
        SegmentRecord(8, 1, 4, "false", 2, 0.5, score=0.75),
        SegmentRecord(6, 1, 2, "forgiven", None, None, score=0.5),
        SegmentRecord(4, 0, 1, "forgiven", None, None),
    ]
    assert pytest.approx((5 / 6 + 0) / 2) == first.PQ
    assert first.mIoU == pytest.approx((5 / 6 + 4 / 5) / 2)
    assert (second.PQ, second.SQ, second.RQ, second.mIoU) == (0, 0, 0, 0)
    assert [s.outcome for s in second.ground_truth] == ["missed"]
    assert second.prediction == []


def test_paths_inside_the_folder_are_relative(files, tmp_path):
    evaluate_panoptic_json(*files, out=tmp_path)
    assert json.loads((tmp_path / SUMMARY).read_text())["ground_truth"] == {"json": "gt.json", "folder": "gt"}
    moved = tmp_path.with_name(tmp_path.name + " moved")
    tmp_path.rename(moved)
    found = read_evaluation(moved)
    assert found.ground_truth.json.is_file()
    assert found.photos is None
    moved.rename(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (SUMMARY, None, "evaluation.json: no such file"),
        (SUMMARY, "{", "not an evaluation summary"),
        (SUMMARY, '{"format": "unknown"}', "has the format 'unknown'"),
        (SUMMARY, '{"format": "seamseg evaluation 1"}', "not an evaluation summary"),
        (IMAGES, None, "images.jsonl: no such file"),
        (IMAGES, "{}\n", "line 1: invalid image record"),
    ],
)
def test_broken_folders(files, tmp_path, name, content, words):
    out = tmp_path / "evaluation"
    evaluate_panoptic_json(*files, out=out)
    (out / name).unlink()
    if content is not None:
        (out / name).write_text(content)
    with pytest.raises(InputError, match=words):
        list(read_evaluation(out).images())


def test_a_failed_evaluation_replaces_the_previous_one(files, tmp_path):
    out = tmp_path / "evaluation"
    evaluate_panoptic_json(*files, out=out)
    (tmp_path / "pred" / "b.png").unlink()
    with pytest.raises(InputError, match="no such panoptic PNG"):
        evaluate_panoptic_json(*files, out=out)
    with pytest.raises(InputError, match="was interrupted or failed"):
        read_evaluation(out)


def test_a_warning_for_other_category_names(files):
    change(files[1], lambda content: content["categories"][0].update(name="strada"))
    with pytest.warns(UserWarning, match="category 7 is called 'strada', but 'road' in"):
        evaluate_panoptic_json(*files)


def test_scores_that_are_not_finite(files, tmp_path):
    change(files[1], lambda content: content["annotations"][0]["segments_info"][1].update(score=float("nan")))
    evaluate_panoptic_json(*files, out=tmp_path / "out")
    assert [s.score for s in next(read_evaluation(tmp_path / "out").images()).prediction] == [None, None, 0.5, None]


PROTOCOL = ["--protocol", "cityscapes", "--gt", "GT", "--pred", "PRED"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to score"),
        (["--gt", "GT"], "--gt and --pred must be given together"),
        (["model.zip", "data", "--gt", "GT", "--pred", "PRED"], "are mutually exclusive"),
        (["--gt", "GT", "--pred", "PRED", "--tta", "flip"], "--tta and --gt / --pred are mutually exclusive"),
        ([*PROTOCOL, "--precision", "bf16"], "--precision"),
        ([*PROTOCOL, "model"], "MODEL cannot be used with"),
        ([*PROTOCOL, "--legacy-metrics"], "--legacy-metrics cannot be used with"),
        (["--gt", "x", "--pred", "y", *PROTOCOL[:2]], "x: no such folder"),
        (["model.zip", "data", "--workers", "2"], "--workers"),
        (["--gt", "GT", "--pred", "PRED", "--workers", "0"], "at least 1"),
        (["model.zip", "data", "--photos", "p"], "--photos"),
        (["--gt", "GT", "--pred", "PRED", "--out", "GT"], "must be a folder"),
        (["--gt", "GT", "--pred", "PRED", "--out", "o", "--legacy-metrics"], "are mutually exclusive"),
        (["--gt", "missing.json", "--pred", "PRED"], "missing.json: no such file"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(files, capsys, arguments, words):
    replaced = [{"GT": str(files[0]), "PRED": str(files[1])}.get(a, a) for a in arguments]
    assert main(["evaluate", *replaced]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert "\n" not in error
