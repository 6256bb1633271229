"""The graph of an ONNX file is checked before an engine sees it: what is refused, and what networks need."""

import re
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.bombs import refusals
from support.onnx_attacks import ATTACKS, FLOATS, SIZE, node, nodes, weight, write_attack
from support.onnx_scenes import record, scene, write_network

import seamseg
from seamseg.formats.onnx_file import read_onnx
from seamseg.inference.onnx_engines import openvino_core
from seamseg.inference.onnx_graph.bounds import bounds_of
from seamseg.inference.onnx_graph.check import CheckedGraph, Needs
from seamseg.utils.errors import InputError, SeamsegError

DARKEST = nodes(
    FLOATS, node("ReduceMin", "floats", "least", keepdims=0), node("Expand", "least sides"), sides=[20_000_000]
)
"""80 MB of the least value of the picture."""


def test_attacks_are_refused_before_an_engine_sees_them(tmp_path):
    """One line each, in less than 5 seconds and a gigabyte for all of them."""
    for name, (change, _) in ATTACKS.items():
        write_attack(tmp_path / f"{name}.onnx", change)
    write_network(tmp_path / "good.onnx", record("semantic", SIZE))
    setup = (
        "import resource, seamseg\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (30, 30))\n"
        f"def load(name): return seamseg.load({str(tmp_path)!r} + f'/{{name}}.onnx', shortest_size=90)"
    )
    found = refusals(setup, "load('good')", [f"load({name!r})" for name in ATTACKS])
    for (name, (_, words)), (message, memory) in zip(ATTACKS.items(), found, strict=True):
        assert words in message, f"{name}: {message}"
        assert message.startswith(f"{tmp_path}/{name}.onnx: ")
        assert "\n" not in message
        assert len(message) < 400
        assert memory < 100, f"{name}: {memory} MiB"


SHAPES = {"image": (1, 3, *SIZE), "size": (2,)}


def computed(path, names, engine="onnxruntime", image=np.zeros((1, 3, *SIZE), np.uint8)):  # noqa: B008
    """The tensors of a file that an engine computes for a picture."""
    model = onnx.load(path)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    inputs, content = {"image": image, "size": np.array(SIZE)}, model.SerializeToString()
    if engine == "openvino":
        core = openvino_core()
        found = core.compile_model(core.read_model(content), "CPU")(inputs)
        return {name: found[name] for name in names}
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, inputs), strict=True))


def test_sizes_are_those_that_the_engine_makes(tmp_path):
    made = (
        FLOATS,
        node("Shape", "image", "sides"),
        node("Slice", "sides begin end", "last"),
        node("Sub", "last one", "less"),
        node("Div", "less two", "half"),
        node("Concat", "one half", "shape", axis=0),
        node("Expand", "dark shape", "a"),
        node("ConstantOfShape", "half", "b"),
        node("Squeeze", "half", "scalar"),
        node("Range", "start scalar step", "c"),
        node("Tile", "b two", "d"),
        node("Pad", "d half_and_one", "e"),
        node("Resize", "floats - scales", "f", mode="nearest", nearest_mode="floor"),
        helper.make_node("TopK", ["e", "one"], ["top", "places"]),
        node("AveragePool", "f", "pooled", kernel_shape=[3, 2], strides=[2, 3], pads=[1, 0, 0, 1]),
        node("ArgMax", "pooled", "best", axis=1, keepdims=0),
        node("Slice", "image ends starts axes steps", "backwards"),
        node("Reshape", "backwards flat", "g"),
        node("Reshape", "floats rows", "h"),
        node("Conv", "h kernel", "along", pads=[2, 1], strides=[2]),
        node("Sin", "along", "sine"),
        node("Einsum", "floats kernel", "sum", equation="abcd,ebf->aef"),
        node("GridSample", "floats grid", "samples", align_corners=0),
        node("ReduceLogSumExp", "floats axes", "likeliest"),
        node("Identity", "dark"),
    )
    numbers = {"begin": [3], "end": [4], "one": [1], "two": [2], "start": 3, "step": 2, "half_and_one": [79, 1]}
    places = {"ends": [-2], "starts": [-200], "axes": [3], "steps": [-3], "flat": [0, -1], "rows": [1, 3, -1]}
    grid = {"grid": np.array([[[[0, 0.5], [-2, 9]]]], np.float32)}
    change = nodes(
        *made, **numbers, **places, dark=[0.0], scales=[1.0, 1.0, 1.5, 0.7], kernel=np.ones((2, 3, 5)), **grid
    )
    checked = CheckedGraph(write_attack(tmp_path / "net.onnx", change))
    names = [name for made_here in made for name in made_here.output]
    known = checked.tensors(SHAPES)
    for name, value in computed(tmp_path / "net.onnx", names).items():
        bounds = known[name].shape
        assert len(bounds) == value.ndim, name
        assert all(side <= most <= side + 1 for side, most in zip(value.shape, bounds)), f"{name}: {bounds}"
        assert not known[name].exact or bounds == value.shape, name
        if known[name].value is not None:
            assert np.array_equal(known[name].value, value), name
            assert known[name].value.dtype == value.dtype, name
    assert known["half"].value.tolist() == [79]


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(("kernel", "step", "pad"), [(2, 2, 0), (3, 2, 1), (2, 5, 1)])
def test_sizes_of_poolings_that_round_up(tmp_path, kernel, step, pad, engine):
    """timm networks have them: their sizes are known, but for windows that start beyond the map."""
    pool = {"kernel_shape": [kernel] * 2, "strides": [step] * 2, "pads": [pad] * 4, "ceil_mode": 1}
    made = [FLOATS]
    for number in range(6):
        made.append(node("Slice", f"floats begin end{number} axes", f"cut{number}"))
        made.append(node("AveragePool", f"cut{number}", f"pooled{number}", **pool))
    ends = {f"end{number}": [20 + number, 25 + number] for number in range(6)}
    change = nodes(*made, node("Identity", "dark"), begin=[0, 0], axes=[2, 3], dark=[0.0], **ends)
    checked = CheckedGraph(write_attack(tmp_path / "net.onnx", change))
    names = [f"pooled{number}" for number in range(6)]
    known = checked.tensors(SHAPES)
    for name, value in computed(tmp_path / "net.onnx", names, engine).items():
        assert not known[name].exact or known[name].shape == value.shape, name
    if pad <= kernel - step:
        assert all(known[name].exact for name in names)


