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

import seamseg
from seamseg.contrib.deploy import quantize
from seamseg.contrib.deploy.export import calibration_images
from seamseg.contrib.deploy.onnx import write_onnx
from seamseg.contrib.deploy.quantize import Histogram, quantise_file, select
from seamseg.contrib.exported import onnx_engines
from seamseg.maps.formats.exported import METADATA_KEY, ExportedMetadata
from seamseg.maps.formats.metadata import Metadata, read_metadata
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


@pytest.mark.parametrize("old_cpu", [False, True])
def test_layers_with_shared_weights(old_cpu, tmp_path, monkeypatch):
    """As those of the RPN head, which scores each level of the pyramid; also with the kernels for older CPUs."""
    if old_cpu:
        monkeypatch.setattr(onnx_engines, "_adds_int8_exactly", lambda: False)
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 8, 3, 3)), "b": rng.standard_normal(8)}
    nodes = [helper.make_node("Conv", [x, "w", "b"], [y], f"conv_{y}", pads=[1] * 4) for x, y in ("xy", "yz")]
    nodes.append(helper.make_node("Shape", ["x"], ["sides"], "shape"))
    nodes += [helper.make_node("LeakyRelu", ["z"], ["leaky"], alpha=0.1), helper.make_node("Sigmoid", ["z"], ["s"])]
    free = [1, 8, "h", "w"]
    model = model_of(nodes, {"x": free}, {"z": free, "sides": [4]}, **weights)
    assert select(model).slopes["z"] is None, "other nodes take the values themselves"
    sample = {"x": rng.standard_normal((1, 8, 6, 16)).astype(np.float32)}
    paths = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    made = quantize.quantise(model, [sample])
    for path, one in zip(paths, (model, made)):
        onnx.save(one, path)
    wanted, found = (run(path, sample) for path in paths)
    assert 0 < np.abs(wanted["z"] - found["z"]).max() < 0.1 * np.abs(wanted["z"]).max()
    # nothing is converted to float for its shape alone
    types = {name: node.op_type for node in made.graph.node for name in node.output}
    (shape,) = [node for node in made.graph.node if node.op_type == "Shape"]
    assert types[shape.input[0]] == "QuantizeLinear"
    assert found["sides"].tolist() == [1, 8, 6, 16]


def executed_operators(model, folder):
    settings = onnx_engines.onnxruntime_settings()
    settings.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), settings, ["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(settings.optimized_model_filepath).graph.node)


@pytest.mark.slow
def test_panoptic_network(float_file, sample, tmp_path):
    target = tmp_path / "int8.onnx"
    metadata = quantise_file(float_file, target, [sample])
    assert metadata.precision == "int8"
    made = onnx.load(target)
    stored = {prop.key: prop.value for prop in made.metadata_props}
    assert ExportedMetadata.from_json(stored[METADATA_KEY], "file") == metadata

    operators, model = executed_operators(made, tmp_path), onnx.load(float_file)
    chosen, config = set(select(model).weighted), tiny_config("panoptic")
    layers = len(chosen)
    kept = [node.input[1] for node in model.graph.node if node.op_type in ("Conv", "Gemm") and node.name not in chosen]
    assert Counter(".".join(name.split(".")[1:3]) for name in kept) == {
        "rpn_head.conv_obj": config.rpn.fpn_levels,
        "rpn_head.conv_bbx": config.rpn.fpn_levels,
        "": config.sem.fpn_levels,  # each a part of one weight
        "roi_head.roi_cls": 1,
        "roi_head.roi_bbx": 1,
    }
    assert operators["QLinearConv"] + operators["QGemm"] == layers + 1, "the enlarged masks are a convolution, too"
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
    counted = {name: float(histogram.counts.sum()) for name, histogram in found.items()}
    assert counted == {"features": 16, "of_boxes": 16, "of_masks": 8}


def test_transposed_convolution_becomes_a_plain_one():
    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(3, 4, 2, 2)), "b": rng.normal(size=4)}
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], "up", strides=[2, 2], kernel_shape=[2, 2]),
        helper.make_node("LeakyRelu", ["y"], ["z"], alpha=0.1),
    ]
    model = onnx.shape_inference.infer_shapes(model_of(nodes, {"x": [2, 3, 5, 6]}, {"z": [2, 4, 10, 12]}, **arrays))
    sample = {"x": rng.normal(size=(2, 3, 5, 6)).astype(np.float32)}
    before = run(model.SerializeToString(), sample)
    quantize.replace_upsampling(model)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Conv", "LeakyRelu", "DepthToSpace"]
    assert select(model).slopes == {"x": None, "y": pytest.approx(0.1), "up_cells": None}
    for name, value in run(model.SerializeToString(), sample).items():
        np.testing.assert_allclose(value, before[name], atol=1e-5)


