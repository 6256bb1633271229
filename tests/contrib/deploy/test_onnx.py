"""ONNX files: standard operators only, and the outputs of the eager network in ONNX Runtime and OpenVINO."""

import re
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from support.exported import DETECTORS, MEAN, SIZE, STD, assert_same, detector, eager, exported_net, picture
from support.golden_files import tensor

from seamseg.contrib.deploy.export import compare
from seamseg.contrib.deploy.network import export_net
from seamseg.contrib.deploy.onnx import write_onnx
from seamseg.contrib.exported.onnx_engines import openvino_core
from seamseg.maps.formats.exported import MAX_SIDE, METADATA_KEY, ExportedMetadata
from seamseg.maps.formats.metadata import Metadata
from seamseg.models.folding import fold_abn
from seamseg.ops.nms import nms
from seamseg.utils.errors import SeamsegError

CLASSES = Metadata(2, 3, list("abcde"), [(0, 0, 0)] * 5, [0] * 5)
ENGINES = ("onnxruntime", "openvino")


def metadata(kind, size=SIZE, **options):
    return ExportedMetadata(kind, "", CLASSES, size, **options)


def write(folder, kind, net=None, size=SIZE, example=SIZE, **options):
    net = net or exported_net(kind, standard_ops=True)
    path = folder / f"{kind}.onnx"
    write_onnx(net, path, metadata(kind, size, **options), example)
    return path, net


def run(engine, path, inputs):
    if engine == "onnxruntime":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        values = session.run(names, inputs)
    else:
        compiled = openvino_core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        results = compiled(inputs)
        names, values = [output.any_name for output in compiled.outputs], [results[o] for o in compiled.outputs]
    return {name: torch.from_numpy(np.array(value)) for name, value in zip(names, values, strict=True)}


def check(engine, path, net, image, size):
    found = run(engine, path, {"image": image.numpy(), "size": size.numpy()})
    assert tuple(found) == net.output_names
    assert_same(found, eager(net, image, size))
    return int(found.get("count", 0))


@pytest.fixture(scope="module")
def panoptic(tmp_path_factory):
    return write(tmp_path_factory.mktemp("onnx"), "panoptic", licence="CC0")


@pytest.mark.parametrize("engine", ["onnxruntime", pytest.param("openvino", marks=pytest.mark.slow)])
def test_pictures_of_any_size_and_without_detections(panoptic, engine):
    path, net = panoptic
    assert check(engine, path, net, *picture()) > 2
    assert check(engine, path, net, *picture(valid=(77, 160))) > 0
    # nothing survives in a picture of one pixel
    assert check(engine, path, net, *picture(valid=(1, 1))) == 0


def test_the_file_is_one_standard_graph_with_metadata(panoptic):
    path, _ = panoptic
    model = onnx.load(path, load_external_data=False)
    assert [(i.domain, i.version) for i in model.opset_import] == [("", 20)]
    assert {node.domain for node in model.graph.node} == {""}
    assert not model.functions
    assert not any(onnx.external_data_helper.uses_external_data(tensor) for tensor in model.graph.initializer)
    onnx.checker.check_model(str(path), full_check=True)
    assert list(path.parent.iterdir()) == [path]
    sizes = [{a.name: a.i for a in n.attribute if a.i} for n in model.graph.node if n.op_type == "RoiAlign"]
    # box branch: 2 x 2 samples a cell are averaged at once; mask branch: one sample each
    assert {(a["output_height"], a["sampling_ratio"]) for a in sizes} == {(4, 2), (8, 1)}
    stored = {entry.key: entry.value for entry in model.metadata_props}
    assert ExportedMetadata.from_json(stored[METADATA_KEY], "") == metadata("panoptic", licence="CC0")
    assert [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input] == [[1, 3, *SIZE], [2]]
    shapes = {o.name: [d.dim_value for d in o.type.tensor_type.shape.dim] for o in model.graph.output}
    rows = {"boxes": [20, 4], "classes": [20], "scores": [20], "mask_logits": [20, 16, 16]}
    assert shapes == {**rows, "count": [], "classmap": list(SIZE)}
    # no trace of the machine is left
    assert not re.search(rb"/seamseg/|site-packages", path.read_bytes())


