"""`--compile`, `--cuda-graphs`, `--pad-to`: equal results, few graphs, and one clear line if they are not available.

The recorded graphs of most tests need no GPU: they copy the input, run the function and copy the outputs.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
import torch
from support.networks import tiny_config
from support.predictors import as_input, predictor_of
from torch._dynamo.utils import counters

import seamseg
from seamseg.formats.metadata import Metadata
from seamseg.inference import cuda_graphs
from seamseg.inference.acceleration import Acceleration, CompiledDense
from seamseg.inference.cuda_graphs import CudaGraph, CudaGraphCache, copy_tensors, cuda_graph_cache, fill, input_buffer
from seamseg.inference.options import Augmentation, Thresholds
from seamseg.inference.tiling.tiles import Tiling
from seamseg.models.build import build_network
from seamseg.models.folding import for_inference
from seamseg.models.network import mark_sizes_dynamic
from seamseg.models.panoptic_inference import DenseOutputs
from seamseg.structures import PackedSequence
from seamseg.utils import progress
from seamseg.utils.errors import InputError, SeamsegError

CPU = torch.device("cpu")
METADATA = Metadata(2, 3, list("abcde"), [(i, i, i) for i in range(5)], list(range(5)), [])
SIZES = ((64, 96), (65, 97), (96, 64), (101, 77))


def network(precision="fp32", device=CPU, kind="panoptic"):
    torch.manual_seed(0)
    return for_inference(build_network(tiny_config(kind), 2, 3).eval(), device, precision)


def image(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def predictor(net, tta=None):
    return predictor_of(net, METADATA, Thresholds(0.1, 0.5, 0), augmentation=Augmentation.parse(tta))


def assert_close(found, wanted, tolerance=1e-4, agreeing=1.0):
    """The same detections in the same order; classes of pixels may differ where two are equal within rounding."""
    found, wanted = found.on_cpu(), wanted.on_cpu()
    assert found.size == wanted.size
    assert found.classes.tolist() == wanted.classes.tolist()
    for name in ("boxes", "scores", "mask_logits"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(wanted, name), rtol=tolerance, atol=tolerance, err_msg=name
        )
    assert (found.semantic == wanted.semantic).mean() >= agreeing


class CopyingGraph:
    """A recorded graph without a GPU: fixed buffers, overwritten by every call, and copied outputs."""

    def __init__(self, function, x):
        self.input = input_buffer(x)
        fill(self.input, x)
        self.function = function
        self.outputs = function(self.input)

    def __call__(self, x):
        fill(self.input, x)
        for kept, new in zip(tensors(self.outputs), tensors(self.function(self.input))):
            fill(kept, new)
        return copy_tensors(self.outputs)


def recorded(net, **options):
    graphs = CudaGraphCache(net.dense_part(), CopyingGraph, **options)
    return net.with_options(run_dense=graphs), graphs


def tensors(dense):
    semantic = [] if dense.semantic_logits is None else [dense.semantic_logits]
    return [*dense.levels, dense.obj_logits, dense.bbx_logits, *semantic]


@pytest.fixture
def dynamo(monkeypatch):
    # a command of another test may have set it
    monkeypatch.setattr(progress, "_quiet", False)
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
def test_compiled_once_with_and_without_graphs(dynamo, monkeypatch, capsys):
    """All sizes share code: in the first run of each, in the warm-up and the capture of its CUDA graph."""
    FakeCuda(monkeypatch)
    net = network()
    wanted = [net.predict(PackedSequence([as_input(image(size))]))[0] for size in SIZES]
    compiled = Acceleration(compile=True, backend="eager").apply(net, CPU)
    assert isinstance(compiled.options.run_dense, CompiledDense)
    graphs = cuda_graph_cache(compiled.options.run_dense)
    model = predictor(compiled.with_options(run_dense=graphs))
    for size, expected in zip(SIZES, wanted):
        for _ in range(2):  # the replay of the fake does nothing: the second call returns the captured outputs
            assert_close(model.raw([image(size)])[0], expected)
    assert len(graphs) == len(SIZES)
    model = predictor(compiled)
    for size, expected in zip(SIZES, wanted):
        assert_close(model.raw([image(size)])[0], expected)
    assert not counters["graph_break"]
    said = capsys.readouterr().err
    assert said.startswith("cpu: compiling the network, first used with 96 x 64 pixels;")
    assert said.count("\n") == compilations(SIZES)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance", "agreeing"), [("fp32", 1e-3, 0.999), ("bf16", None, 0.95)])
def test_generated_code(dynamo, precision, tolerance, agreeing):
    """bf16: sums in another order differ by a last digit, 1/128, which may reorder detections."""
    net = network(precision)
    part = net.dense_part()
    run = CompiledDense(net, CPU)
    with torch.inference_mode():
        for size in SIZES[:3]:
            x = as_input(image(size))[None].to(dtype=net.dtype, memory_format=torch.channels_last)
            found, wanted = run(x), part(x)
            assert [tuple(s) for s in found.shapes] == [tuple(s) for s in wanted.shapes]
            for a, b in zip(tensors(found), tensors(wanted)):
                assert a.dtype == b.dtype
                assert a.shape == b.shape
                assert (a - b).abs().max() <= (1e-5 if tolerance else 0.05) * b.abs().max()
    wanted = network(precision).predict(PackedSequence([as_input(image(SIZES[0]))]))[0].on_cpu()
    found = predictor(net.with_options(run_dense=run)).raw([image(SIZES[0])])[0]
    if tolerance is not None:
        assert_close(found, wanted, tolerance, agreeing)
    assert (found.semantic == wanted.semantic).mean() >= agreeing


@pytest.mark.parametrize("kind", ["panoptic", "instance_seg"])
def test_recorded_network(kind):
    """With recorded graphs batches, tiles and augmentation give the results of the plain network, bit for bit."""
    plain = network(kind=kind)
    net, graphs = recorded(network(kind=kind), max_graphs=3)
    images = [image((64, 96), seed) for seed in range(5)]
    groups = (images[:1], images[1:2], images[2:3], images[:2], images[2:4], [images[4], image((80, 70))])
    for tta in (None, "flip,0.5") if kind == "panoptic" else (None,):
        one, other = predictor(plain, tta), predictor(net, tta)
        for group in groups:
            for wanted, found in zip(one.raw(group), other.raw(group)):
                if kind == "panoptic":
                    assert_close(found, wanted, 0)
                else:
                    assert np.array_equal(found.boxes, wanted.boxes)
                    assert found.semantic is None
    assert len(graphs) == (3 if kind == "panoptic" else 2)
    if kind == "panoptic":
        net, graphs = recorded(network())
        wanted, found = (predictor(n).raw([image((160, 230), 1)], Tiling(128))[0] for n in (plain, net))
        assert_close(found, wanted, 0)
        assert 1 <= len(graphs) <= 4


def square(x):
    return DenseOutputs([x * x], x, x, [tuple(x.shape[-2:])], None)


class Counting:
    """Counts the recordings of a function by width; fails if a width exceeds `room`."""

    def __init__(self, room=100):
        self.made = []
        self.room = room

    def __call__(self, function, x):
        if len(self.made) >= self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.made.append(x.shape[-1])
        return CopyingGraph(function, x)


def ask(graphs, *widths):
    for width in widths:
        x = torch.full((1, 3, 2, width), float(width))
        found = graphs(x)
        assert torch.equal(found.levels[0], x * x)
        assert found.shapes == [(2, width)]


def test_graphs_are_recorded_at_the_second_use():
    record = Counting()
    graphs = CudaGraphCache(square, record, max_graphs=2)
    ask(graphs, 4, 5, 6)
    assert record.made == []  # each was used once
    ask(graphs, 4, 4, 5, 4)
    assert record.made == [4, 5]
    ask(graphs, 6)
    assert record.made == [4, 5, 6]
    assert len(graphs) == 2
    ask(graphs, 4, 5)  # 5 was the least recently used: it must be used twice again
    assert record.made == [4, 5, 6]
    ask(graphs, 5)
    assert record.made == [4, 5, 6, 5]
    # another memory format or dtype needs another graph
    x = torch.ones(1, 3, 2, 4).to(memory_format=torch.channels_last)
    graphs(x), graphs(x)
    assert record.made[-1] == 4
    assert len(record.made) == 5


def test_out_of_memory_while_recording():
    record = Counting(room=1)
    graphs = CudaGraphCache(square, record)
    ask(graphs, 4, 4, 5, 5)
    assert record.made == [4]
    assert len(graphs) == 0
    record.room = 9
    ask(graphs, 5, 5)
    assert len(graphs) == 1
    assert graphs.clear()
    assert not graphs.clear()
    assert len(graphs) == 0


def test_graphs_share_the_memory_of_an_existing_one(monkeypatch):
    beside = []

    class Fake(CopyingGraph):
        def __init__(self, function, x, stream, other):
            super().__init__(function, x)
            beside.append(None if other is None else other.input.shape[-1])

    monkeypatch.setattr(cuda_graphs, "CudaGraph", Fake)
    monkeypatch.setattr(torch.cuda, "Stream", str)
    graphs = cuda_graph_cache(square, max_graphs=1)
    ask(graphs, 4, 4, 5, 5)
    assert beside == [None, None]  # the only one was dropped
    graphs.max_graphs = 2
    ask(graphs, 6, 6)
    assert beside == [None, None, 5]
    graphs.clear()
    ask(graphs, 6, 6)
    assert beside == [None, None, 5, None]


class FakeCuda:
    """The calls of `torch.cuda` that a capture makes, on a machine without a GPU; records devices and streams.

    The default of `torch.cuda.graph` is kept: one capture stream for the process, of the device that captures first.
    """

    def __init__(self, monkeypatch):
        self.here = threading.local()
        self.runs = []
        self.capturing = 0
        self.replays = 0
        self.default_stream = None
        for name in ("Stream", "Event", "CUDAGraph", "graph", "device", "stream", "current_stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def Event(self):
        return mock.Mock()

    def Stream(self, device=None):
        made = mock.Mock()
        made.device = self.current()[0] if device is None else torch.device(device)
        return made

    def CUDAGraph(self):
        return mock.Mock(replay=self.replay)

    def replay(self):
        self.replays += 1

    def current(self):
        return getattr(self.here, "state", None) or (torch.device("cuda:0"), None, False)

    def current_stream(self, device=None):
        return self.current()[1] or mock.Mock()

    @contextmanager
    def _as(self, **changed):
        before = self.current()
        self.here.state = tuple(changed.get(k, v) for k, v in zip(("device", "stream", "captured"), before))
        yield
        self.here.state = before

    def device(self, device):
        return self._as(device=torch.device(device))

    def stream(self, stream):
        # a stream makes its device the current one
        return self._as(stream=stream, device=stream.device)

    @contextmanager
    def graph(self, graph, pool=None, stream=None, capture_error_mode="global"):
        if stream is None:
            stream = self.default_stream = self.default_stream or self.Stream()
        self.capturing += 1
        with self._as(stream=stream, device=stream.device, captured=True):
            yield
        self.capturing -= 1

    def run(self, x):
        device, stream, captured = self.current()
        self.runs.append((str(device), stream, captured, x.shape[-1]))
        return square(x)


class OnDevice(torch.Tensor):
    """A tensor with a GPU device; copies of it are on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = torch.device("cuda:0")


