"""Networks of transformers in ONNX files: the maps of the network, made by the runtime from classes and masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from PIL import Image
from support.micro import micro, seamseg_main
from support.serving import png, serving
from support.tiny_transformers import CITYSCAPES, SIDE, build, save

import seamseg
from seamseg.deploy.compare import compare
from seamseg.deploy.export import ExportOptions, export_model
from seamseg.deploy.onnx import _gather_from_lines
from seamseg.formats.metadata import read_metadata
from seamseg.inference.exported import ExportedModel
from seamseg.inference.options import InferenceOptions
from seamseg.inference.queries import prediction_of_queries
from seamseg.utils.errors import InputError

__all__ = ["micro", "seamseg_main"]
pytest.importorskip("transformers")
SIZE = (64, 96)
EXPORTED = ("mask2former", "maskformer", "eomt", "eomt_dinov3", "detr")
SURE = {"score_threshold": 0.1}


def annealed(family: str, folder: Path, **options: Any) -> Path:
    """Write a network as at the end of its training, without masked attention, with a model card."""
    net = build(family, **options)
    if family.startswith("eomt"):
        net.attn_mask_probs.zero_()
    net.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A network\n")
    return folder


def photo(height: int, width: int) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return np.array(Image.fromarray(values).resize((width, height)))


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPORTED)
def test_maps_are_those_of_the_network(tmp_path: Path, family: str) -> None:
    """In both engines, at the size of the photo, which the input of the network shows as a whole."""
    square = family.startswith("eomt")
    folder, file = annealed(family, tmp_path / "net"), tmp_path / "net.onnx"
    report = export_model(folder, file, ExportOptions(None if square else SIZE))
    assert report.metadata.size == ((SIDE, SIDE) if square else SIZE)
    assert (report.metadata.licence, report.metadata.metadata.num_thing) == ("mit", 8)
    (difference,) = report.differences.values()
    assert difference.equal_pixels is not None
    assert difference.equal_pixels > 0.999
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
    """What the padding contains does not matter; DETR attends to the photo only."""
    folder, file = annealed("detr", tmp_path / "net"), tmp_path / "net.onnx"
    export_model(folder, file, ExportOptions(SIZE))
    opened = ExportedModel(file, "cpu", None, None, InferenceOptions())
    run = opened.build(InferenceOptions())._session.run
    inputs = opened._exported.inputs(photo(SIZE[0], 64))
    names = opened._exported.outputs
    black = run(names, inputs)
    inputs["image"][..., 64:] = 255
    white = run(names, inputs)
    assert all(np.array_equal(a, b) for a, b in zip(black, white, strict=True))


@pytest.mark.slow
def test_columns_that_are_no_class_count_as_no_object(tmp_path: Path) -> None:
    names = [*CITYSCAPES[:5], "N/A", *CITYSCAPES[5:]]
    folder, file = annealed("eomt", tmp_path / "net", names=names), tmp_path / "net.onnx"
    columns = export_model(folder, file).metadata.columns
    assert columns is not None
    assert sorted(columns) == list(range(19))
    wanted, found = (seamseg.load(path, device="cpu", **SURE).raw([photo(SIDE, SIDE)])[0] for path in (folder, file))
    np.testing.assert_allclose(found.queries.scores, wanted.queries.scores, atol=1e-4)


@pytest.mark.slow
def test_commands_take_the_file(
    tmp_path: Path, micro: Path, seamseg_main: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """`export`, `predict`, `evaluate` and `serve`, of classes of one's own."""
    classes = read_metadata(micro / "metadata.bin")
    folder = annealed("eomt", tmp_path / "net", names=classes.categories[::-1])
    file, meta = tmp_path / "net.onnx", micro / "metadata.bin"
    assert seamseg_main("export", folder, file, "--meta", meta, "--licence", "CC0", "--quiet") == 0
    printed = capsys.readouterr().out
    assert f"network            panoptic, part all, input {SIDE} x {SIDE} (height x width), fp32" in printed
    words = ("--score-threshold", "0.1", "--quiet")
    assert seamseg_main("evaluate", file, micro, "--split", "val", *words) == 0
    of_file = capsys.readouterr().out
    assert seamseg_main("evaluate", folder, micro, "--split", "val", "--device", "cpu", "--meta", meta, *words) == 0
    assert of_file.splitlines()[0] == capsys.readouterr().out.splitlines()[0]
    Image.fromarray(photo(100, 150)).save(tmp_path / "a.png")
    assert seamseg_main("predict", file, tmp_path / "a.png", tmp_path / "out", "--format", "coco", *words) == 0
    assert (tmp_path / "out" / "panoptic" / "a.png").exists()
    with serving(seamseg.load(file, **SURE)) as client:
        assert client.predict(png(photo(40, 60))).status == 200


