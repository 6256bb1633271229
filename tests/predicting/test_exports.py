"""Predictions are written in each format, read back and scored: the scores are those in memory."""

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import cityscapes_official as official
from support.onnx_scenes import CLASSES
from support.predictors import StandIn

from seamseg.config import load_config
from seamseg.fusion import fuse, to_result
from seamseg.maps.evaluation.cityscapes import evaluate_cityscapes
from seamseg.maps.evaluation.coco_ap import ImageInstances, Instance, average_precision, encode_crop, instances_of_map
from seamseg.maps.evaluation.confusion import ConfusionMatrix
from seamseg.maps.evaluation.evaluate_files import evaluate_panoptic_json
from seamseg.maps.evaluation.record import MapFiles
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.metadata import ImageInfo, Metadata, class_infos, write_metadata
from seamseg.maps.idmaps.histogram import joint_histogram
from seamseg.maps.panoptic_map import VOID, PanopticResult, Segment
from seamseg.maps.predictions import Prediction
from seamseg.maps.prepare.export import export_dataset
from seamseg.predicting.folder import OutputFolder, make_writers
from seamseg.predicting.source import Source, Video
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.validation.validator import Validator

FORMATS = ("coco", "cityscapes", "vistas")
OBJECTS = [
    (3, 0.5, 0.05, 0.8, 0.35),
    (3, 0.45, 0.3, 0.6, 0.5),
    (3, 0.4, 0.75, 0.55, 0.98),
    (2, 0.3, 0.55, 0.7, 0.7),
    (2, 0.7, 0.4, 0.95, 0.5),
    (2, 0.7, 0.75, 0.97, 0.95),
]
"""Class and box `(y0, x0, y1, x1)` of each, in parts of the size; the third and the last may be crowds."""
CROWDS = (2, 5)


def street(size: tuple[int, int]) -> np.ndarray:
    """Ids of the scene: 0 void, 1 road, 2 sky, then the objects."""
    height, width = size
    ids = np.ones(size, np.int64)
    ids[: height // 2] = 2
    for number, (_, *box) in enumerate(OBJECTS):
        y0, x0, y1, x1 = (round(part * side) for part, side in zip(box, (height, width) * 2))
        ids[y0:y1, x0:x1] = 3 + number
    ids[-5:, :40] = 0
    return ids


def make_city(root: Path, crowds: bool = True, count: int = 3, classes: Metadata = CLASSES) -> Path:
    """A dataset folder of images of several sizes, `val` all of them; every class is in every image."""
    for folder in ("img", "msk", "lst"):
        (root / folder).mkdir(parents=True)
    rng = np.random.default_rng(7)
    cat = [VOID, 0, 1, *(category for category, *_ in OBJECTS)]
    iscrowd = [0, 0, 0, *(int(crowds and k in CROWDS) for k in range(len(OBJECTS)))]
    images = []
    for k in range(count):
        size = (64, 96) if k % 2 == 0 else (81, 70)
        name = f"bonn_{k:06d}_000019"
        Image.fromarray(rng.integers(0, 255, (*size, 3)).astype(np.uint8)).save(root / "img" / f"{name}.png")
        Image.fromarray(street(size).astype(np.uint8)).save(root / "msk" / f"{name}.png")
        images.append(ImageInfo(name, cat, size, iscrowd))
    (root / "lst" / "val.txt").write_text("".join(f"{i.id}\n" for i in images))
    write_metadata(root / "metadata.bin", Metadata(**{**vars(classes), "images": images}))
    return root


class Guesser(StandIn):
    """Knows the street more or less: boxes that are a little off, a few too many, and semantic classes with noise.

    The same image gets the same guess.
    """

    def predict(self, images, least_score=0.0):
        return [self._guess(image) for image in images]

    def _guess(self, image):
        size = int(image.shape[1]), int(image.shape[2])
        rng = np.random.default_rng(int(image.double().abs().sum() * 10) % 2**31)
        chosen = [*range(len(OBJECTS)), 1, 3]
        boxes = np.array([OBJECTS[k][1:] for k in chosen]) + rng.normal(0, 0.015, (len(chosen), 4))
        scores = np.sort(rng.uniform(0.4, 1, len(chosen)))[::-1].copy()
        masks = np.full((len(chosen), 28, 28), 2.0)
        masks[:, :4, :6] = -2.0
        semantic = np.array([0, 0, 1, *(category for category, *_ in OBJECTS)])[street(size)]
        for category in range(4):
            y, x = (int(rng.integers(0, side - 12)) for side in size)
            semantic[y : y + 9, x : x + 11] = category
        return Prediction(
            torch.from_numpy(boxes * (*size, *size)).float(),
            torch.tensor([OBJECTS[k][0] - 2 for k in chosen]),
            torch.from_numpy(scores).float(),
            torch.from_numpy(masks).float(),
            torch.from_numpy(semantic),
            size,
        )


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
