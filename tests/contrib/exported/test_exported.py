"""Exported networks: the results of the usual pipeline, and one line for files and options that do not fit."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import onnx
import pytest
from PIL import Image
from support.exported import read_package_metadata
from support.onnx_scenes import (
    BOXES,
    CLASSES,
    QUERY_CLASSES,
    SCORES,
    THINGS,
    masks,
    queries,
    record,
    scene,
    write_classifier,
    write_network,
)

import seamseg
from seamseg.contrib.classification.config import InputConfig
from seamseg.contrib.classification.data import ClassFolders
from seamseg.contrib.classification.data import test_transform as transform_of
from seamseg.contrib.exported.package import PackageSession, requirements
from seamseg.contrib.foreign.queries import prediction_of_queries
from seamseg.fusion import fuse, merge_queries, to_result
from seamseg.inference.images import network_input
from seamseg.maps.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.maps.predictions import MapFormat, Prediction
from seamseg.results import Detections, Panoptic, SemanticMap
from seamseg.utils.errors import InputError, SeamsegError

SIZE = (90, 140)


def load(path, kind="panoptic", size=None, changes=None, **options):
    return seamseg.load(write_network(path / "net.onnx", record(kind, size, **(changes or {}))), **options)


def expected(size):
    """The outputs of the network for a scene, as :func:`support.onnx_scenes.write_network` defines them."""
    return Prediction(BOXES, THINGS, SCORES, masks(), scene(size)[..., 0], size)


@pytest.mark.parametrize("device", ["auto", "openvino"])
@pytest.mark.parametrize("room", [None, (96, 160)])
def test_panoptic_maps_are_those_of_the_fusion(tmp_path, room, device):
    model = load(tmp_path, size=room, device=device, shortest_size=90, min_stuff_area=0)
    result = model.predict(scene(SIZE))
    assert isinstance(result, Panoptic)
    wanted = to_result(fuse(expected(SIZE), CLASSES.num_stuff, min_stuff_area=0), SIZE, CLASSES.num_stuff)
    assert np.array_equal(result.id_map, wanted.id_map)
    assert [s.name for s in result.segments] == ["car", "person", "road", "sky"]
    assert [s.score for s in result.segments[:2]] == SCORES.tolist()
    assert result.prediction.semantic.shape == SIZE, "without the padding"
    assert result.only("car").counts() == {"car": 1}
    kept = result.prediction.semantic.copy()
    found = model.predict([np.ascontiguousarray(scene(SIZE)[::-1]), scene(SIZE)])
    assert np.array_equal(found[1].id_map, result.id_map)
    assert np.array_equal(result.prediction.semantic, kept), "results stay when the next image is predicted"


@pytest.mark.parametrize("device", ["auto", "openvino"])
def test_masks_of_queries_are_merged_at_the_size_of_the_photo(tmp_path, device):
    room = (96, 160)
    model = load(tmp_path, size=room, changes={"query_classes": QUERY_CLASSES}, device=device, shortest_size=90)
    found = prediction_of_queries(*queries(), SIZE, room, np.array(QUERY_CLASSES), CLASSES.num_stuff)
    for scale in (1, 2):
        size = (SIZE[0] * scale, SIZE[1] * scale)
        result = model.predict(scene(size))
        wanted = to_result(merge_queries(found.queries, SIZE, size, CLASSES.num_stuff, 0.5, 0.5), size, 2)
        assert np.array_equal(result.id_map, wanted.id_map)
        assert result.counts() == {"car": 1, "road": 1, "sky": 1}
    assert np.array_equal(result.prediction.boxes, found.boxes)
    assert np.array_equal(result.prediction.semantic, found.semantic)
    with pytest.raises(InputError, match=r"`tiles=256`: .*was exported for inputs of 160 x 96 pixels"):
        load(tmp_path, size=room, changes={"query_classes": QUERY_CLASSES}, tiles=256)


def test_other_kinds(tmp_path):
    model = load(tmp_path, "semantic", changes={"maps": {"logits": MapFormat()}})
    assert list(model.predict(scene(SIZE)).maps) == ["logits"], "no classifier by a map of its output's name"
    result = load(tmp_path, "semantic", shortest_size=90, probabilities=True).predict(scene(SIZE))
    assert isinstance(result, SemanticMap)
    assert np.array_equal(result.classes, scene(SIZE)[..., 0])
    assert np.array_equal(result.probability, scene(SIZE)[..., 1])
    assert load(tmp_path, "semantic", shortest_size=90).predict(scene(SIZE)).probability is None
    for kind in ("instance_seg", "detection"):
        result = load(tmp_path, kind, shortest_size=90).predict(scene(SIZE))
        assert isinstance(result, Detections)
        assert (result.boxes.tolist(), result.names) == (BOXES.tolist(), ["car", "person"])
        assert result.has_masks == (kind == "instance_seg")
        assert result[0].area == pytest.approx(30 * 48, rel=0.1)


@pytest.mark.parametrize(
    ("scale", "crop", "size", "orientation"),
    [(256, 224, (428, 640), 6), (64, 64, (107, 160), 1), (-1, 28, (25, 21), 6), (-1, 28, (17, 40), 1)],
)
def test_classifiers_take_the_pixels_of_the_validation(tmp_path, monkeypatch, scale, crop, size, orientation):
    """Exactly those, of the upright image, as `classify validate --set training.upright=yes`."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    photo = tmp_path / "val" / "street" / "photo.png"
    photo.parent.mkdir(parents=True)
    Image.fromarray(pixels).save(photo, exif=exif)
    model = seamseg.load(write_classifier(tmp_path / "net.onnx", (crop, crop), scale, free=orientation == 1))
    session = mock.Mock(wraps=model.network._session)
    monkeypatch.setattr(model.network, "_session", session)
    result = model.predict(photo)

    options = InputConfig(scale_val=scale, crop_val=crop, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    wanted, _, _ = ClassFolders(tmp_path, "val", transform_of(options), upright=True)[0]
    assert np.array_equal(session.run.call_args.args[1]["image"][0], wanted.numpy())
    assert result.size == (size if orientation == 1 else size[::-1])
    logits = wanted.mean((1, 2))
    assert result.probabilities == pytest.approx(logits.softmax(0).numpy(), abs=1e-6)
    names = [["red", "green", "blue"][k] for k in logits.argsort(descending=True).tolist()]
    assert [name for name, _ in result.top()] == names
    assert json.loads(result.save(tmp_path / "a.json").read_text())[0]["category_id"] == logits.argmax()


def test_classifiers_from_the_command(tmp_path, seamseg_main, capsys):
    path = write_classifier(tmp_path / "net.onnx")
    Image.new("RGB", (90, 70), (0, 0, 255)).save(tmp_path / "a.png")
    assert seamseg_main("predict", path, tmp_path / "a.png", tmp_path / "out", "--quiet") == 0
    line = json.loads((tmp_path / "out/predictions.jsonl").read_text().splitlines()[1])
    assert line["classes"] == {"blue": 1}
    assert Image.open(tmp_path / "out/a.jpg").size == (90, 70)
    assert seamseg_main("evaluate", path, tmp_path, "--split", "val") == 2
    assert "kind classification has no evaluation" in capsys.readouterr().err
    assert seamseg_main("predict", path, tmp_path / "a.png", tmp_path / "hidden", "--anonymize", "blue") == 2
    assert "nothing can be hidden" in capsys.readouterr().err
    assert not (tmp_path / "hidden").exists()


def test_photos_are_shrunk_into_a_fixed_input(tmp_path):
    model = load(tmp_path, "semantic", (64, 64), shortest_size=90)
    for size, wanted in (((90, 140), (41, 64)), ((200, 100), (64, 32)), ((20, 20), (64, 64))):
        result = model.predict(scene(size))
        assert result.prediction.size == wanted
        assert result.size == size
        assert network_input(Image.fromarray(scene(size)), model.input_size).shape[:2] == wanted
    with pytest.raises(SeamsegError, match="exported for inputs of 64 x 64 pixels, this one has 64 x 65"):
        model.raw([scene((65, 64))])


def test_tiles(tmp_path):
    photo = scene((300, 420))
    model = load(tmp_path, "semantic", shortest_size=300)
    assert np.array_equal(model.predict(photo, tiles=128).classes, photo[..., 0])
    fixed = load(tmp_path, size=(96, 160))
    assert np.array_equal(fixed.predict(photo, tiles="auto").id_map, fixed.predict(photo).id_map)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cuda"}, "`device=cuda`: ONNX files run on the CPU"),
        ({"device": "openvino:TPU"}, "`device=openvino:TPU`: OpenVINO has openvino:CPU"),
        ({"config": "own.ini"}, "`config` has no effect"),
        ({"tta": "flip"}, "`tta` cannot be changed after the export"),
        ({"precision": "bf16"}, "`precision` cannot be changed"),
        ({"overrides": ["roi.nms_threshold=.4"]}, "`overrides=roi.nms_threshold=.4`: cannot be changed after the expo"),
        ({"probabilities": True}, "`probabilities` has no effect: the model is of kind"),
    ],
)
def test_options_that_do_not_apply(tmp_path, options, words):
    with pytest.raises(InputError) as raised:
        load(tmp_path, **options)
    assert words in str(raised.value)


