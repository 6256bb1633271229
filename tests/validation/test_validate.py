"""Validation and `evaluate_model`: native size, exactness, and models that do not fit."""

import filecmp
import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support.micro import make_dataset, narrow_body
from support.predictors import StandIn
from support.processes import launch
from support.small_models import SEMANTIC

from seamseg.config import config_from_string, load_config
from seamseg.data.input_size import InputSize
from seamseg.inference.predictor import build_predictor
from seamseg.maps.evaluation.record import read_evaluation
from seamseg.maps.formats.coco_panoptic import read_coco_panoptic
from seamseg.maps.formats.metadata import read_metadata, write_metadata
from seamseg.maps.predictions import Prediction
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.validation.evaluate import evaluate_model
from seamseg.validation.options import EvaluationOptions
from seamseg.validation.validator import CustomMetrics, Validator

pytestmark = pytest.mark.usefixtures("narrow")

OPTIONS = {
    "bf16": ["--precision", "bf16", "--score-threshold", "0.1", "--overlap-threshold", "0.9", "--min-area", "7"],
    "views": ["--tta", "flip,0.75,1.0"],
    "tiles": ["--shortest-size", "150", "--tiles", "128", "--min-area", "0"],
    "preview": ["--preview"],
}


class Mapped(StandIn):
    def __init__(self, kind, classes_of):
        super().__init__()
        self.kind, self.classes_of, self.modes = kind, classes_of, []

    def predict(self, images, least_score=0.0):
        self.modes.append(self.training)
        nothing = torch.zeros(0)
        parts = nothing.view(0, 4), nothing.long(), nothing, nothing.view(0, 28, 28)
        return [Prediction(*parts, self.classes_of(image), tuple(image.shape[1:])) for image in images]


def sky_or_road(image):
    return (image[2] <= image[0] + 1).long()


