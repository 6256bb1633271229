"""Predictions are written in each format, read back and scored: the scores are those in memory."""

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import cityscapes_official as official
from support.export_scenes import CLASSES, Guesser, make_city

from seamseg.config import load_config
from seamseg.fusion import fuse, to_result
from seamseg.maps.evaluation.cityscapes import evaluate_cityscapes
from seamseg.maps.evaluation.coco_ap import ImageInstances, Instance, average_precision, encode_crop, instances_of_map
from seamseg.maps.evaluation.confusion import ConfusionMatrix
from seamseg.maps.evaluation.evaluate_files import evaluate_panoptic_json
from seamseg.maps.evaluation.record import MapFiles
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.metadata import Metadata, class_infos
from seamseg.maps.idmaps.histogram import joint_histogram
from seamseg.maps.panoptic_map import VOID, PanopticResult, Segment
from seamseg.maps.prepare.export import export_dataset
from seamseg.predicting.folder import OutputFolder, make_writers
from seamseg.predicting.source import Source, Video
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.validation.validator import Validator

FORMATS = ("coco", "cityscapes", "vistas")


def write_all(data: Path, out: Path, config: Path):
    validator = Validator.open(data, "val", load_config(config), World(), quiet=True)
    writers = make_writers(FORMATS, out, validator.dataset.metadata)
    records = {}

    def observe(judged):
        name = judged.item.id
        source = Source(Path(f"{name}_leftImg8bit.png"), f"bonn/{name}_leftImg8bit", f"bonn/{name}.png")
        records[name] = [writer.write(source, None, judged.prediction, judged.result) for writer in writers]
        for writer in writers:
            assert all(path.is_file() for path in writer.paths(source))

    scores = validator(Guesser(), observe)
    for k, writer in enumerate(writers):
        writer.finish(lambda k=k: (records[name][k] for name in sorted(records)))
    return scores


@pytest.fixture(scope="module")
def exported(tmp_path_factory, micro_config):
    root = tmp_path_factory.mktemp("exports")
    data = make_city(root / "data")
    scores = write_all(data, root / "pred", micro_config)
    assert 0.01 < scores.PQ < 0.9
    assert scores.n_images == 3
    export_dataset(data, root / "gt", formats=("coco", "cityscapes"))
    return data, root / "pred", root / "gt", scores


def test_panoptic_scores_from_files(exported, tmp_path):
    _, pred, gt, scores = exported
    truth = gt / "coco" / "panoptic_val.json"
    official = evaluate_panoptic_json(truth, pred / "cityscapes" / "panoptic.json")
    for name in ("PQ", "SQ", "RQ", "PQ_things", "PQ_stuff"):
        assert getattr(official, name) == pytest.approx(getattr(scores, name), abs=1e-12)
    assert [(c.TP, c.FP, c.FN) for c in official.per_class] == [(c.TP, c.FP, c.FN) for c in scores.per_class]
    # other ids and names, the same maps
    content = json.loads(truth.read_text())
    for entry in (*content["images"], *content["annotations"]):
        key = "image_id" if "image_id" in entry else "id"
        entry[key] += "_leftImg8bit"
    for entry in (*content["categories"], *(s for a in content["annotations"] for s in a["segments_info"])):
        key = "category_id" if "category_id" in entry else "id"
        entry[key] += 1
    (tmp_path / "gt.json").write_text(json.dumps(content))
    shifted = evaluate_panoptic_json(
        MapFiles(tmp_path / "gt.json", truth.with_suffix("")), pred / "vistas" / "panoptic.json"
    )
    assert pytest.approx(scores.PQ, abs=1e-12) == shifted.PQ


def test_miou_from_label_pictures(exported):
    data, pred, _, scores = exported
    dataset = DatasetFolder(data)
    of_label = {27: VOID, **{label: k for k, label in enumerate(CLASSES.original_ids)}}
    confusion = ConfusionMatrix(4)
    for image in dataset.split("val"):
        truth = np.array(image.cat)[dataset.read_mask(image.id)[0]].astype(np.int64)
        with Image.open(pred / "vistas" / "labels" / f"{image.id}_leftImg8bit.png") as picture:
            assert picture.mode == "L"
            found = np.array(picture)
        assert set(np.unique(found)) <= set(of_label)
        mapped = np.vectorize(of_label.get)(found).astype(np.int64)
        classes = {k: k for k in range(4)}
        confusion.add_pairs(*joint_histogram(truth, mapped), classes, classes)
    assert float(np.nanmean(confusion.iou().tolist())) == pytest.approx(scores.mIoU, abs=1e-12)