def on_device(device, width):
    x = torch.ones(1, 3, 2, width).as_subclass(OnDevice)
    x.device = torch.device(device)
    return x


def test_each_device_captures_on_its_own_stream(monkeypatch):
    """Also where another device has captured before, and one stream for all graphs that share a pool."""
    cuda = FakeCuda(monkeypatch)
    first, second = cuda_graph_cache(cuda.run), cuda_graph_cache(cuda.run)
    for device, graphs in (("cuda:0", first), ("cuda:1", second)):
        for width in (4, 4, 5, 5):
            graphs(on_device(device, width))
        assert len(graphs) == 2
    captured = [(device, stream, width) for device, stream, taken, width in cuda.runs if taken]
    assert [(device, width) for device, _, width in captured] == [
        ("cuda:0", 4), ("cuda:0", 5), ("cuda:1", 4), ("cuda:1", 5)
    ]  # fmt: skip
    streams = [stream for _, stream, _ in captured]
    assert [str(stream.device) for stream in streams] == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert streams[0] is streams[1]
    assert streams[2] is streams[3]
    warm = [(device, stream) for device, stream, taken, _ in cuda.runs if stream is not None and not taken]
    assert len(warm) == 4 * cuda_graphs.WARM_UP
    assert all(str(stream.device) == device for device, stream in warm)
    assert cuda.replays == 4
    assert not cuda.capturing