def refusal(model: object, out: Path, **options: Any) -> str:
    with pytest.raises(InputError) as error:
        export_model(str(model), out, ExportOptions(**options))
    assert "\n" not in str(error.value)
    assert not out.exists()
    return str(error.value)


def test_what_does_not_apply_is_refused(tmp_path: Path) -> None:
    folder, out = annealed("eomt", tmp_path / "net"), tmp_path / "net.onnx"
    for options in ({"dynamic": True}, {"part": "dense"}, {"int8": "data/city"}):
        ((name, value),) = options.items()
        wanted = f"`{name}={value}`: does not apply to {folder}, which is no network of seamseg"
        assert refusal(folder, out, **options) == wanted
    assert refusal(folder, out, size=(64, 128)) == f"`size=64x128`: the input of {folder} is {SIDE} x {SIDE}"
    package = tmp_path / "net.pt2"
    assert refusal(folder, package) == f"{package}: networks of transformers are exported to .onnx files only"
    assert "`config` has no effect" in refusal(folder, out, config="a.ini")
    other = save("maskformer", tmp_path / "other")
    near = f"`size=64x100`: height and width must be multiples of 32 for {other}; near are 64x96 and 64x128"
    assert refusal(other, out, size=(64, 100)) == near
    assert "networks of torchvision are not exported" in refusal("torchvision:fasterrcnn_resnet50_fpn", out)


def test_networks_that_cannot_be_exported(tmp_path: Path) -> None:
    out = tmp_path / "net.onnx"
    trained = save("eomt", tmp_path / "eomt")
    wanted = "cannot be exported: attn_mask_probs is not 0, the masked attention of its training is still on"
    assert refusal(trained, out) == f"{trained}: {wanted}"
    oneformer = save("oneformer", tmp_path / "oneformer")
    wanted = "cannot be exported: it has the operator _is_all_true, which ONNX lacks"
    assert refusal(oneformer, out) == f"{oneformer}: {wanted}"


def test_constant_indices_are_gathered_from_a_line() -> None:
    """As of the padding of DETR: a file with GatherND of many indices would be refused."""
    index = np.random.default_rng(0).integers(0, 3, (2, 1100, 2))
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("GatherND", ["y", "index"], ["found"])],
        "graph",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (3, 4))],
        [helper.make_tensor_value_info("found", onnx.TensorProto.FLOAT, (2, 1100))],
        [onnx.numpy_helper.from_array(index, "index")],
        value_info=[helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (3, 4))],
    )
    _gather_from_lines(graph)
    assert [node.op_type for node in graph.node] == ["Neg", "Reshape", "Gather"]
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (found,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(found, -x[index[..., 0], index[..., 1]])


def test_comparison() -> None:
    """Of the class map within the photo, and of all values."""
    generator = np.random.default_rng(0)
    outputs = {
        "class_logits": generator.normal(0, 3, (4, 6)).astype(np.float32),
        "mask_logits": generator.normal(0, 3, (4, 8, 12)).astype(np.float32),
    }
    inputs = {"image": np.zeros((1, 3, 32, 48), np.uint8), "size": np.array([24, 48])}
    same = compare(outputs, outputs, inputs)
    assert (same.equal_pixels, same.values) == (1.0, 0.0)
    assert str(same) == "classes of 100 % of pixels equal, values 0 of the largest"
    changed = {**outputs, "mask_logits": outputs["mask_logits"][::-1]}
    maps = [
        prediction_of_queries(o["class_logits"], o["mask_logits"], (24, 48), (32, 48), np.arange(5), 5).semantic
        for o in (outputs, changed)
    ]
    found = compare(outputs, changed, inputs)
    assert found.equal_pixels == np.mean(maps[0] == maps[1])
    assert found.values is not None
    assert found.values > 0.1