def test_calibration_images_and_what_is_not_calibrated(tmp_path):
    data = make_dataset(tmp_path / "data", [1, 0, 2, 0, 1], [1])
    metadata = read_metadata(data / "metadata.bin")
    names = [path.stem for path in calibration_images(data, metadata, "train", 3)]
    assert names == ["train0", "train2", "train4"]
    assert len(calibration_images(data, metadata, "train", 64)) == 5
    assert len(calibration_images(data, metadata, None, 64)) == 6
    with pytest.raises(InputError, match="`calibrate=0`: calibrate with at least one image"):
        calibration_images(data, metadata, "train", 0)
    with pytest.raises(InputError, match="was trained on 2 and 3"):
        calibration_images(data, CLASSES, "train", 1)
    without_layers = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": [1]}, {"y": [1]})
    with pytest.raises(InputError, match="no convolution or linear layer"):
        quantize.quantise(without_layers, [])


@pytest.mark.slow
def test_command(narrow, micro, micro_run, seamseg_main, tmp_path, capsys):
    target = tmp_path / "int8.onnx"
    assert seamseg_main("export", micro_run, target, "--size", "96x96", "--int8", micro, "--calibrate", "3") == 0
    assert "96 x 96 (height x width), int8" in capsys.readouterr().out
    network, file = (100 * seamseg.evaluate(model, micro, quiet=True).mIoU for model in (micro_run, target))
    assert network > 20
    assert 0 < abs(network - file) < 5


def test_histogram_of_growing_values():
    values = np.random.default_rng(0).normal(size=4000).astype(np.float32)
    values *= np.repeat([0.01, 1, 30, 5], 1000).astype(np.float32)
    parts = Histogram()
    for part in np.split(values, 4):
        parts.add(part)
    assert (parts.low, parts.high) == (values.min(), values.max())
    assert parts.limit > 16 * np.abs(values[:1000]).max()  # the interval was doubled
    # the same bins as if the last interval had been the first; float32 moves values at the edges of bins
    wanted, _ = np.histogram(values, len(parts.counts), (-parts.limit, parts.limit))
    assert parts.counts.sum() == 4000
    assert np.abs(np.cumsum(parts.counts - wanted)).max() <= 5
    with pytest.raises(SeamsegError, match="not finite"):
        parts.add(np.float32([1, np.nan]))


def rounding_error(values, low, high, slope):
    """Mean square error of the activated values in 256 levels from low to high, one of which is 0."""
    step = (high - low) / 255
    zero = np.rint(-low / step)
    levels = (np.arange(256) - zero) * step
    rounded = levels[np.clip(np.rint(values / step) + zero, 0, 255).astype(int)]
    both = [np.where(x < 0, slope * x, x) for x in (values, rounded)]
    return np.mean((both[0] - both[1]) ** 2)


@pytest.mark.parametrize("slope", [None, 0.01])
@pytest.mark.parametrize("seed", range(3))
def test_ends_of_a_range_have_the_least_error(slope, seed):
    """Each among those tried, given the other one, which is chosen after it."""
    values = np.float32([*np.random.default_rng(seed).normal(size=100_000), 12 + seed, -15])
    histogram = Histogram()
    histogram.add(values)
    low, high = histogram.best_range(slope)
    parts = np.linspace(0.04, 1, 25)
    assert np.abs(parts * values.min() - low).min() < 1e-6
    assert np.abs(parts * values.max() - high).min() < 1e-6
    slope = 1.0 if slope is None else slope
    least = [rounding_error(values, values.min() * part, high, slope) for part in parts]
    found = rounding_error(values, low, high, slope)
    assert found == pytest.approx(min(least), rel=0.02)
    assert found < 0.8 * rounding_error(values, values.min(), values.max(), slope)


def test_ranges_of_few_values():
    histogram = Histogram()
    histogram.add(np.float32([0.001]))
    assert histogram.limit == pytest.approx(0.001)
    histogram = Histogram()
    histogram.add(np.zeros((0, 3), np.float32))
    assert histogram.best_range() == (0, 0)
    histogram.add(np.zeros(4, np.float32))
    assert histogram.best_range() == (0, 0)
    histogram.add(np.float32([1.0, 1.0]))
    assert histogram.best_range() == pytest.approx((0, 1), abs=0.01)