def lower_half(image):
    classes = torch.zeros(image.shape[1:], dtype=torch.int64)
    classes[image.shape[1] // 2 :] = 1
    return classes


@pytest.fixture
def flat(tmp_path):
    data = make_dataset(tmp_path / "flat", [0], [0, 0, 0])
    for name in ("val0", "val1", "val2"):
        ids = np.ones((160, 240), np.uint8)
        ids[80:] = 2
        rgb = np.full((160, 240, 3), (60, 60, 60), np.uint8)
        rgb[:80] = (40, 120, 240)
        Image.fromarray(ids).save(data / "msk" / f"{name}.png")
        Image.fromarray(rgb).save(data / "img" / f"{name}.png")
    metadata = read_metadata(data / "metadata.bin")
    images = [replace(i, size=(160, 240)) if i.id.startswith("val") else i for i in metadata.images]
    write_metadata(data / "metadata.bin", replace(metadata, images=images))
    return data


def test_scores_are_computed_at_native_size(flat, micro_config):
    config = load_config(micro_config)
    validator = Validator.open(flat, "val", config, World(), quiet=True)
    seen = []
    net = Mapped("panoptic", sky_or_road).train()
    scores = validator(net, lambda one: seen.append((one.item.id, one.prediction.size, one.result.size)))
    assert seen == [(f"val{i}", (64, 96), (160, 240)) for i in range(3)]
    assert scores.PQ_stuff == pytest.approx(1.0, abs=0.02)
    assert scores.n_images == 3
    assert net.modes == [False, False]
    assert net.training
    assert scores.selection.value == scores.PQ
    separate = replace(config, general=replace(config.general, eval_mode="separate"))
    assert replace(validator, config=separate)(net).selection.value == scores.mIoU
    assert replace(scores, PQ=math.nan).selection.value == 0.0


def test_progress_and_a_metric_that_does_not_select(flat, micro_config, capsys):
    config, metric = load_config(micro_config), SimpleNamespace(gathered=False, state=lambda: np.ones(1, bool))
    for world, options in ((World(), {}), (World(), {"quiet": True}), (World(rank=1), {})):
        validator = Validator.open(flat, "val", config, world, **options)
        assert len(list(validator._items("images"))) > 0
        assert ("images: " in capsys.readouterr().err) == (not options and world.rank == 0), "of the first process"
    metric.scores = lambda state: {"integers": state.dtype.kind == "i"}
    metrics = CustomMetrics(config, validator.metadata, World())
    metrics._metrics["mine"] = metric
    scores = metrics.added_to(validator(Mapped("panoptic", sky_or_road)))
    assert (scores.metrics, scores.selected) == ({"integers": 1.0}, None)


def test_legacy_scores_are_computed_at_network_size(flat, micro_config):
    validator = Validator.open(flat, "val", load_config(micro_config), World(), legacy=True, quiet=True)
    seen = []
    scores = validator(Mapped("panoptic", sky_or_road), lambda one: seen.append(one.result.size))
    assert seen == [(64, 96)] * 3
    assert scores.PQ_stuff == pytest.approx(1.0, abs=0.05)
    assert pytest.approx(2 / 3 * scores.PQ_stuff) == scores.PQ  # cars never occur and count as 0


@pytest.mark.parametrize(
    ("legacy", "given", "size", "tiles"),
    [
        (False, {}, InputSize(longest_size=90), "auto"),
        (True, {}, InputSize(64), "off"),
        (True, {"tiles": 512, "size": 32}, InputSize(longest_size=32), 512),
        (True, {"shortest_size": 32, "longest_max_size": 40}, InputSize(32, 40), "off"),
    ],
)
def test_legacy_scores_use_the_size_of_the_original_and_no_tiles(
    micro, micro_run, monkeypatch, legacy, given, size, tiles
):
    built = []

    def build(opened, options, size):
        built.append((size, options.tiles))
        return build_predictor(opened, options, size)

    monkeypatch.setattr("seamseg.validation.evaluate.build_predictor", build)
    given = {"overrides": "dataloader.longest_size=90", "legacy": legacy, **given}
    options = EvaluationOptions(micro_run, micro, "cpu", quiet=True, **given)
    assert evaluate_model(options).n_images == 3
    assert built == [(size, tiles)]


def test_models_and_data_that_do_not_fit(micro, micro_run, tmp_path):
    other = make_dataset(tmp_path / "data", [1], [1])
    metadata = read_metadata(other / "metadata.bin")
    lists = {"palette": [(1, 1, 1), *metadata.palette], "original_ids": [1, *metadata.original_ids]}
    more = replace(metadata, num_stuff=3, categories=["a", *metadata.categories], **lists)
    swapped = replace(metadata, categories=["road", "sky", "car"])
    for data, classes, options, message in (
        (other, more, {}, r"3 stuff and 1 thing classes, but .*was trained on 2 and 1.*`class_table=TABLE`"),
        (other, more, {"meta": other / "metadata.bin"}, "was trained on 3 classes, the metadata lists 4"),
        (other, swapped, {}, r"class 0 is 'sky' in .* and 'road' in .* another order; .*`class_table=names`"),
        (micro, metadata, {"split": "test"}, "no split 'test'"),
        (micro, metadata, {"overrides": "dataloader.val_set="}, "name a split with `split=NAME`"),
    ):
        write_metadata(other / "metadata.bin", classes)
        with pytest.raises(InputError, match=message):
            evaluate_model(EvaluationOptions(micro_run, data, "cpu", quiet=True, **options))
    write_metadata(other / "metadata.bin", replace(metadata, categories=["sky", "strada", "car"]))
    with pytest.warns(UserWarning, match="class 1 is 'road' in .* and 'strada' in"):
        evaluate_model(EvaluationOptions(micro_run, other, "cpu", quiet=True))
    Image.new("L", (10, 10)).save(other / "msk" / "val0.png")
    write_metadata(other / "metadata.bin", metadata)
    with pytest.raises(InputError, match=r"val0\.png: the mask is 10 x 10 pixels"):
        evaluate_model(EvaluationOptions(micro_run, other, "cpu", quiet=True))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_scores_are_those_of_the_files_of_predict(micro, micro_run, tmp_path, options, seamseg_main):
    (tmp_path / "photos").mkdir()
    for name in ("val0", "val1", "val2"):
        shutil.copy(micro / "img" / f"{name}.png", tmp_path / "photos")
    words = ["--device", "cpu", "--quiet", *options]
    out, of_model, of_files = tmp_path / "e", tmp_path / "m.json", tmp_path / "f.json"
    assert seamseg_main("evaluate", micro_run, micro, "--json", of_model, "--out", out, *words) == 0
    assert seamseg_main("predict", micro_run, tmp_path / "photos", tmp_path / "p", "--format", "coco", *words) == 0
    files = ["--gt", out / "ground_truth.json", "--pred", tmp_path / "p/panoptic.json"]
    assert seamseg_main("evaluate", *files, "--json", of_files, "--quiet") == 0
    of_model, of_files = (json.loads(path.read_text()) for path in (of_model, of_files))
    assert of_model["mIoU_segments"] > 0
    for key in ("PQ", "SQ", "RQ", "PQ_things", "PQ_stuff", "mIoU_segments"):
        assert of_model[key] == pytest.approx(of_files[key], abs=1e-6), key


# --- the evaluation folder: its files agree with the scores, for any number of processes


@pytest.fixture(scope="module")
def folder(micro, micro_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("folder") / "evaluation"
    with narrow_body():
        found = evaluate_model(EvaluationOptions(micro_run, micro, "cpu", split="train", quiet=True, out=out))
    return out, found


def test_its_records_belong_to_its_maps(folder, micro, micro_run):
    out, scores = folder
    found = read_evaluation(out)
    assert (found.scores, found.title) == (scores.to_json(), f"{micro_run.name} on train of {micro.name}")
    images = list(found.images())
    sides = ("ground_truth", "prediction")
    for files, side in zip((found.ground_truth, found.prediction), sides):
        annotations = {a.file_name: a.segments_info for a in read_coco_panoptic(files.json, files.folder).annotations}
        for image in images:
            wanted = [(s["id"], s["category_id"], s["area"]) for s in annotations[getattr(image, f"{side}_png")]]
            of_image = getattr(image, side)
            assert sorted((s.id, found.classes[s.category].id, s.area) for s in of_image) == sorted(wanted)
    for image in images:
        assert (found.photos / image.photo).is_file()
        assert {s.partner for s in image.ground_truth} - {None} <= {s.id for s in image.prediction}
    matched = [s for image in images for s in image.ground_truth if s.outcome == "matched"]
    assert len(matched) == sum(one.TP for one in scores.per_class)


@pytest.mark.distributed
def test_two_processes_write_the_same(folder, micro, micro_run, tmp_path):
    launch(_evaluate, 2, str(micro_run), str(micro), str(tmp_path / "two"))
    compared = filecmp.dircmp(folder[0], tmp_path / "two")
    names = [*compared.common_files, *(f"{d}/train{n}.png" for d in ("prediction", "ground_truth") for n in range(4))]
    assert len(names) == 12
    assert not compared.left_only
    assert not compared.right_only
    assert filecmp.cmpfiles(folder[0], tmp_path / "two", names, shallow=False)[0] == names


def _evaluate(rank, join, model, data, out):
    join()
    with narrow_body():
        evaluate_model(EvaluationOptions(model, data, "cpu", split="train", quiet=True, out=out))


def test_iou_of_a_semantic_network_at_native_size(micro):
    config = config_from_string(SEMANTIC, overrides=["dataloader.shortest_size=32"])
    validator = Validator.open(micro, "val", config, World(device=torch.device("cpu")), quiet=True)
    assert [getattr(Validator(*[None] * 4), name) for name in ("legacy", "quiet", "least_score")] == [False, False, 0]
    scores = validator(Mapped("semantic", lower_half))
    counts = np.zeros((3, 3), int)
    for index in range(3):
        mask, info = validator.dataset.reader.read_masks(index), validator.dataset.images[index]
        truth = np.array([255 if c == 255 else c for c in info.cat])[mask[0]]
        predicted = np.zeros(info.size, int)
        predicted[info.size[0] // 2 :] = 1
        known = truth != 255
        np.add.at(counts, (truth[known], predicted[known]), 1)
    iou = np.diag(counts) / (counts.sum(0) + counts.sum(1) - np.diag(counts))
    assert [c.IoU for c in scores.per_class] == pytest.approx(iou.tolist())
    assert scores.mIoU == pytest.approx(iou.mean())
    assert scores.accuracy == pytest.approx(np.diag(counts).sum() / counts.sum())
    assert scores.selection.value == scores.mIoU
    assert scores.n_images == 3
    assert "human" not in scores.table()
    assert json.loads(json.dumps(scores.to_json()))["per_class"]["car"]["IoU"] == pytest.approx(iou[2])


def test_what_a_semantic_network_refuses(semantic_model, micro, tmp_path):
    with pytest.raises(InputError, match="evaluation folder holds panoptic maps"):
        evaluate_model(EvaluationOptions(semantic_model, micro, "cpu", quiet=True, out=tmp_path / "out"))
    with pytest.raises(InputError, match="legacy"):
        evaluate_model(EvaluationOptions(semantic_model, micro, "cpu", quiet=True, legacy=True))
