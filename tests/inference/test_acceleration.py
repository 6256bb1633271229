"""`--compile`, `--cuda-graphs`, `--pad-to`: equal results, few graphs, and one clear line if they are not available.

The recorded graphs of most tests need no GPU: they copy the input, run the function and copy the outputs.
"""

import re
from unittest import mock

import numpy as np
import pytest
import torch
from support.host_reads import HostReads
from support.networks import narrow_module
from support.predictors import as_input, predictor_of
from support.small_models import semantic_net
from torch._dynamo.utils import counters
from torch.utils import _pytree

from seamseg.inference.acceleration import CompiledDense, CudaGraphCache, copy_tensors, fill, input_buffer
from seamseg.inference.network import TorchNetwork
from seamseg.inference.options import Augmentation, Tiling
from seamseg.maps.formats.metadata import Metadata
from seamseg.models import panoptic_inference
from seamseg.models.folding import for_inference
from seamseg.models.panoptic import DenseOutputs
from seamseg.results import Thresholds
from seamseg.structures import Normalise, PackedSequence
from seamseg.utils.errors import SeamsegError

CPU = torch.device("cpu")
METADATA = Metadata(2, 3, list("abcde"), [(i, i, i) for i in range(5)], list(range(5)), [])
SIZES = ((64, 96), (65, 97), (96, 64), (101, 77))


def network(precision="fp32", device=CPU, kind="panoptic", overrides=()):
    net = semantic_net() if kind == "semantic" else narrow_module(*overrides, kind=kind).net.eval()
    return for_inference(net, device, precision)


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
        one, other = getattr(found, name), getattr(wanted, name)
        if one is not None or other is not None:
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=name)
    assert np.mean(found.semantic == wanted.semantic) >= agreeing


class CopyingGraph:
    """A recorded graph without a GPU: fixed buffers, overwritten by every call, and copied outputs."""

    def __init__(self, function, x):
        self.input = input_buffer(x)
        fill(self.input, x)
        self.function = function
        self.outputs = function(self.input)

    def __call__(self, x):
        fill(self.input, x)
        fill(tensors(self.outputs), tensors(self.function(self.input)))
        return copy_tensors(self.outputs)


def as_on_a_gpu(model, record=CopyingGraph, **options):
    """Have a predictor compute in fixed sizes, by recorded graphs; return their cache."""
    model.network.fixed_size = True
    model.network.graphs = CudaGraphCache(model.network.compute, record, **options)
    return model.network.graphs