def test_bounds_of_whole_numbers_that_depend_on_the_picture(tmp_path):
    bounds = (
        (node("Cast", "image", "pixels", to=TensorProto.INT64), None),
        (node("Slice", "pixels start nine three", "few"), None),
        (node("Clip", "few lowest highest", "clipped"), (50, 200)),
        (node("Sub", "clipped hundred", "less"), (-50, 100)),
        (node("Mul", "less minus", "product"), (-100, 50)),
        (node("Div", "less seven", "quotient"), (-8, 14)),
        (node("Mod", "less seven", "rest"), (-6, 6)),
        (node("Max", "less rest", "higher"), (-6, 100)),
        (node("Min", "less rest", "lower"), (-50, 6)),
        (node("Greater", "few hundred", "bright"), (0, 1)),
        (node("Where", "bright less hundred", "chosen"), (-50, 100)),
        (node("Cast", "bright", "ones", to=TensorProto.INT32), (0, 1)),
        (node("Pad", "clipped pads", "padded"), (0, 200)),
        (node("Concat", "clipped rest", "joined", axis=3), (-6, 200)),
        (node("Reshape", "few flat", "line"), (0, 255)),
        (helper.make_node("TopK", ["line", "nine"], ["top", "places"]), (0, 255)),
        (node("ArgMax", "few", "best", axis=3), (0, 8)),
        (node("Unsqueeze", "places minus", "column"), (0, 2591)),
        (node("GatherND", "line column", "found"), None),
        (node("ScatterElements", "line places found", "scattered"), None),
        (node("Identity", "image"), None),
    )
    made = [made_here for made_here, _ in bounds]
    numbers = {"start": [0], "nine": [9], "three": [3], "lowest": 50, "highest": 200, "hundred": 100, "seven": 7}
    rest = {"minus": [-1], "pads": [0, 0, 0, 0, 0, 0, 0, 2], "flat": [-1]}
    path = write_attack(tmp_path / "net.onnx", nodes(*made, **numbers, **rest))
    known = CheckedGraph(path).tensors(SHAPES)
    for made_here, wanted in bounds:
        assert wanted in (None, bounds_of(known[made_here.output[0]])), made_here.output
    names = [name for made_here in made for name in made_here.output if name != "big"]
    image = np.random.default_rng(0).integers(0, 256, (1, 3, *SIZE), np.uint8)
    for name, value in computed(path, names, image=image).items():
        low, high = bounds_of(known[name])
        assert low <= value.min() <= value.max() <= high, name


def test_each_size_of_a_free_input_is_checked(tmp_path):
    powers = node("Mul", "side side", "square"), node("Mul", "square side", "cube")
    made = (node("Shape", "image", "side", start=3), *powers, node("ConstantOfShape", "cube"))
    model = seamseg.load(write_attack(tmp_path / "net.onnx", nodes(*made), None), shortest_size=256)
    model.raw([scene((256, 256))])
    with pytest.raises(SeamsegError) as raised:
        model.raw([scene((256, 1024))])
    wanted = r"net.onnx: refused, .*: it needs tensors of 8\.\d+ GiB for 262144 pixels, the limit is 4\d\d.*MiB"
    assert re.fullmatch(wanted, str(raised.value).removeprefix(f"{tmp_path}/"))