def test_captures_of_several_threads_are_serialised(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    most, alone = [], []

    def function(x):
        # a warm-up may synchronise the device, which fails while another thread captures
        captured = cuda.current()[2]
        if cuda.current()[1] is not None:
            alone.append(captured or not cuda.capturing)
        time.sleep(0.005)
        most.append(cuda.capturing)
        return square(x)

    def work(graphs):
        for width in (4, 4, 5, 5):
            graphs(on_device("cuda:0", width))

    together = [cuda_graph_cache(function) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, together))
    assert [len(graphs) for graphs in together] == [2] * 4
    assert max(most) == 1
    assert all(alone)


def test_graphs_are_used_inside_and_outside_of_inference_mode():
    graphs = CudaGraphCache(square, CopyingGraph)
    with torch.inference_mode():
        inside = torch.full((1, 3, 2, 4), 2.0)
        graphs(inside), graphs(inside)
    # an inference tensor, and normal ones
    for x in (inside, torch.full((1, 3, 2, 4), 3.0), torch.full((1, 3, 2, 4), 3.0)):
        assert torch.equal(graphs(x).levels[0], x * x)
    assert len(graphs) == 2
    with torch.inference_mode():
        x = torch.full((1, 3, 2, 4), 5.0)
        assert torch.equal(graphs(x).levels[0], x * x)


