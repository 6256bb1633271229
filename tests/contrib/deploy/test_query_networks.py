"""Networks of transformers in ONNX files: the maps of the network, made by the runtime from classes and masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.tiny_transformers import SIDE, photo, save

import seamseg
from seamseg.contrib.deploy.export import export_model
from seamseg.contrib.deploy.options import ExportOptions
from seamseg.contrib.exported.network import open_exported
from seamseg.inference.options import InferenceOptions
from seamseg.utils.errors import InputError

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
    square = family.startswith("eomt")
    folder, file = annealed(family, tmp_path / "net"), tmp_path / "net.onnx"
    report = export_model(ExportOptions(folder, file, size=None if square else SIZE))
    assert report.metadata.size == ((SIDE, SIDE) if square else SIZE)
    assert (report.metadata.licence, report.metadata.metadata.num_thing) == ("mit", 8)
    (difference,) = report.differences.values()
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