def tensors(outputs):
    return [leaf for leaf in _pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


@pytest.fixture
def dynamo():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
def test_compiled_once_for_all_sizes(dynamo, capsys):
    net = network()
    wanted = [net.predict(PackedSequence([as_input(image(size))]))[0] for size in SIZES]
    compiled = net.with_options(run_dense=CompiledDense(net, CPU, backend="eager"))
    model = predictor(compiled)
    for size, expected in zip(SIZES, wanted):
        assert_close(model.raw([image(size)])[0], expected)
    assert not counters["graph_break"]
    said = capsys.readouterr().err
    assert said.startswith("cpu: compiling the network, first used with 96 x 64 pixels;")
    assert said.count("\n") <= 2, "torch's max_pool2d may tell sizes apart"


@pytest.mark.parametrize("kind", ["panoptic", "instance_seg", "detection", "semantic"])
def test_recorded_network(kind):
    """Fixed sizes, recorded, give the results of the CPU for single images, batches and tiles, to the bit; no wait."""
    options = {"overrides": ("roi.max_predictions=200",)} if kind != "semantic" else {}
    one, other = predictor(network(kind=kind, **options)), predictor(network(kind=kind, **options))
    graphs = as_on_a_gpu(other, max_graphs=3)
    images = [image((64, 96), seed) for seed in range(5)]
    groups = (images[:1], images[1:2], images[2:3], images[:2], images[2:4], [images[4], image((80, 70))])
    for group in groups:
        with HostReads() as reads:
            started = other.network.start(group)
        assert all(place.startswith("numpy: inference/network.py") for place in reads.places), f"of the host\n{reads}"
        for wanted, arrays in zip(one.raw(group), started):
            assert_close(arrays(), wanted, 0)
    assert len(graphs) == 2
    if kind != "semantic":
        assert 0 < len(wanted.scores) < 3 * 40, "less than of all proposals and classes"
    wanted, found = (model.raw([image((160, 230), 1)], Tiling(128))[0] for model in (one, other))
    assert_close(found, wanted, 0)


def test_more_candidates_than_the_fixed_number(monkeypatch):
    """Then an image is computed again without a fixed number, if others than the best may be detections."""
    model, group = predictor(network()), [image((64, 96)), image((64, 96), 1)]
    wanted = model.raw(group)
    as_on_a_gpu(model)
    predict = mock.Mock(wraps=model.network.net.predict)
    monkeypatch.setattr(model.network.net, "predict", predict)
    for candidates, again in ((4096, 0), (30, 2)):
        monkeypatch.setattr(panoptic_inference, "CANDIDATES", candidates)
        for found, one in zip(model.raw(group), wanted, strict=True):
            # the number of images changes the order of sums
            assert_close(found, one, 0 if again == 0 else 1e-4)
        assert predict.call_count == again


def test_a_graph_keeps_what_it_reads():
    """The anchors of a size, also after others have taken their place in the cache."""
    model = predictor(network())
    graphs = as_on_a_gpu(model)
    for _ in range(2):
        model.raw([image((64, 96))])
    (graph,) = graphs._graphs.values()
    net = model.network.net
    anchors = net.score_anchors(net.encode(PackedSequence([as_input(image((64, 96)))]))).anchors
    assert graph.outputs.reads() is anchors


def square(x):
    return DenseOutputs([x * x], x, x, [tuple(x.shape[-2:])], None)


def ask(graphs, *widths):
    for width in widths:
        x = torch.full((1, 3, 2, width), float(width))
        found = graphs(x)
        assert torch.equal(found.levels[0], x * x)
        assert found.shapes == [(2, width)]


def test_graphs_are_recorded_at_the_second_use():
    record = mock.Mock(side_effect=CopyingGraph)
    graphs = CudaGraphCache(square, record, max_graphs=2)
    # each is used once; then twice; 5 is the least recently used: it must be used twice again
    for widths, made in (((4, 5, 6), []), ((4, 4, 5, 4), [4, 5]), ((6,), [6]), ((4, 5), []), ((5,), [5])):
        record.reset_mock()
        ask(graphs, *widths)
        assert [call.args[1].shape[-1] for call in record.call_args_list] == made
    assert len(graphs) == 2
    # another memory format or dtype needs another graph
    record.reset_mock()
    graphs(x := torch.ones(1, 3, 2, 4).to(memory_format=torch.channels_last)), graphs(x)
    assert record.call_count == 1
    # without memory for another one all are dropped, until there is
    record.side_effect = torch.OutOfMemoryError("CUDA out of memory")
    ask(graphs, 7, 7, 8, 8)
    assert len(graphs) == 0
    record.side_effect = CopyingGraph
    ask(graphs, 8, 8)
    assert len(graphs) == 1
    graphs.clear()
    assert len(graphs) == 0


def test_padding_to_a_multiple():
    """The same as an image in a batch with a larger one; the map keeps its size."""
    images = [image(size) for size in ((50, 70), (64, 96), (33, 65))]
    wanted = network().predict(PackedSequence([as_input(one) for one in images[:2]]))[0].on_cpu()
    model = predictor(network().with_options(pad_to=32))
    shapes = as_on_a_gpu(model)
    found, _, _ = (model.raw([one])[0] for one in images)
    assert len(shapes) == 1
    assert found.size == (50, 70) == tuple(found.semantic.shape)
    # the number of images changes the order of sums
    np.testing.assert_allclose(found.boxes, wanted.boxes, rtol=1e-4, atol=1e-3)
    assert (found.semantic == wanted.semantic).mean() > 0.999


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


@pytest.mark.slow
def test_a_compiler_error_at_the_first_image(dynamo):
    """One line; errors about memory are not changed."""
    errors = ValueError("cannot lower\nthis and that"), torch.OutOfMemoryError("CUDA out of memory")
    wanted = (SeamsegError, "fails for 96 x 64 pixels.*"), (torch.OutOfMemoryError, "CUDA out of memory")
    for error, (kind, message) in zip(errors, wanted):
        with mock.patch.object(CompiledDense, "_compile", side_effect=error):
            run = CompiledDense(network(), CPU, "eager")
            with torch.inference_mode(), pytest.raises(kind) as caught:
                run(as_input(image((64, 96)))[None])
        assert re.fullmatch(f".*{message}", str(caught.value))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_prediction_on_a_gpu_waits_for_its_result_only(precision):
    """With graphs, and without; torch makes every other wait an error."""
    device, images = torch.device("cuda"), [image((64, 96), seed) for seed in range(4)]
    normalise = Normalise(None, None, device)
    plain, recorded = (TorchNetwork(network(precision, device), normalise, device) for _ in range(2))
    recorded.graphs = CudaGraphCache(recorded.compute)
    for group in [images[:2]] * 3 + [images[2:]]:
        found = []
        for net in (plain, recorded):
            net.run(group)
            torch.cuda.set_sync_debug_mode("error")
            started = net.start(group)
            torch.cuda.set_sync_debug_mode("default")
            found.append([arrays() for arrays in started])
        for one, other in zip(*found, strict=True):
            assert np.mean(one.semantic == other.semantic) > 0.95, "a library may choose another algorithm"
            assert len(one.scores) > 0
            assert len(other.scores) > 0
    assert len(recorded.graphs) == 1