def test_the_arena_of_onnx_runtime_is_limited(tmp_path, monkeypatch):
    """Should a kernel allocate more than the check knows of."""
    path = write_attack(tmp_path / "net.onnx", DARKEST)
    model = seamseg.load(path, shortest_size=90)
    model.raw([scene(SIZE)])
    monkeypatch.setattr("seamseg.inference.onnx_graph.check._BASE_BYTES", 10 << 20)
    monkeypatch.setattr(Needs, "check", lambda *_: None)
    with pytest.raises(SeamsegError, match=r"the network fails: .*Available memory of"):
        seamseg.load(path, shortest_size=90).raw([scene(SIZE)])
    # that of other sessions is not
    model.raw([scene(SIZE)])


def test_a_version_that_takes_one_limit_only(tmp_path, monkeypatch):
    """1.20 to 1.22 refuse the second one, of whichever file."""
    error = RuntimeError("An allocator for this device has already been registered for sharing.")
    monkeypatch.setattr(onnxruntime, "create_and_register_allocator", mock.Mock(side_effect=error))
    version = f"onnxruntime {onnxruntime.__version__} cannot limit the memory of a file"
    with pytest.raises(InputError, match=f"^{re.escape(version)}: pip install 'onnxruntime>=1.23'$"):
        seamseg.load(write_network(tmp_path / "net.onnx", record()))


def edited(edit):
    def change(content):
        model = onnx.load_from_string(content)
        edit(model)
        return model.SerializeToString()

    return change


MORE = helper.make_tensor_value_info("more", TensorProto.FLOAT, [1])
WORDS = helper.make_tensor("words", TensorProto.STRING, [1], [b"a"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c + c, "not an ONNX file, .*two of"),
        (lambda c: c + bytes([7 << 3 | 0, 5]), "field 7 of ModelProto is unknown or of another type"),
        (lambda c: c + bytes([1 << 3]) + b"\xff" * 11, "a number ends early"),
        (lambda c: c + bytes([4 << 3 | 2, 1, 255]), "not UTF-8"),
        (lambda c: c + bytes([14 << 3 | 2, 0]) * 500_000, "it has more than 400000 fields"),
        (
            lambda c: c + bytes([4 << 3 | 2, *[0x80] * 3, 0x20]) + b"a" * (64 << 20),
            "it has more than 32 MiB of names and",
        ),
        (lambda c: b"", "the file is empty"),
        (edited(lambda m: m.graph.node[0].input.append("classmap")), "uses a tensor that is not there yet"),
        (edited(lambda m: m.graph.node[1].output.__setitem__(0, m.graph.node[0].output[0])), "two tensors are named"),
        (edited(lambda m: setattr(m.opset_import[0], "version", 9)), "its operators are of version 9"),
        (edited(lambda m: m.opset_import.add(domain="com.microsoft", version=1)), "operators of several sets"),
        (edited(lambda m: m.graph.input.append(MORE)), "it has the inputs image, size, more"),
        (edited(lambda m: m.graph.initializer.append(WORDS)), "values of the type 8|field 6 of TensorProto"),
        (edited(lambda m: m.graph.output.append(MORE)), "an output is not computed"),
        (
            edited(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", TensorProto.FLOAT)),
            "it states another type for 'image'",
        ),
    ],
)
def test_files_that_parsers_take_in_several_ways(tmp_path, change, words):
    path = write_network(tmp_path / "net.onnx", record("semantic", SIZE))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=words) as raised:
        seamseg.load(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_values_of_small_tensors(tmp_path):
    model = onnx.load(write_network(tmp_path / "net.onnx", record("semantic", SIZE)))
    made = [weight("raw", [1, -2, 3]), weight("half", np.array([1.5], np.float16)), weight("large", np.zeros(3000))]
    for kind, values in (("INT64", [-5, 1 << 40]), ("INT8", [-1, 0, 127]), ("FLOAT", [0.5]), ("BFLOAT16", [2.0])):
        made.append(helper.make_tensor(kind, getattr(TensorProto, kind), [len(values)], values))
    model.graph.initializer.extend(made)
    onnx.save(model, tmp_path / "net.onnx")
    weights = read_onnx(tmp_path / "net.onnx").weights
    for tensor in made:
        found = weights[tensor.name]
        assert (found.shape, found.dtype) == (tuple(tensor.dims), tensor.data_type)
        if tensor.name in ("large", "BFLOAT16"):
            assert found.value is None
        else:
            wanted = onnx.numpy_helper.to_array(tensor)
            assert np.array_equal(found.value, wanted)
            assert found.value.dtype == wanted.dtype
