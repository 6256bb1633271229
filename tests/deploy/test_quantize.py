"""An int8 network computes nearly what the float one does, in integer kernels; anything else is refused."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.exported import SIZE, exported_net, picture
from support.micro import make_dataset
from support.networks import tiny_config

from seamseg.deploy import quantize
from seamseg.deploy.onnx import write_onnx
from seamseg.deploy.quantize import calibration_photos, executed_operators, quantise_file, select
from seamseg.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.formats.metadata import Metadata, read_metadata
from seamseg.inference import onnx_engines
from seamseg.utils.errors import InputError, SeamsegError

OLD = {"opset_imports": [helper.make_opsetid("", 17)], "ir_version": 9}
"""What the oldest supported ONNX Runtime reads."""
CLASSES = Metadata(2, 3, list("abcde"), [(0, 0, 0)] * 5, list(range(5)))


@pytest.fixture(scope="module")
def float_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("float") / "net.onnx"
    write_onnx(exported_net("panoptic", standard_ops=True), path, ExportedMetadata("panoptic", "", CLASSES, SIZE), SIZE)
    return path


@pytest.fixture(scope="module")
def sample():
    return {name: value.numpy() for name, value in zip(("image", "size"), picture())}


def run(model, inputs):
    settings = onnx_engines.onnxruntime_settings()
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, inputs)))


def model_of(nodes, given, made, **constants):
    """A model; `given` and `made` have the shapes of its inputs and outputs by name, of which two are integers."""
    inputs, outputs = (
        [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if name in ("sides", "count") else TensorProto.FLOAT, shape
            )
            for name, shape in values.items()
        ]
        for values in (given, made)
    )
    arrays = [
        numpy_helper.from_array(value.astype(np.float32) if value.dtype == np.float64 else value, name)
        for name, value in constants.items()
    ]
    return helper.make_model(helper.make_graph(nodes, "graph", inputs, outputs, arrays), **OLD)


@pytest.mark.parametrize(("readers", "slope"), [((), 0.25), (("Shape",), 0.25), (("Shape", "Relu"), None)])
def test_the_range_before_a_leaky_relu(readers, slope):
    """It is chosen for the values after the activation, unless others take them; a free size is measured, too."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], "conv"),
        helper.make_node("LeakyRelu", ["y"], ["z"], "activation", alpha=0.25),
        *(helper.make_node(kind, ["y"], [kind], kind) for kind in readers),
    ]
    shape = [1, 1, "h", "w"]
    model = model_of(nodes, {"x": shape}, {"z": shape}, w=np.ones((1, 1, 1, 1)))
    assert select(model).slopes["y"] == slope


@pytest.mark.parametrize("old_cpu", [False, True])
def test_layers_with_shared_weights(old_cpu, tmp_path, monkeypatch):
    """As those of the RPN head, which scores each level of the pyramid; also with the kernels for older CPUs."""
    if old_cpu:
        monkeypatch.setattr(onnx_engines, "_adds_int8_exactly", lambda: False)
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 8, 3, 3)), "b": rng.standard_normal(8)}
    nodes = [helper.make_node("Conv", [x, "w", "b"], [y], f"conv_{y}", pads=[1] * 4) for x, y in ("xy", "yz")]
    shape = (1, 8, 16, 16)
    model = model_of(nodes, {"x": shape}, {"z": shape}, **weights)
    sample = {"x": rng.standard_normal(shape).astype(np.float32)}
    paths = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    for path, made in zip(paths, (model, quantize.quantise(model, [sample]))):
        onnx.save(made, path)
    wanted, found = (run(path, sample)["z"] for path in paths)
    assert 0 < np.abs(wanted - found).max() < 0.1 * np.abs(wanted).max()


