"""The network on a CUDA device: the same as on the CPU."""

from dataclasses import replace

import pytest
import torch
from support.networks import tiny_config, toy_batch

from seamseg.models.build import build_training_module
from seamseg.structures import DeferredTransform
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.options import TrainerOptions
from seamseg.training.prefetch import prefetched, prepare_batch
from seamseg.training.step import Stepper
from seamseg.utils.distributed import World

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def exact_convolutions():
    """Convolutions in full float32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


# --- A steady training step, during which torch makes every wait of the host an error


@pytest.fixture(autouse=True)
def no_debugging_afterwards():
    yield
    torch.cuda.set_sync_debug_mode("default")


def steady(precision, mode):
    """A step that has run before, with the upload of its batch; it takes the number of the batch to use."""
    torch.manual_seed(0)
    overrides = ("roi.fixed_samples=yes", f"general.precision={precision}", "rpn.min_size=4")
    config = tiny_config(mode=mode, overrides=overrides)
    module = build_training_module(config, 2, 3).cuda()
    optimizer = build_optimizer(module.net, config)
    stepper = Stepper(TrainerOptions.from_config(config), module, optimizer, World(device=torch.device("cuda")))
    rates = [0.01] * len(optimizer.param_groups)
    batches = [
        batch.with_target_info().pin_memory()
        for batch in (
            toy_batch((64, 96), (80, 64), (48, 48), empty=(2,), crowd=(0,)),
            toy_batch((64, 64), (64, 64), empty=(0, 1)),
        )
    ]

    def step(number):
        (uploaded,) = prefetched([batches[number]], torch.device("cuda"))
        return stepper([uploaded.batch], rates)

    for _ in range(3):
        for number in range(len(batches)):
            step(number)
    torch.cuda.synchronize()
    return step


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["bn", "gn"])
def test_fixed_samples_never_wait(precision, mode):
    step = steady(precision, mode)
    torch.cuda.set_sync_debug_mode("error")
    results = [step(number) for number in (0, 1, 0)]
    torch.cuda.set_sync_debug_mode("default")
    assert all(torch.isfinite(result.total) for result in results)


def test_transforms_on_the_device_do_not_wait():
    options = tiny_config().dataloader
    batch = toy_batch((64, 96), (80, 64)).with_target_info()
    deferred = [DeferredTransform(True, (1.1, 0.9, 1.2, 0.1)), DeferredTransform()]
    images = batch.images.map(lambda x: (40 * x + 128).clamp(0, 255).byte())
    sent = replace(batch, images=images, deferred=deferred).to("cuda")
    prepare_batch(sent, options)
    torch.cuda.set_sync_debug_mode("error")
    done = prepare_batch(sent, options)
    torch.cuda.set_sync_debug_mode("default")
    assert done.deferred is None
    assert all(image.isfinite().all() for image in done.images)