def test_failures_of_the_exporter(panoptic, tmp_path, monkeypatch):
    path, net = panoptic
    target = tmp_path / "a.onnx"
    target.write_text("mine")
    made = type("Made", (), {"model_proto": onnx.load(path)})
    monkeypatch.setattr("seamseg.contrib.deploy.onnx.trace", lambda *_: None)
    monkeypatch.setattr(torch.onnx, "export", mock.Mock(side_effect=[ValueError("of the tool,\nin lines"), made]))
    with pytest.raises(SeamsegError) as caught:
        write_onnx(net, target, metadata("panoptic"), SIZE)
    reason = "this network cannot be exported to ONNX (ValueError: of the tool, in lines)"
    assert str(caught.value) == f"{target}: {reason}"
    monkeypatch.setattr("seamseg.contrib.deploy.onnx._MAX_BYTES", 1000)
    with pytest.raises(SeamsegError, match="an ONNX file can have 2 GiB"):
        write_onnx(net, target, metadata("panoptic"), SIZE)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


class Suppression(torch.nn.Module):
    """NMS alone, as the networks use it."""

    def forward(self, boxes, scores):
        return torch.ops.seamseg_deploy.nms(boxes, scores, 0.5, 6)


def test_suppression_at_the_threshold_and_of_equal_scores(tmp_path):
    from seamseg.contrib.deploy.onnx import translations

    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 8], [8, 8, 9, 9], [20, 20, 24, 24], [20, 20, 24, 24], [0, 0, 0, 0]])
    scores = torch.tensor([0.5, 0.5, 0.9, 0.7, 0.7, 0.5])
    program = torch.export.export(Suppression(), (boxes[None], scores[None]))
    made = torch.onnx.export(program, custom_translation_table=translations(), external_data=False, verbose=False)
    path = tmp_path / "nms.onnx"
    path.write_bytes(made.model_proto.SerializeToString())
    names = [i.name for i in made.model_proto.graph.input]
    wanted = nms(boxes, scores, 0.5).tolist()
    assert wanted == [2, 3, 0, 5]
    for engine in ENGINES:
        kept, count = run(engine, path, dict(zip(names, (boxes[None].numpy(), scores[None].numpy())))).values()
        assert kept.tolist() == [*wanted, -1, -1]
        assert count == 4
    nothing = dict(zip(names, (boxes[None].numpy(), np.full((1, 6), -np.inf, np.float32))))
    kept, count = run("onnxruntime", path, nothing).values()
    assert (kept.tolist(), count) == ([-1] * 6, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*DETECTORS[1:], "semantic"])
def test_other_kinds(kind, tmp_path):
    path, net = write(tmp_path, kind)
    for engine in ENGINES:
        check(engine, path, net, *picture())
        check(engine, path, net, *picture(valid=(1, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["panoptic", "semantic"])
def test_free_size(kind, tmp_path):
    options = {"size": None, "example": (128, 192), "multiple": 64, "sides": (64, MAX_SIDE)}
    path, net = write(tmp_path, kind, **options)
    for engine in ENGINES:
        check(engine, path, net, *picture((64, 64), (64, 64)))
        check(engine, path, net, *picture((64, 256), (50, 199)))
        check(engine, path, net, *picture((384, 512), (384, 450)))


@pytest.mark.slow
def test_odd_regions(tmp_path):
    net = export_net(detector("panoptic", "roi.roi_size=(7, 7)"), MEAN, STD, standard_ops=True)
    path, _ = write(tmp_path, "panoptic", net)
    for engine in ENGINES:
        assert check(engine, path, net, *picture()) > 2
    shapes = {o.name: [d.dim_value for d in o.type.tensor_type.shape.dim] for o in onnx.load(path).graph.output}
    assert shapes["mask_logits"] == [20, 14, 14]


@pytest.mark.slow
def test_the_golden_network(golden_net, cityscapes, tmp_path):
    """ResNet-50 at a real size. Its scores differ by up to 2e-4 between convolution libraries, here as elsewhere."""
    mean, std = cityscapes.dataloader.rgb_mean, cityscapes.dataloader.rgb_std
    padded_size = (288, 416)
    net = export_net(fold_abn(golden_net), mean, std, standard_ops=True)
    path, _ = write(tmp_path, "panoptic", net, padded_size, padded_size)
    pixels = tensor("inputs", "flower_resized_u8").permute(2, 0, 1)
    height, width = pixels.shape[1:]
    image = torch.full((1, 3, *padded_size), 77, dtype=torch.uint8)
    image[0, :, :height, :width] = pixels
    size = torch.tensor((height, width))
    wanted = {name: value.numpy() for name, value in eager(net, image, size, mean, std).items()}
    inputs = {"image": image.numpy(), "size": size.numpy()}
    for engine in ENGINES:
        found = {name: value.numpy() for name, value in run(engine, path, inputs).items()}
        differences = compare(wanted, found, inputs)
        count = len(wanted["boxes"])
        assert differences.detections == (count, count, count)
        assert count > 50
        assert differences.box < 0.02
        assert differences.score < 5e-4
        assert differences.equal_pixels >= 0.9999
