"""Out-of-memory errors of all libraries: smaller tiles, fewer graphs, or one line."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.predictors import predictor_of
from support.tile_scenes import STUFF, SceneNet, scene

from inference.test_acceleration import image, network, predictor, recorded
from seamseg.formats.metadata import Metadata
from seamseg.inference.cuda_graphs import CudaGraphCache
from seamseg.inference.options import Thresholds
from seamseg.inference.tiling.tiles import Tiling
from seamseg.training.trainer import Trainer
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.errors import SeamsegError

LACKING = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("HIP error: hipErrorOutOfMemory"),
]
OTHERS = [
    RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers "
                 "are out of shared memory. Please try to raise your shared memory limit."),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    SeamsegError("not enough memory"),
    ValueError("out of memory"),
    None,
]  # fmt: skip
every_word = pytest.mark.parametrize(
    "error",
    # the fast `test_which_errors_are_about_memory` covers all of them
    [LACKING[0], *(pytest.param(error, marks=pytest.mark.slow) for error in LACKING[1:])],
    ids=lambda error: str(error)[:48],
)


def test_which_errors_are_about_memory():
    assert [error for error in LACKING if not lacks_memory(error)] == []
    assert [error for error in OTHERS if lacks_memory(error)] == []


class Full(SceneNet):
    """A network with memory for `room` pixels, which raises a given error for more."""

    def __init__(self, room, error):
        super().__init__()
        self.most, self.error = room, error

    def predict(self, images):
        if sum(i.shape[-2] * i.shape[-1] for i in images) > self.most:
            raise self.error
        return super().predict(images)


def seer(room, error, tiling=Tiling()):  # noqa: B008
    metadata = Metadata(STUFF, 1, ["a", "b", "c", "d"], [(i, i, i) for i in range(4)], list(range(4)), [])
    return predictor_of(Full(room, error), metadata, Thresholds(0.5, 0.5, 0), tiling=tiling)


@every_word
def test_out_of_memory_leads_to_tiles(error, capsys):
    rgb = scene((300, 400), [], np.random.default_rng(0))
    model = seer(20000, error)
    result = model.predict(rgb)
    assert result.size == (300, 400)
    assert (result.id_map > 0).all()
    assert "in tiles of 128" in capsys.readouterr().err
    with pytest.raises(SeamsegError, match="400 x 300 pixels: set tiles=auto"):
        model.predict(rgb, tiles="off")
    with pytest.raises(SeamsegError, match="even in tiles of 128 pixels"):
        seer(100, error).predict(rgb)


def test_other_errors_are_not_handled():
    rgb = scene((300, 400), [], np.random.default_rng(0))
    for tiles in ("auto", "off", 128):
        with pytest.raises(RuntimeError, match="EXECUTION_FAILED"):
            seer(100, OTHERS[1]).predict(rgb, tiles)


@every_word
def test_out_of_memory_while_recording(error):
    def fail(function, x):
        raise error

    graphs = CudaGraphCache(torch.square, fail)
    for _ in range(3):
        assert torch.equal(graphs(torch.full((1, 2), 3.0)), torch.full((1, 2), 9.0))
    broken = CudaGraphCache(torch.square, lambda function, x: (_ for _ in ()).throw(OTHERS[1]))
    assert torch.equal(broken(torch.ones(2)), torch.ones(2))
    with pytest.raises(RuntimeError, match="EXECUTION"):
        broken(torch.ones(2))


def test_graphs_are_dropped_before_tiles_get_smaller(capsys):
    """Graphs of one shape are dropped before tiles of another become smaller."""
    net, _ = recorded(network())
    model = predictor(net)
    for _ in range(3):
        model.raw([image((64, 96))])
    assert len(model.network.graph_cache) == 1
    inner = net.options.proposals

    class OnlyWithout(type(inner)):
        def __call__(self, *args, **kwargs):
            if len(model.network.graph_cache):
                raise LACKING[1]
            return inner(*args, **kwargs)

    model.network.net = net.with_options(proposals=OnlyWithout())
    photo = image((260, 260), 1)
    found = model.raw([photo], Tiling(256))[0]
    assert capsys.readouterr().err == ""  # the tiles have the requested side
    wanted = predictor(network()).raw([photo], Tiling(256))[0]
    assert np.array_equal(found.semantic, wanted.semantic)


@every_word
def test_out_of_memory_in_a_training_step(error):
    def stepper(batches, rates):
        raise error

    fed = SimpleNamespace(source="", batch=SimpleNamespace(ids=["a", "b"]))
    reporter = SimpleNamespace(begin_step=lambda *_: None, failed=lambda: None)
    schedule = SimpleNamespace(get_lr=lambda *_: [0.1])
    trainer = SimpleNamespace(
        progress=SimpleNamespace(global_step=7), schedule=schedule, reporter=reporter, stepper=stepper
    )
    with pytest.raises(SeamsegError, match=r"step 7: the GPU's memory is full \(images a, b\); lower"):
        Trainer._step(trainer, 0, [fed])
