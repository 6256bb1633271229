"""Images of any size in tiles, if requested or needed; out-of-memory errors of all libraries."""

import errno
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import onnxruntime
import pytest
import torch
from support.predictors import predictor_of

from inference.test_acceleration import as_on_a_gpu, image, network, predictor
from inference.test_tiles import STUFF, SceneNet, scene
from seamseg.data.input_size import InputSize
from seamseg.inference.options import Augmentation
from seamseg.inference.predictor import Predictor
from seamseg.maps.formats.metadata import Metadata
from seamseg.results import Thresholds
from seamseg.training.options import TrainerOptions
from seamseg.training.trainer import Trainer
from seamseg.utils.distributed import World
from seamseg.utils.errors import OutOfMemory, SeamsegError, lacks_memory

METADATA = Metadata(STUFF, 1, ["a", "b", "c", "d"], [(i, i, i) for i in range(4)], list(range(4)), [])
SMALL = (100, 100, 120, 140)
LARGE = (150, 20, 280, 380)


def seer(net=None, tta=None):
    net = net or SceneNet()
    return predictor_of(net, METADATA, Thresholds(0.5, 0.5, 0), augmentation=Augmentation.parse(tta))


@pytest.fixture
def rgb():
    return scene((300, 400), [SMALL, LARGE], np.random.default_rng(0))


class ObjectNet(SceneNet):
    """Sees objects only: their boxes, and their masks for instance segmentation."""

    def __init__(self, kind, **options):
        super().__init__(**options)
        self.kind = kind

    def predict(self, images, least_score=0.0):
        masks = self.kind == "instance_seg"
        found = super().predict(images)
        return [replace(p, semantic=None, mask_logits=p.mask_logits if masks else None) for p in found]


@pytest.mark.parametrize(("kind", "tiles", "room"), [("detection", 160, 20000), ("instance_seg", "auto", 30000)])
def test_objects_in_tiles(rgb, kind, tiles, room):
    whole = seer(ObjectNet(kind)).predict(rgb)
    assert sorted(d.box for d in whole) == [SMALL, LARGE]
    model = seer(ObjectNet(kind, room=room))
    tiled = model.predict(rgb, tiles)
    assert len(model.network.net.sizes) > 2
    small, large = sorted(tiled, key=lambda d: d.area)
    assert small.box == SMALL
    assert large.box == pytest.approx(LARGE, abs=5)
    assert tiled.size == (300, 400)
    if kind == "detection":
        assert tiled.masks is None
    else:
        y0, x0, y1, x1 = SMALL
        assert small.mask[y0:y1, x0:x1].mean() > 0.9
        assert small.mask.sum() == small.mask[y0:y1, x0:x1].sum()


def test_out_of_memory_is_reported_once(rgb, capsys):
    """And not if the images of a batch fit one by one."""
    model = seer(SceneNet(room=200000))
    assert [p.semantic.dtype for p in model.raw([rgb] * 3)] == [np.uint8] * 3
    assert model.network.net.sizes == [(300, 400)] * 3
    assert capsys.readouterr().err == ""
    model = seer(SceneNet(room=40000))
    results = [model.predict(rgb) for _ in range(2)]
    error = capsys.readouterr().err
    assert error.count("input of 400 x 300 pixels at once: it is processed in tiles of 173 pixels, and so are") == 1
    assert error.count("\n") == 1
    assert results[0].segments == results[1].segments
    # the first attempt with each image fails
    assert max(h * w for h, w in model.network.net.sizes) <= 173**2