def test_average_precision_from_instance_files(exported, micro_config):
    data, pred, _, _ = exported
    folder = pred / "vistas" / "instances"
    config = load_config(micro_config, overrides=["general.eval_coco=yes"])
    wanted = Validator.open(data, "val", config, World(), quiet=True)(Guesser()).instances
    dataset, infos = DatasetFolder(data), class_infos(CLASSES)
    images = []
    for image in dataset.split("val"):
        found = []
        for line in (folder / f"{image.id}_leftImg8bit.txt").read_text().splitlines():
            path, label, score = line.split()
            with Image.open(folder / path) as picture:
                assert picture.mode == "L"
                mask = np.array(picture)
            assert set(np.unique(mask)) == {0, 255}
            assert mask.shape == image.size
            counts = encode_crop(mask > 0, (0, 0), image.size)
            found.append(Instance({24: 0, 26: 1}[int(label)], (0, 0, 1, 1), counts, float(score)))
        assert len(found) == 8
        truth = instances_of_map(torch.from_numpy(dataset.read_mask(image.id)), image.cat, image.iscrowd, 2, 4)
        images.append(ImageInstances(image.id, image.size, truth, found))
    # absent sizes are NaN, which is unequal to itself
    assert repr(average_precision(infos, images).mask) == repr(wanted.mask)


def test_scores_of_the_official_cityscapes_tools(exported, tmp_path):
    pytest.importorskip("cityscapesscripts")
    _, pred, gt, scores = exported
    truth, found = gt / "cityscapes" / "gtFine" / "val", pred / "cityscapes"
    panoptic = official.panoptic(truth, found / "panoptic.json", tmp_path)
    for theirs, ours in (("All", scores.PQ), ("Things", scores.PQ_things), ("Stuff", scores.PQ_stuff)):
        assert panoptic[theirs]["pq"] == pytest.approx(ours, abs=1e-12)
    known = [v for v in official.pixel_level(truth, found / "pixel", tmp_path)["classScores"].values() if v == v]
    assert len(known) == 4
    assert np.mean(known) == pytest.approx(scores.mIoU, abs=1e-12)
    instances = official.instance_level(truth, found / "instance", tmp_path)["averages"]
    ours = evaluate_cityscapes(truth, found)
    assert instances["allAp"] == pytest.approx(ours.instance.means["AP"], abs=1e-12)
    assert pytest.approx(scores.PQ, abs=1e-12) == ours.panoptic.PQ
    assert ours.pixel.means["IoU"] == pytest.approx(scores.mIoU, abs=1e-12)
    assert not ours.not_found


def changed(**fields) -> Metadata:
    return Metadata(**{**vars(CLASSES), **fields})


@pytest.mark.parametrize(
    ("format_", "classes", "message"),
    [
        ("cityscapes", changed(categories=["road", "sky", "person", "boat"]), "'boat' is not a class of Cityscapes"),
        ("cityscapes", changed(categories=["road", "car", "person", "rider"]), "'car' is stuff here but a thing in"),
        ("cityscapes", changed(categories=["road", "sky", "car", "Car"]), "two classes are 'Car'"),
        ("vistas", changed(original_ids=[0, 1, 2, 255]), "must differ and be 0 to 254"),
        ("vistas", changed(original_ids=[0, 1, 2, 2]), "must differ and be 0 to 254"),
    ],
)
def test_classes_that_a_format_cannot_hold(tmp_path, format_, classes, message):
    with pytest.raises(InputError, match=message):
        make_writers([format_], tmp_path, classes)


def test_too_many_instances_and_names_with_blanks(tmp_path):
    ids = np.arange(1, 301, dtype=np.int32).reshape(15, 20)
    segments = [Segment(i, 3, True, 0.9, 1, (0, 0, 1, 1)) for i in range(1, 301)]
    (writer,) = make_writers(["vistas"], tmp_path, CLASSES)
    source, prediction = Source(Path("my street.png"), "my street", ""), Guesser().predict([torch.ones(3, 40, 50)])[0]
    with pytest.raises(InputError, match="image my street: more than 256 instances of label 26"):
        writer.write(source, None, prediction, PanopticResult(ids, segments))
    writer.write(source, None, prediction, to_result(fuse(prediction, 2), (40, 50), 2))
    folder = tmp_path / "vistas" / "instances"
    names = [line.split()[0] for line in (folder / "my street.txt").read_text().splitlines()]
    assert names
    assert all((folder / name).is_file() for name in names)


def test_photos_of_one_name_in_two_folders_are_an_error(tmp_path):
    sources = [Source(Path(f"{k}/a.png"), f"{k}/a", f"{k}/a.png") for k in "xy"]
    for name, shared in (("coco", False), ("cityscapes", True), ("vistas", True)):
        (writer,) = make_writers([name], tmp_path, CLASSES)
        refused = pytest.raises(InputError, match=r"x/a\.png and y/a\.png would both be written to")
        with refused if shared else nullcontext():
            OutputFolder(tmp_path, [writer], {}).check_names(sources)
        frames = pytest.raises(InputError, match="x: frames of several videos could share")
        with frames if shared else nullcontext():
            OutputFolder(tmp_path, [writer], {}).check_names([Video("x.mp4", "x", "x.mp4"), sources[0]])