def test_the_shape_of_an_integer_map():
    """It is taken from the integers: nothing is converted to float for its shape alone."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1] * 4),
        helper.make_node("Shape", ["x"], ["sides"], "shape"),
    ]
    free = [1, 8, "h", "w"]
    model = model_of(nodes, {"x": free}, {"y": free, "sides": [4]}, w=rng.standard_normal((8, 8, 3, 3)))
    sample = {"x": rng.standard_normal((1, 8, 6, 16)).astype(np.float32)}
    made = quantize.quantise(model, [sample])
    types = {name: node.op_type for node in made.graph.node for name in node.output}
    (shape,) = [node for node in made.graph.node if node.op_type == "Shape"]
    assert types[shape.input[0]] == "QuantizeLinear"
    assert run(made.SerializeToString(), sample)["sides"].tolist() == [1, 8, 6, 16]


@pytest.mark.slow
def test_panoptic_network(float_file, sample, tmp_path):
    target = tmp_path / "int8.onnx"
    metadata = quantise_file(float_file, target, [sample])
    assert metadata.precision == "int8"
    assert metadata.extra["calibration_pictures"] == 1
    made = onnx.load(target)
    stored = {prop.key: prop.value for prop in made.metadata_props}
    assert ExportedMetadata.from_json(stored[METADATA_KEY], "file") == metadata

    operators = executed_operators(made)
    layers = len(select(onnx.load(float_file)).weighted)
    assert operators["QLinearConv"] + operators["QGemm"] == layers
    assert operators["ConvTranspose"] == 0
    assert operators["QLinearLeakyRelu"] > layers // 2
    assert {node.domain for node in made.graph.node} <= {"", "ai.onnx"}

    wanted, found = run(float_file, sample), run(target, sample)
    height, width = sample["size"]
    same = wanted["classmap"][:height, :width] == found["classmap"][:height, :width]
    assert same.mean() > 0.95
    best = [np.sort(values["scores"])[::-1][:5] for values in (wanted, found)]
    assert 0 < np.abs(best[0] - best[1]).max() < 0.1
    assert abs(int(found["count"]) - int(wanted["count"])) <= 3
    assert target.stat().st_size < 0.6 * float_file.stat().st_size


@pytest.mark.slow
def test_output_layers_stay_in_float(float_file):
    model = onnx.load(float_file)
    chosen = set(select(model).weighted)
    kept = [node.input[1] for node in model.graph.node if node.op_type in ("Conv", "Gemm") and node.name not in chosen]
    config = tiny_config("panoptic")
    assert Counter(".".join(name.split(".")[1:3]) for name in kept) == {
        "rpn_head.scores": config.rpn.fpn_levels,
        "sem_head.classifiers": config.sem.fpn_levels,
        "roi_head.roi_cls": 1,
        "roi_head.roi_bbx": 1,
    }
    everything = select(model, keep_float=()).weighted
    assert len(everything) == len(chosen) + len(kept)


@pytest.mark.slow
def test_semantic_network(sample, tmp_path):
    source, target = tmp_path / "net.onnx", tmp_path / "int8.onnx"
    write_onnx(
        exported_net("semantic", standard_ops=True), source, ExportedMetadata("semantic", "", CLASSES, SIZE), SIZE
    )
    quantise_file(source, target, [sample])
    operators = executed_operators(onnx.load(target))
    assert operators["QLinearConv"] > 10
    assert operators["Conv"] + operators["FusedConv"] <= 6  # the layers of the outputs
    wanted, found = run(source, sample), run(target, sample)
    assert {name: (v.shape, v.dtype) for name, v in found.items()} == {n: (v.shape, v.dtype) for n, v in wanted.items()}
    height, width = sample["size"]
    classes, probability = (
        [values[name][:height, :width].astype(int) for values in (wanted, found)]
        for name in ("classmap", "probability")
    )
    assert len(np.unique(classes[0])) > 1
    assert (classes[0] == classes[1]).mean() > 0.9
    assert 0 < np.abs(probability[0] - probability[1]).mean() < 8  # of 255


@pytest.mark.slow
def test_refused_networks(float_file, sample, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no image to calibrate with"):
        quantise_file(float_file, tmp_path / "int8.onnx", [])
    monkeypatch.setattr(quantize, "INT8_KERNELS", ("QGemm",))
    with pytest.raises(SeamsegError, match=r"computes 2 of \d+ quantised layers in int8"):
        quantise_file(float_file, tmp_path / "int8.onnx", [sample])
    assert not list(tmp_path.iterdir())


def test_network_without_layers(tmp_path):
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": [1]}, {"y": [1]})
    with pytest.raises(InputError, match="no convolution or linear layer"):
        quantize.quantise(model, [])


def test_rows_of_detections_are_those_of_the_mask_branch():
    """Of four rows two are detections; the proposals of the box branch are four, too, and all of them count."""
    nodes = [
        helper.make_node("Conv", ["features", "w"], ["of_boxes"]),
        helper.make_node("GlobalAveragePool", ["of_boxes"], ["boxes"]),
        helper.make_node("Conv", ["features", "w"], ["of_masks"]),
        helper.make_node("Add", ["of_masks", "boxes"], ["mask_logits"]),
        helper.make_node("Identity", ["two"], ["count"]),
    ]
    made = {"boxes": [4, 1, 1, 1], "mask_logits": [4, 1, 2, 2], "count": []}
    model = model_of(nodes, {"features": [4, 1, 2, 2]}, made, w=np.ones((1, 1, 1, 1)), two=np.array(2))
    features = np.ones((4, 1, 2, 2), np.float32)
    features[2:] = 100
    found = quantize.observe(model, ["features", "of_boxes", "of_masks"], [{"features": features}])
    assert {name: float(histogram.counts.sum()) for name, histogram in found.items()} == {
        "features": 16,
        "of_boxes": 16,
        "of_masks": 8,
    }


@pytest.mark.parametrize("activation", [True, False])
def test_transposed_convolution_becomes_a_plain_one(activation):
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(3, 4, 2, 2)), "b": rng.normal(size=4)}
    nodes = [helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], "up", strides=[2, 2], kernel_shape=[2, 2])]
    if activation:
        nodes.append(helper.make_node("LeakyRelu", ["y"], ["z"], alpha=0.1))
    model = model_of(nodes, {"x": [2, 3, 5, 6]}, {"z" if activation else "y": [2, 4, 10, 12]}, **arrays)
    sample = {"x": rng.normal(size=(2, 3, 5, 6)).astype(np.float32)}
    before = run(model.SerializeToString(), sample)
    quantize.replace_upsampling(model)
    onnx.checker.check_model(model, full_check=True)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds == (["Conv", "LeakyRelu", "DepthToSpace"] if activation else ["Conv", "DepthToSpace"])
    for name, value in run(model.SerializeToString(), sample).items():
        np.testing.assert_allclose(value, before[name], atol=1e-5)


def test_calibration_photos(tmp_path):
    data = make_dataset(tmp_path / "data", [1, 0, 2, 0, 1], [1])
    metadata = read_metadata(data / "metadata.bin")
    names = [path.stem for path in calibration_photos(data, metadata, "train", 3)]
    assert names == ["train0", "train2", "train4"]
    assert len(calibration_photos(data, metadata, "train", 64)) == 5
    assert len(calibration_photos(data, metadata, None, 64)) == 6
    with pytest.raises(InputError, match="`calibrate=0`: calibrate with at least one image"):
        calibration_photos(data, metadata, "train", 0)
    with pytest.raises(InputError, match="was trained on 2 and 3"):
        calibration_photos(data, CLASSES, "train", 1)
    with pytest.raises(InputError, match="no such data set folder"):
        calibration_photos(tmp_path / "none", metadata, "train", 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--calibrate", "3"], "--calibrate is the number of images of --int8"),
        (["--int8", "data", "--precision", "bf16"], "--int8 data and --precision bf16 exclude each other"),
        (["--int8", "none"], "none: no such data set folder"),
        (["--int8", "data", "--calibrate", "0"], "--calibrate 0: calibrate with at least one image"),
    ],
)
def test_refused_command_lines(words, message, narrow, micro, micro_run, seamseg_main, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(micro)
    assert seamseg_main("export", micro_run, "int8.onnx", *words) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert message in line
    assert not (tmp_path / "int8.onnx").exists()


@pytest.mark.slow
def test_command(narrow, micro, micro_run, seamseg_main, tmp_path, capsys):
    """Exports, compares and scores; the scores of the file are near those of the network."""
    target = tmp_path / "int8.onnx"
    options = ("--size", "96x96", "--int8", micro, "--calibrate", "3", "--data", micro)
    assert seamseg_main("export", micro_run, target, *options) == 0
    table = capsys.readouterr().out
    assert "96 x 96 (height x width), int8" in table
    network, file = (scores(table, f"scores, {name}") for name in ("network", "file"))
    assert network["mIoU"] > 20
    assert network.keys() == file.keys()
    assert max(abs(network[name] - file[name]) for name in network) > 0
    assert abs(network["mIoU"] - file["mIoU"]) < 5
    assert seamseg_main("evaluate", target, micro) == 0
    assert f"{file['mIoU']:.2f}" in capsys.readouterr().out


def scores(table, name):
    """The numbers of a line of the table by name."""
    (line,) = [line for line in table.splitlines() if line.startswith(name)]
    words = line.removeprefix(name).split()
    return dict(zip(words[::2], map(float, words[1::2])))
