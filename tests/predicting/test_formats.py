"""Prediction with networks for detection, instance and semantic segmentation: formats, options, what is refused."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_masks
from support.micro import narrow_body
from support.small_models import SEMANTIC_CLASSES, save_snapshot

import seamseg
from seamseg.checkpoints.bundle import open_model
from seamseg.checkpoints.snapshot import Snapshot, network_state
from seamseg.cli import legacy
from seamseg.config import config_to_string, default_config, kinds, load_config
from seamseg.inference.options import OF_RESULTS
from seamseg.maps.formats.metadata import metadata_header, read_metadata, write_metadata
from seamseg.maps.formats.vistas import published_classes
from seamseg.maps.visualize.detections import draw_legacy
from seamseg.models.build import build_network
from seamseg.predicting.folder import formats_of
from seamseg.results import Detections, result_of
from seamseg.utils.errors import InputError
from seamseg.validation.validator import scorer_of

pytestmark = pytest.mark.usefixtures("narrow")

CPU = ("--device", "cpu", "--workers", "0", "--quiet")
KINDS = ("instance_seg", "detection")


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_each_kind_has_results_scores_and_formats(kind):
    assert {option for one in kinds.KINDS for option in result_of(one).options} == {*OF_RESULTS}
    assert formats_of(kind)
    assert scorer_of(kind).result is result_of(kind)
    net = build_network(default_config(kind), 2, 0 if kind == "semantic" else 3)
    assert (net.kind, net.result_type) == (kind, result_of(kind))
    assert {name for name, part in net.named_children() if part is not None} == set(kinds.KINDS[kind].modules)


@pytest.fixture(scope="module")
def models(micro, micro_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    metadata = read_metadata(micro / "metadata.bin")
    paths = {}
    with narrow_body():
        for kind in ("panoptic", *KINDS):
            config = load_config(micro_config, kind, ("roi.score_threshold=0",))
            torch.manual_seed(0)
            net = build_network(config, metadata.num_stuff, metadata.num_thing)
            snapshot = Snapshot(config_to_string(config), dict(network_state(net)), {}, metadata_header(metadata))
            paths[kind] = folder / f"{kind}.pth.tar"
            save_snapshot(paths[kind], snapshot)
    return paths


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def photos(micro, tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    (folder / "a" / "b").mkdir(parents=True)
    street = Image.open(micro / "img" / "val0.png")
    street.save(folder / "street.png")
    street.resize((200, 100)).save(folder / "a" / "wide.jpg")
    street.transpose(Image.Transpose.ROTATE_90).save(folder / "a" / "b" / "tall.png")
    return folder


NAMES = ["a/b/tall", "a/wide", "street"]


def written(out):
    return sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())


def test_all_formats(models, kind, photos, tmp_path, seamseg_main):
    words = ("--format", "overlay,coco-results,raw,json", "--score-threshold", "0", *CPU)
    assert seamseg_main("predict", models[kind], photos, tmp_path, *words) == 0
    files = [f"{name}.{ending}" for name in NAMES for ending in ("jpg", "pth.tar")]
    files += [f"json/{name}.json" for name in NAMES]
    assert written(tmp_path) == sorted([*files, "coco_results.json", "predictions.jsonl"])

    model = seamseg.load(models[kind], device="cpu", score_threshold=0)
    results = {name: model.predict(next(photos.glob(f"{name}.*"))) for name in NAMES}
    assert all(isinstance(result, Detections) and len(result) == 10 for result in results.values())
    assert all((result.masks is None) == (kind == "detection") for result in results.values())
    entries = json.loads((tmp_path / "coco_results.json").read_text())
    assert entries == [entry for name in NAMES for entry in results[name].to_coco(name)]
    for name in NAMES:
        objects = json.loads((tmp_path / "json" / f"{name}.json").read_text())["segments"]
        assert objects == [entry for _, entry in results[name].entries()]
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()[1:]]
    assert [line["detections"] for line in lines] == [{"car": 10}] * 3

    raw = torch.load(tmp_path / "street.pth.tar", weights_only=True)
    assert list(raw) == ["bbx_pred", "cls_pred", "obj_pred", "msk_pred"]
    prediction = results["street"].prediction
    assert np.array_equal(raw["bbx_pred"], prediction.boxes)
    assert raw["cls_pred"].tolist() == [0] * 10
    assert raw["msk_pred"] is None if kind == "detection" else np.array_equal(raw["msk_pred"], prediction.mask_logits)


def test_photos_without_detections(models, kind, photos, tmp_path, seamseg_main):
    for formats in ("overlay,coco-results,raw", "overlay-legacy"):
        words = ("--format", formats, "--set", "roi.score_threshold=1", "--restart", *CPU)
        assert seamseg_main("predict", models[kind], photos, tmp_path, *words) == 0
        shown = np.asarray(Image.open(tmp_path / "street.jpg")).astype(int)
        assert np.abs(shown - np.asarray(Image.open(photos / "street.png"))).mean() < 12
    raw = torch.load(tmp_path / "street.pth.tar", weights_only=True)
    assert raw == dict.fromkeys(["bbx_pred", "cls_pred", "obj_pred", "msk_pred"])
    assert json.loads((tmp_path / "coco_results.json").read_text()) == []


def test_a_panoptic_snapshot_detects(models, kind, photos, capsys):
    model = seamseg.load(models["panoptic"], device="cpu", overrides=[f"general.kind={kind}"], score_threshold=0)
    said = f"panoptic.pth.tar: the {kind} part of a panoptic model is used\n"
    assert capsys.readouterr().err.endswith(said)
    assert model.kind == kind
    panoptic = seamseg.load(models["panoptic"], device="cpu").predict(photos / "street.png")
    found = model.predict(photos / "street.png")
    assert np.array_equal(found.prediction.boxes, panoptic.prediction.boxes)
    assert found.prediction.semantic is None


@pytest.mark.parametrize(
    ("trained", "words", "message"),
    [
        ("panoptic", ("--format", "coco-results"), "a model of kind panoptic has no format 'coco-results': choose"),
        (
            "detection",
            ("--format", "overlay,coco"),
            "--format overlay,coco: a model of kind detection has no format 'coco': choose among coco-results, "
            "csv, json, overlay, overlay-legacy, raw",
        ),
        ("detection", ("--min-area", "3"), "--min-area has no effect: the model is of kind detection"),
    ],
)
def test_refusals(models, photos, tmp_path, refused, trained, words, message):
    assert message in refused("predict", models[trained], photos, tmp_path / "out", *words, *CPU)
    assert not (tmp_path / "out").exists()


def test_the_originals_script(models, micro, micro_config, photos, tmp_path, seamseg_main):
    own = torch.load(models["instance_seg"], weights_only=True)
    torch.save({"config": "", "state_dict": own["state_dict"], "training_meta": {}}, tmp_path / "model.pth.tar")
    model = seamseg.load(models["instance_seg"], device="cpu", score_threshold=0)
    result = model.predict(photos / "street.png")
    arguments = ["--meta", micro / "metadata.bin", "--threshold", "0", micro_config, tmp_path / "model.pth.tar", photos]
    argv = legacy.from_test_instance_seg([str(word) for word in [*arguments, tmp_path / "out"]])
    assert seamseg_main(*argv, *CPU, "--set", "roi.score_threshold=0") == 0
    assert written(tmp_path / "out") == sorted([*(f"{name}.jpg" for name in NAMES), "predictions.jsonl"])
    palette = read_metadata(micro / "metadata.bin").palette
    wanted = draw_legacy(result.image, list(result), result.size, palette)
    shown = np.asarray(Image.open(tmp_path / "out" / "street.jpg")).astype(int)
    assert np.abs(shown - wanted).mean() < 12
    argv = legacy.from_test_instance_seg(["--raw", *map(str, [*arguments, tmp_path / "raw"])])
    assert seamseg_main(*argv, *CPU) == 0
    raw = torch.load(tmp_path / "raw" / "a" / "b" / "tall.pth.tar", weights_only=True)
    assert raw["msk_pred"].shape[1:] == (28, 28)


# --- Semantic networks, and the published network's own file


@pytest.fixture
def noise(tmp_path):
    rng = np.random.default_rng(1)
    for name, size in (("a.jpg", (48, 80)), ("b.png", (90, 70))):
        Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(tmp_path / name)
    return tmp_path


def test_semantic_formats(semantic_model, noise, seamseg_main):
    out = noise / "out"
    words = ("--format", "labels,probabilities,overlay,json", "--tta", "flip", *CPU)
    assert seamseg_main("predict", semantic_model, noise, out, *words) == 0
    result = seamseg.load(semantic_model, "cpu", tta="flip", probabilities=True).predict(noise / "a.jpg")
    labels, probabilities = Image.open(out / "a.png"), Image.open(out / "a_prob.png")
    assert labels.mode == "P"
    assert np.array_equal(np.asarray(labels), result.classes)
    assert np.array_equal(
        np.asarray(labels.convert("RGB")), np.array(SEMANTIC_CLASSES.palette, np.uint8)[result.classes]
    )
    assert labels.getpalette()[9:768] == [0] * 759, "black after the last class"
    assert np.array_equal(np.asarray(probabilities), result.probability)
    assert Image.open(out / "b.jpg").size == Image.open(out / "b.png").size == (70, 90)
    for segment in json.loads((out / "json" / "a.json").read_text())["segments"]:
        assert np.array_equal(coco_masks.decode(segment["segmentation"]), result.classes == segment["category_id"])
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert {"sky", "road", "human--person"} >= set(lines[1]["segments"])


def test_greyscale(semantic_model, noise, seamseg_main, refused):
    words = ("predict", semantic_model, noise / "a.jpg", noise / "out", "--device", "cpu", "--format")
    assert "labels and ids would both write NAME.png" in refused(*words, "labels,ids")
    assert not (noise / "out").exists()
    assert seamseg_main(*words, "ids", "--classes", "road") == 0
    image = Image.open(noise / "out" / "a.png")
    assert image.mode == "L"
    assert set(np.unique(np.asarray(image))) <= {1, 255}


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
    assert model.config.general.kind == "semantic"
    assert model.config.body.body == "wider_resnet38_a2"
    assert model.config.dataloader.longest_size == 2048
    assert model.metadata == published_classes()
    assert model.metadata.categories[13] == "construction--flat--road"
    assert model.metadata.palette[:3] == [(165, 42, 42), (0, 192, 0), (196, 196, 196)]
    write_metadata(tmp_path / "metadata.bin", SEMANTIC_CLASSES)
    with pytest.raises(InputError, match="trained on 65 classes, the metadata lists 3"):
        open_model(published(tmp_path / "more.pth.tar"), meta=tmp_path)