LACKING = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("HIP error: hipErrorOutOfMemory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 2359296 bytes. Error code 12"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 2359296 bytes."),
    RuntimeError('torch_call_dispatcher( "aten::new_empty", "", stack.data(), ABI) API call failed at ops.h, line 962'),
    RuntimeError("could not create a primitive"),
    RuntimeError("could not create a memory object"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("unable to mmap 4096 bytes from file <model.pth>: Cannot allocate memory (12)"),
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    OSError("out of memory error when reading image file"),
    onnxruntime.capi.onnxruntime_pybind11_state.Fail("Failed to allocate memory for requested buffer of size 25165824"),
    RuntimeError("Check 'ptr' failed at src/cpu_memory.cpp:257: Failed to allocate 268435456 bytes of memory"),
    OutOfMemory("not enough memory"),
]
OTHERS = [
    RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. Workers are out of shared memory."),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("could not create a primitive descriptor for the convolution forward propagation primitive"),
    RuntimeError('torch_call_dispatcher( "aten::sort", "stable", stack.data(), ABI) API call failed at ops.h'),
    onnxruntime.capi.onnxruntime_pybind11_state.Fail("Invalid rank for input: image"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError("libgomp.so.1: cannot allocate memory in static TLS block"),
    SeamsegError("not enough memory"),
    ValueError("out of memory"),
    None,
]  # fmt: skip


def test_which_errors_are_about_memory():
    assert [error for error in LACKING if not lacks_memory(error)] == []
    assert [error for error in OTHERS if lacks_memory(error)] == []


def test_out_of_memory_leads_to_tiles(capsys):
    rgb = scene((150, 200), [], np.random.default_rng(0))
    # not of torch; the others are as above
    error = LACKING[1]
    result = seer(SceneNet(room=20000, error=error)).predict(rgb)
    assert result.size == (150, 200)
    assert (result.id_map > 0).all()
    assert "in tiles of 128" in capsys.readouterr().err
    start, smaller = "cpu: not enough memory for a network input of", "set a smaller `shortest_size`"
    for photo, tiles, words in (
        (rgb, "auto", f"{start} 200 x 150 pixels, not even in tiles of 128 pixels: {smaller}"),
        (rgb, "off", f"{start} 200 x 150 pixels: set `tiles=auto` or {smaller}"),
        (rgb[:70, :80], "auto", f"{start} 80 x 70 pixels: {smaller}"),
    ):
        with pytest.raises(SeamsegError) as caught:
            seer(SceneNet(room=100, error=error)).predict(photo, tiles)
        assert str(caught.value) == words
    gpu = SimpleNamespace(device=torch.device("cuda:1"), on_gpu=True)
    said = str(Predictor._out_of_memory(SimpleNamespace(network=gpu, input_size=InputSize()), rgb[:70, :80]))
    assert said == f"cuda:1: not enough memory for a network input of 80 x 70 pixels: {smaller} or use `device=cpu`"
    for tiles in ("auto", "off", 128):
        with pytest.raises(RuntimeError, match="EXECUTION_FAILED"):
            seer(SceneNet(room=100, error=OTHERS[1])).predict(rgb, tiles)


def test_graphs_are_dropped_first(capsys):
    model = predictor(network())
    graphs = as_on_a_gpu(model)
    for _ in range(3):
        model.raw([image((64, 96))])
    assert len(graphs) == 1
    (key,) = graphs._graphs
    graphs._graphs[key] = mock.Mock(side_effect=LACKING[1])
    found = model.raw([image((64, 96), 1)])[0]
    assert capsys.readouterr().err == ""
    assert len(graphs) == 0
    wanted = predictor(network()).raw([image((64, 96), 1)])[0]
    assert np.array_equal(found.semantic, wanted.semantic)


def test_out_of_memory_in_a_training_step():
    trainer = mock.MagicMock(stepper=mock.Mock(side_effect=LACKING[1]), options=TrainerOptions(1, {}))
    trainer.progress.global_step, trainer.world = 7, World(device=torch.device("cpu"))
    fed = SimpleNamespace(source="", batch=SimpleNamespace(ids=["a", "b"]))
    with pytest.raises(OutOfMemory, match=r"step 7: cpu: not enough memory \(images a, b\); lower"):
        Trainer._step(trainer, 0, [fed])