def without_metadata(path):
    model = onnx.load(path)
    del model.metadata_props[:]
    onnx.save(model, path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), "not an ONNX file, truncated"),
        (without_metadata, "no metadata of seamseg"),
        (lambda path: write_network(path, record(), "{}"), "of another version"),
        (lambda path: write_network(path, record(), record(part="dense").to_json()), "part 'dense'"),
    ],
)
def test_wrong_files(tmp_path, seamseg_main, capfd, spoil, words):
    path = write_network(tmp_path / "net.onnx", record())
    spoil(path)
    Image.fromarray(scene(SIZE)).save(tmp_path / "a.png")
    for device in ("cpu", "openvino"):
        assert seamseg_main("predict", path, tmp_path / "a.png", tmp_path / "out", "--quiet", "--device", device) == 2
        said = capfd.readouterr().err.strip()
        assert words in said
        assert path.name in said
        assert "\n" not in said
        assert not (tmp_path / "out").exists()


def test_options_of_classifiers_that_do_not_fit(tmp_path):
    path = tmp_path / "net.onnx"
    for changed, words in (({"tiles": 128}, "which needs the whole image"), ({"preview": True}, "of one size")):
        with pytest.raises(InputError, match=rf"`\w+=\w+`: .* is a classifier,? {words}"):
            seamseg.load(write_classifier(path, free=True), **changed)
    with pytest.raises(InputError, match=r"input.crop_val = 0: expected a value from 1 to 16384"):
        seamseg.load(write_classifier(path, (0, 0), free=True))


