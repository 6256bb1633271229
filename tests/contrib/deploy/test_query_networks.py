"""Networks of transformers in ONNX files: the maps of the network, made by the runtime from classes and masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.micro import micro, seamseg_main
from support.tiny_transformers import SIDE, photo, save

import seamseg
from seamseg.contrib.deploy.compare import compare
from seamseg.contrib.deploy.export import export_model
from seamseg.contrib.deploy.options import ExportOptions
from seamseg.contrib.exported.network import open_exported
from seamseg.inference.options import InferenceOptions
from seamseg.maps.formats.exported import ExportedMetadata
from seamseg.maps.formats.metadata import Metadata
from seamseg.utils.errors import InputError

__all__ = ["micro", "seamseg_main"]
pytest.importorskip("transformers")
SIZE = (64, 96)
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
    """In both engines, at the size of the image, which the input of the network shows as a whole."""
    square = family.startswith("eomt")
    folder, file = annealed(family, tmp_path / "net"), tmp_path / "net.onnx"
    report = export_model(ExportOptions(folder, file, size=None if square else SIZE))
    assert report.metadata.size == ((SIDE, SIDE) if square else SIZE)
    assert (report.metadata.licence, report.metadata.metadata.num_thing) == ("mit", 8)
    (difference,) = report.differences.values()
    assert min(difference.equal_pixels or 0, difference.equal_segments or 0) > 0.999
    assert difference.values is not None
    assert difference.values < 1e-3
    options = SURE if square else {**SURE, "shortest_size": SIZE[0]}
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
    """What the padding contains does not matter; DETR attends to the image only."""
    folder, file = annealed("detr", tmp_path / "net"), tmp_path / "net.onnx"
    export_model(ExportOptions(folder, file, size=SIZE))
    graph = onnx.load(file).graph
    assert {weight.name for weight in graph.initializer} <= {name for node in graph.node for name in node.input}
    opened = open_exported(file, "cpu", None, None, InferenceOptions())
    run = opened.build(InferenceOptions())._session.run
    inputs = opened._exported.inputs(photo(SIZE[0], 64))
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


def test_refused_before_weights_are_read(tmp_path: Path) -> None:
    folder, package, out = save("maskformer", tmp_path / "net"), tmp_path / "net.pt2", tmp_path / "net.onnx"
    (folder / "model.safetensors").unlink()
    assert "holds no weights" in refusal(folder, out)
    assert refusal(folder, package) == f"{package}: networks of transformers are exported to .onnx files only"
    detector = "torchvision:fasterrcnn_resnet50_fpn"
    assert refusal(detector, out) == f"{detector}: networks of torchvision are not exported"


def test_networks_that_cannot_be_exported(tmp_path: Path) -> None:
    out = tmp_path / "net.onnx"
    trained = save("eomt", tmp_path / "eomt")
    wanted = "cannot be exported: attn_mask_probs is not 0, the masked attention of its training is still on"
    assert refusal(trained, out) == f"{trained}: {wanted}"
    oneformer = save("oneformer", tmp_path / "oneformer")
    wanted = "cannot be exported: it has the operator _is_all_true, which ONNX lacks"
    assert refusal(oneformer, out) == f"{oneformer}: {wanted}"
    other = save("maskformer", tmp_path / "maskformer")
    near = f"`size=64x100`: height and width must be multiples of 32 for {other}; near are 64x96 and 64x128"
    assert refusal(other, out, size=(64, 100)) == near


def exported(num_stuff: int) -> ExportedMetadata:
    """What a file of a network of five classes states, which are in order."""
    classes = Metadata(num_stuff, 5 - num_stuff, list("abcde"), [(i, i, i) for i in range(5)], [*range(5)])
    thresholds = {"score_threshold": 0.8, "overlap_threshold": 0.8, "min_stuff_area": 0}
    return ExportedMetadata("panoptic", "", classes, (32, 48), thresholds=thresholds, query_classes=(0, 1, 2, 3, 4))


INPUTS = {"image": np.zeros((1, 3, 32, 48), np.uint8), "size": np.array([24, 48])}


def test_comparison() -> None:
    """Of the class map within the image, and of all values."""
    generator = np.random.default_rng(0)
    outputs = {
        "class_logits": generator.normal(0, 3, (4, 6)).astype(np.float32),
        "mask_logits": generator.normal(0, 3, (4, 8, 12)).astype(np.float32),
    }
    same = compare(outputs, outputs, INPUTS, exported(5))
    assert (same.equal_pixels, same.equal_segments, same.values) == (1.0, 1.0, 0.0)
    assert str(same) == "classes of 100 % of pixels equal, segments of 100 %, values 0 of the largest"
    changed = compare(outputs, {**outputs, "mask_logits": outputs["mask_logits"][::-1]}, INPUTS, exported(5))
    assert changed.values is not None
    assert changed.values > 0.1


def halves(*queries: tuple[int, float, int]) -> dict[str, np.ndarray]:
    """Outputs with a class, its probability, and a half of the picture (0 or 1) by query."""
    class_logits = np.full((len(queries), 6), -30, np.float32)
    mask_logits = np.full((len(queries), 8, 12), -9, np.float32)
    for row, (category, probability, half) in enumerate(queries):
        class_logits[row, [category, 5]] = np.log([probability, 1 - probability])
        mask_logits[row, :, 6 * half : 6 * half + 6] = 9
    return {"class_logits": class_logits, "mask_logits": mask_logits}


ONE = ((3, 0.9, 0), (4, 0.99, 1))


@pytest.mark.parametrize(
    ("wanted", "found", "classes", "segments"),
    [
        (ONE, ONE[::-1], 1.0, 1.0),  # the order does not matter
        (ONE, ((3, 0.99, 0), (4, 0.75, 1)), 1.0, 0.5),  # the second is too unsure
        (ONE, ((3, 0.9, 0), (2, 0.99, 1)), 0.5, 0.5),
        (ONE, ((3, 0.75, 0), (2, 0.75, 1)), 0.5, 0.0),
        (((3, 0.99, 0), (4, 0.75, 1)), ((3, 0.75, 0), (4, 0.99, 1)), 1.0, 0.0),  # swapped scores
    ],
)
def test_comparison_of_panoptic_maps(wanted: Any, found: Any, classes: float, segments: float) -> None:
    difference = compare(halves(*wanted), halves(*found), INPUTS, exported(2))
    assert (difference.equal_pixels, difference.equal_segments) == (classes, segments)


def test_objects_of_one_class_that_are_one_in_the_file() -> None:
    wanted, found = halves((3, 0.9, 0), (3, 0.9, 1)), halves((3, 0.9, 0), (3, 0.9, 0))
    found["mask_logits"][:] = 9
    difference = compare(wanted, found, INPUTS, exported(2))
    assert (difference.equal_pixels, difference.equal_segments) == (1.0, 0.0)
