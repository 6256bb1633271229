"""The evaluation folder of a model: its files agree with the scores, for any number of processes."""

from __future__ import annotations

import filecmp

import pytest
from support.micro import narrow_body
from support.processes import launch

from seamseg.maps.evaluation import evaluate_panoptic_json
from seamseg.maps.evaluation.record import read_evaluation
from seamseg.maps.formats.coco_panoptic import read_coco_panoptic
from seamseg.validation.evaluate import evaluate_model
from seamseg.validation.options import EvaluationOptions


@pytest.fixture(scope="module")
def evaluated(micro, micro_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluated") / "evaluation"
    with narrow_body():
        found = evaluate_model(EvaluationOptions(micro_run, micro, "cpu", split="train", quiet=True, out=out))
    return out, found


def test_its_files_have_the_scores_of_the_model(evaluated, micro, micro_run):
    out, scores = evaluated
    again = evaluate_panoptic_json(out / "ground_truth.json", out / "prediction.json")
    assert again.n_images == 4
    assert sum(c.TP for c in again.per_class) > 0
    # things without a detection are void in files, so the IoU of the class map may be greater
    assert again.mIoU == again.mIoU_segments
    for key in ("PQ", "SQ", "RQ", "PQ_things", "PQ_stuff", "PQ_dagger", "mIoU_segments"):
        assert getattr(again, key) == pytest.approx(getattr(scores, key), abs=1e-15, nan_ok=True), key
    assert read_evaluation(out).scores == scores.to_json()
    assert read_evaluation(out).title == f"{micro_run.name} on train of {micro.name}"


def test_its_records_belong_to_its_maps(evaluated, micro):
    out, scores = evaluated
    found = read_evaluation(out)
    assert [c.name for c in found.classes] == ["sky", "road", "car"]
    assert None not in found.colours
    assert found.photos is not None
    maps = [read_coco_panoptic(of.json, of.folder) for of in (found.ground_truth, found.prediction)]
    segments = [{a.file_name: {s["id"]: s for s in a.segments_info} for a in one.annotations} for one in maps]
    images = list(found.images())
    assert [i.image_id for i in images] == [f"train{n}" for n in range(4)]
    for image in images:
        assert (found.photos / image.photo).is_file()
        for side, name, of in zip(
            (image.ground_truth, image.prediction), (image.ground_truth_png, image.prediction_png), segments
        ):
            entries = of[name]
            assert {s.id for s in side} == set(entries)
            for s in side:
                assert found.classes[s.category].id == entries[s.id]["category_id"]
                assert s.area == entries[s.id]["area"]
        partner = {s.id for s in image.prediction}
        assert all(s.partner in partner for s in image.ground_truth if s.partner is not None)
        scored = [s for s in image.prediction if s.category == 2]
        assert all(s.score is not None for s in scored)
    for c, one in enumerate(scores.per_class):
        matched = [s for i in images for s in i.ground_truth if (s.category, s.outcome) == (c, "matched")]
        assert len(matched) == one.TP


@pytest.mark.distributed
def test_two_processes_write_the_same(evaluated, micro, micro_run, tmp_path):
    launch(_evaluate, 2, str(micro_run), str(micro), str(tmp_path / "two"))
    compared = filecmp.dircmp(evaluated[0], tmp_path / "two")
    names = [*compared.common_files, *(f"{d}/train{n}.png" for d in ("prediction", "ground_truth") for n in range(4))]
    assert len(names) == 12
    assert not compared.left_only
    assert not compared.right_only
    assert filecmp.cmpfiles(evaluated[0], tmp_path / "two", names, shallow=False)[0] == names


def _evaluate(rank, join, model, data, out):
    join()
    with narrow_body():
        evaluate_model(EvaluationOptions(model, data, "cpu", split="train", quiet=True, out=out))