PROGRAM = """
import sys
sys.modules["torch"] = None
import seamseg
from seamseg.cli.main import main
for kind in sys.argv[1].split(","):
    result = seamseg.load(f"{kind}.onnx", shortest_size=90).predict("photos/a.png")
    for ending in ("jpg", "json"):
        result.save(f"{kind}.{ending}")
    result.draw()
    print(kind, result.counts())
for words in sys.stdin:
    print(main(words.split()))
"""

FORMATS = {"panoptic": "overlay,coco", "instance_seg": "overlay,coco-results", "semantic": "labels", "queries": "coco"}


def test_without_torch(tmp_path):
    (tmp_path / "photos").mkdir()
    for name, size in (("a", SIZE), ("b", (60, 60)), ("c", (120, 90))):
        Image.fromarray(scene(size)).save(tmp_path / "photos" / f"{name}.png")
    for kind in FORMATS:
        exported = record("panoptic", (96, 160), query_classes=QUERY_CLASSES) if kind == "queries" else record(kind)
        write_network(tmp_path / f"{kind}.onnx", exported)
    commands = [f"predict {k}.onnx photos out/{k} --format {f} --workers 2" for k, f in FORMATS.items()]
    commands += ["predict panoptic.onnx photos out/private --anonymize person --quiet"]
    commands += ["predict panoptic.onnx photos out/raw --format raw --quiet"]
    environment = {**os.environ, "PYTHONPATH": str(Path(seamseg.__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM, ",".join(FORMATS)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, input="\n".join(commands), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("panoptic {'road': 1")
    assert done.stdout.split("\n")[4:-1] == [*"000002"], done.stderr
    assert "format raw holds tensors" in done.stderr
    assert done.stderr.count("3 images in out/") == 4
    assert len(list((tmp_path / "out/panoptic/panoptic").glob("*.png"))) == 3
    assert len(json.loads((tmp_path / "out/panoptic/panoptic.json").read_text())["annotations"]) == 3
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out/semantic/a.png")), scene(SIZE)[..., 0])
    assert (tmp_path / "out/private/a.jpg").exists()


METADATA = ExportedMetadata("panoptic", "[general]\n", CLASSES, (64, 96), extra=requirements("cpu"))
MODEL = "net/data/aotinductor/model"


def stated(**extra):
    return {METADATA_KEY: replace(METADATA, extra={**METADATA.extra, **extra}).to_json()}


def package(path, **metadata):
    """A package without code, with metadata of AOTInductor."""
    texts = {METADATA_KEY: METADATA.to_json(), "AOTI_DEVICE_KEY": "cpu", **metadata}
    texts = {name: text for name, text in texts.items() if text is not None}
    files = {"net/archive_format": "pt2", f"{MODEL}/a.wrapper_metadata.json": json.dumps(texts)}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def refusal(path):
    with pytest.raises(InputError) as caught:
        PackageSession(path, "cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({METADATA_KEY: None}, "not a package that seamseg exported"),
        ({METADATA_KEY: '{"format": 99, "version": "9.9"}'}, "of another version"),
        ({"AOTI_DEVICE_KEY": "cuda"}, "compiled for 'cuda', not for cpu"),
        # of other machines
        (stated(torch="99.0"), "needs PyTorch 99.0"),
        (stated(cpu="SVE256"), "compiled for CPUs with SVE256"),
        (stated(cpu_features=["avx9", "amx-tiles"]), "needs avx9, amx-tiles, which this CPU lacks"),
        # what is left: torch finds no library in it
        ({}, "cannot load the package"),
    ],
)
def test_refused(tmp_path, metadata, reason):
    assert reason in refusal(package(tmp_path / "a.pt2", **metadata))


def test_damaged_files(tmp_path):
    path = tmp_path / "a.pt2"
    assert "cannot read the package" in refusal(path)
    whole = package(tmp_path / "b.pt2").read_bytes()
    assert read_package_metadata(tmp_path / "b.pt2") == METADATA
    for content, reason in (
        (whole[: len(whole) // 2], "damaged or truncated"),
        (whole.replace(b"[general]", b"[GENERAL]"), "a damaged or truncated package"),
    ):
        path.write_bytes(content)
        assert reason in refusal(path)