def test_padding_to_a_multiple():
    """The same as an image in a batch with a larger one; the map keeps its size."""
    net = network()
    padded = network().with_options(pad_to=32)
    small, large = image((50, 70)), image((64, 96))
    wanted = net.predict(PackedSequence([as_input(small), as_input(large)]))[0].on_cpu()
    (found,) = predictor(padded).raw([small])
    assert found.size == (50, 70) == tuple(found.semantic.shape)
    # the number of images changes the order of sums
    np.testing.assert_allclose(found.boxes, wanted.boxes, rtol=1e-4, atol=1e-3)
    assert (found.semantic == wanted.semantic).mean() > 0.999
    net, shapes = recorded(net)
    net = net.with_options(pad_to=32)
    for size in ((50, 70), (33, 65), (64, 96)):
        predictor(net).raw([image(size)])
    assert len(shapes) == 1


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--cuda-graphs",), 2, "--cuda-graphs needs a GPU, the device is cpu"),
        (("--pad-to", "0"), 2, "--pad-to 0: must be between 1 (no padding) and 1024"),
        (("--pad-to", "32", "--tta", "flip"), 2, "--pad-to cannot be combined with --tta"),
        (("--compile",), 1, "--compile: torch.compile does not work here (No working C++ compiler)"),
    ],
)
def test_unsupported_options(micro_run, micro, tmp_path, seamseg_main, capsys, words, code, message):
    photo = micro / "img" / "val0.png"
    common = (micro_run, photo, tmp_path / "out", "--device", "cpu", "--workers", "0", "--quiet")
    failing = RuntimeError("No working C++ compiler\nand many lines more")
    with mock.patch("torch.compile", side_effect=failing):
        assert seamseg_main("predict", *common, *words) == code
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


@pytest.mark.usefixtures("narrow")
def test_options_in_python(micro_run):
    assert seamseg.load(micro_run, device="cpu", pad_to=48).network.net.options.pad_to == 48
    with pytest.raises(InputError, match="needs a GPU"):
        seamseg.load(micro_run, device="cpu", cuda_graphs=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("cannot lower\nthis and that"), SeamsegError, "fails for 96 x 64 pixels"),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError, "CUDA out of memory"),
    ],
    ids=["compiler", "memory"],
)
def test_a_compiler_error_at_the_first_image(dynamo, error, kind, message):
    """One line; errors about memory are not changed."""
    with mock.patch.object(CompiledDense, "_compile", side_effect=error):
        run = CompiledDense(network(), CPU, "eager")
        with torch.inference_mode(), pytest.raises(kind) as caught:
            run(as_input(image((64, 96)))[None])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("compiled", [False, True])
def test_recorded_on_a_gpu(dynamo, capsys, precision, compiled):
    """For several sizes in turns. It is compiled once, or twice if torch's max_pool2d tells sizes apart."""
    device = torch.device("cuda")
    net = network(precision, device)
    function = CompiledDense(net, device) if compiled else net.dense_part()
    graphs = cuda_graph_cache(function, max_graphs=2)
    with torch.inference_mode():
        for turn in range(3):
            given = []
            for size in SIZES[:3]:
                x = as_input(image(size, turn))[None].to(device, net.dtype, memory_format=torch.channels_last)
                given.append((tensors(graphs(x)), tensors(function(x))))
            for a, b in ((a, b) for found, wanted in given for a, b in zip(found, wanted)):
                # a library may choose another algorithm
                assert (a - b).abs().max() <= 0.02 * b.abs().max()
    assert len(graphs) == 2
    assert isinstance(next(iter(graphs._graphs.values())), CudaGraph)
    assert capsys.readouterr().err.count("compiling the network") == compiled * compilations(SIZES[:3])


def compilations(sizes):
    """Count how often torch compiles a convolution and a max_pool2d for these sizes: twice in 2.11."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    stem = torch.nn.Sequential(torch.nn.Conv2d(3, 1, 7, 2, 3), torch.nn.MaxPool2d(3, 2, 1))
    run = torch.compile(stem, backend=backend)
    for size in sizes:
        x = torch.zeros(1, 3, *size)
        mark_sizes_dynamic([x])
        run(x)
    return len(graphs)
