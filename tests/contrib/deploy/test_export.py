"""`seamseg export`: the table, files that run in `seamseg predict`, networks of transformers; bad input in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.classes import write_classifier
from support.tiny_transformers import SIDE, photo, save

import seamseg
from seamseg.contrib.deploy.export import compare, export_model
from seamseg.contrib.deploy.options import ExportOptions
from seamseg.contrib.exported.network import open_model
from seamseg.inference.options import InferenceOptions
from seamseg.maps.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a.engine",), "a.engine: its ending decides the format: .onnx"),
        (("a.onnx", "--size", "512"), "--size 512: give HEIGHTxWIDTH in pixels"),
        (("a.onnx", "--size", "16x512"), "--size: height and width must be 32 to 8192"),
        (("a.onnx", "--size", "64x64", "--dynamic"), "--size and --dynamic are mutually exclusive"),
        (("a.onnx", "--precision", "bf16"), "--precision bf16: ONNX files are exported in fp32"),
        (("a.onnx", "--calibrate", "3"), "--calibrate is the number of images of --int8"),
        (("a.onnx", "--int8", "d", "--precision", "bf16"), "--int8 d and --precision bf16 exclude each other"),
        (("a.onnx", "--int8", "none"), "none: no such data set folder"),
        (("a.pt2", "--int8", "d"), "--int8 d: only ONNX files are quantised, not a.pt2"),
        (("a.onnx", "--check", "b.png"), "b.png: no such image"),
    ],
)
def test_bad_options(words, message, micro_run, refused, tmp_path):
    assert message in refused("export", micro_run, *words)
    assert not list(tmp_path.iterdir())


def test_files_that_are_in_the_way_or_missing(micro_run: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "a.onnx"
    assert "no such model" in refused("export", tmp_path / "none", out)
    out.write_text("mine")
    assert f"{out}: exists; use --force to overwrite it" in refused("export", micro_run, out)
    assert "is an exported network" in refused("export", out, tmp_path / "b.onnx")
    (tmp_path / "c.onnx").mkdir()
    assert "is a folder" in refused("export", micro_run, tmp_path / "c.onnx")
    assert out.read_text() == "mine"


def metadata_of(path: Path) -> ExportedMetadata:
    stored = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    return ExportedMetadata.from_json(stored[METADATA_KEY], str(path))


@pytest.mark.slow
def test_a_trained_model(micro, micro_run, seamseg_main, capsys, tmp_path):
    out, photo = tmp_path / "city.onnx", micro / "img" / "val0.png"
    words = ("export", micro_run, out, "--size", "64x128", "--check", photo, "--licence", "CC0")
    assert seamseg_main(*words, "--set", "roi.score_threshold=0.02") == 0
    captured = capsys.readouterr()
    rows = dict(line.split("  ", 1) for line in captured.out.splitlines())
    assert "64 x 128 (height x width), fp32" in rows["network"]
    # two pixels of 8192 have nearly equal logits of two classes
    assert float(rows[str(photo)].partition("classes of ")[2].split()[0]) >= 99.97
    assert "tracing the network" in captured.err
    stated = metadata_of(out)
    assert (stated.size, stated.multiple, stated.licence) == ((64, 128), 1, "CC0")
    assert "score_threshold = 0.02" in stated.config

    results = tmp_path / "results"
    assert seamseg_main("predict", out, photo, results, "--format", "coco", "--quiet") == 0
    assert json.loads((results / "panoptic.json").read_text())["annotations"]
    assert seamseg_main("export", micro_run, out, "--force", "--quiet") == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert "part all, input free" in rows["network"]
    # also of the upright image
    network, file = (seamseg.evaluate(model, micro, device="cpu", quiet=True).line() for model in (micro_run, out))
    assert file == network


@pytest.mark.slow
def test_a_classifier(seamseg_main: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run, out = write_classifier(tmp_path / "run"), tmp_path / "classifier.onnx"
    assert seamseg_main("export", run, out, "--quiet") == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert "classification, part all, input " in rows["network"]
    assert float(rows["noise"].split()[1]) < 1e-4
    assert metadata_of(out).metadata.categories[0] == "class 0"
    assert seamseg_main("export", run, out, "--quiet", "--part", "dense", "--force") == 2
    assert "a classifier has no dense part" in capsys.readouterr().err


def outputs(**changes: object) -> dict[str, np.ndarray]:
    """Outputs of a network that finds three things in an image of 4 x 6 valid pixels."""
    found = {
        "boxes": np.array([[0, 0, 2, 2], [1, 1, 4, 4], [1, 1, 4, 4], [0, 0, 0, 0]], np.float32),
        "classes": np.array([0, 0, 1, 0]),
        "scores": np.array([0.9, 0.8, 0.7, 0], np.float32),
        "count": np.array(3),
        "classmap": np.zeros((8, 8), np.uint8),
    }
    return {**found, **changes}  # type: ignore[dict-item]


INPUTS = {"image": np.zeros((1, 3, 8, 8), np.uint8), "size": np.array([4, 6])}


def test_differences_of_outputs() -> None:
    same = compare(outputs(), outputs(), INPUTS)
    assert same.detections == (3, 3, 3)
    assert (same.box, same.score, same.equal_pixels) == (0, 0, 1)
    swapped = np.array([1, 0, 2, 3])
    other = outputs()
    found = {**other, **{name: other[name][swapped] for name in ("boxes", "classes", "scores")}}
    assert compare(outputs(), found, INPUTS) == same, "equal scores may change places"
    moved = outputs(boxes=outputs()["boxes"] + np.float32(0.25), count=np.array(2))
    moved["classmap"] = np.zeros((8, 8), np.uint8)
    moved["classmap"][3:, :] = 1
    found = compare(outputs(), moved, INPUTS)
    assert found.detections == (3, 2, 2)
    assert (found.box, found.equal_pixels) == (0.25, 0.75)
    assert (
        str(found) == "detections 2 of 3 equal (2 in the file), box 0.25 px, score 0, classes of 75 % of pixels equal"
    )
    nothing = outputs(count=np.array(0))
    assert compare(nothing, nothing, INPUTS).detections == (0, 0, 0)
    found = compare({"logits": np.array([[1.0, -4.0]])}, {"logits": np.array([[1.0, -3.0]])}, {"image": np.zeros(1)})
    assert found.values == 0.25


INPUT_SIZE = (64, 96)
EXPORTED = ("mask2former", "maskformer", "eomt", "eomt_dinov3", "detr")
SURE = {"score_threshold": 0.1}


def annealed(family: str, folder: Path, **options: Any) -> Path:
    """Write a network as at the end of its training, with a model card."""
    save(family, folder, annealed=family.startswith("eomt"), **options)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A network\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPORTED)
def test_maps_are_those_of_the_network(tmp_path: Path, family: str) -> None:
    square = family.startswith("eomt")
    folder, file = annealed(family, tmp_path / "net"), tmp_path / "net.onnx"
    report = export_model(ExportOptions(folder, file, size=None if square else INPUT_SIZE))
    assert report.metadata.size == ((SIDE, SIDE) if square else INPUT_SIZE)
    assert (report.metadata.licence, report.metadata.metadata.num_thing) == ("mit", 8)
    (difference,) = report.differences.values()
    assert difference.values is not None
    assert difference.values < 1e-3
    options = SURE if square else {**SURE, "shortest_size": INPUT_SIZE[0]}
    network = seamseg.load(folder, device="cpu", **options)
    # those of a square are padded
    sizes = [(128, 192), *([(150, 70), (20, 30)] if square else [])]
    for device in ("cpu", "openvino"):
        model = seamseg.load(file, device=device, **options)
        assert model.thresholds == network.thresholds
        for size in sizes:
            wanted, found = (m.predict(photo(*size)) for m in (network, model))
            assert wanted.segments
            assert (found.id_map == wanted.id_map).mean() >= 0.999
            assert [s.name for s in found.segments] == [s.name for s in wanted.segments]
            assert (found.prediction.semantic == wanted.prediction.semantic).mean() >= 0.999
            assert len(found.prediction.boxes) == len(wanted.prediction.boxes)


@pytest.mark.slow
def test_padding_is_masked(tmp_path: Path) -> None:
    folder, file = annealed("detr", tmp_path / "net"), tmp_path / "net.onnx"
    export_model(ExportOptions(folder, file, size=INPUT_SIZE))
    graph = onnx.load(file).graph
    assert {weight.name for weight in graph.initializer} <= {name for node in graph.node for name in node.input}
    opened = open_model(file, "cpu", None, None, InferenceOptions())
    run = opened.build(InferenceOptions())._session.run
    inputs = opened._exported.inputs(photo(INPUT_SIZE[0], 64))
    names = opened._session.outputs
    black = run(names, inputs)
    inputs["image"][..., 64:] = 255
    white = run(names, inputs)
    assert all(np.array_equal(a, b) for a, b in zip(black, white, strict=True))


def refusal(model: object, out: Path, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        export_model(ExportOptions(str(model), out, **options))
    assert "\n" not in str(error.value)
    assert not out.exists()
    return str(error.value)


def test_what_does_not_apply_is_refused(tmp_path: Path) -> None:
    folder, out = annealed("eomt", tmp_path / "net"), tmp_path / "net.onnx"
    for options in ({"dynamic": True}, {"part": "dense"}, {"int8": "data/city"}):
        ((name, value),) = options.items()
        wanted = f"`{name}={value}`: does not apply to {folder}, a network of transformers"
        assert refusal(folder, out, **options) == wanted
    assert refusal(folder, out, size=(64, 128)) == f"`size=64x128`: the input of {folder} is {SIDE} x {SIDE}"
    assert "`config` has no effect" in refusal(folder, out, config="a.ini")
    trained = save("eomt", tmp_path / "eomt")
    wanted = "cannot be exported: attn_mask_probs is not 0, the masked attention of its training is still on"
    assert refusal(trained, out) == f"{trained}: {wanted}"
    oneformer = save("oneformer", tmp_path / "oneformer")
    wanted = "cannot be exported: it has the operator _is_all_true, which ONNX lacks"
    assert refusal(oneformer, out) == f"{oneformer}: {wanted}"
    other = save("maskformer", tmp_path / "maskformer")
    near = f"`size=64x100`: height and width must be multiples of 32 for {other}"
    assert refusal(other, out, size=(64, 100)) == near


def test_what_is_refused_before_weights_are_read(tmp_path):
    folder, package, out = save("maskformer", tmp_path / "net"), tmp_path / "net.pt2", tmp_path / "net.onnx"
    (folder / "model.safetensors").unlink()
    assert "holds no weights" in refusal(folder, out)
    assert refusal(folder, package) == f"{package}: networks of transformers are exported to .onnx files only"
    detector = "torchvision:fasterrcnn_resnet50_fpn"
    assert refusal(detector, out) == f"{detector}: networks of torchvision are not exported"
