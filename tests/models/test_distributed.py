"""Training in two processes: ranks without things skip the ROI head, nothing hangs, and all ranks stay equal."""

from unittest.mock import patch

import pytest
import torch
from engine.processes import launch
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from seamseg.engine.distributed import distributed, gather_objects
from seamseg.models import panoptic
from seamseg.models.build import build_training_module

from .conftest import part_of, tiny_config, toy_batch

pytestmark = pytest.mark.distributed

EMPTY = [(), (1,), (0, 1), (0,)]
"""Which ranks have no thing in their image, step by step."""


def build(mode, *overrides):
    torch.manual_seed(0)
    return build_training_module(tiny_config(mode=mode, overrides=overrides), 2, 3)


def train(world, mode, fixed):
    module = build(mode, f"roi.fixed_samples={'yes' if fixed else 'no'}")
    # with fixed samples every rank runs every part in every step
    parallel = DistributedDataParallel(module, find_unused_parameters=not fixed)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    for step, empty in enumerate(EMPTY):
        # of one size so that they can be joined
        both = toy_batch((64, 80), (64, 80), empty=empty)
        losses = parallel(part_of(both, world.rank)).means
        assert losses["roi_cls_loss"].requires_grad == (fixed or world.rank not in empty)
        assert (losses["roi_cls_loss"] > 0) == (world.rank not in empty)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        if step == 0 and mode == "syncbn":
            check_statistics(module, both)
        optimizer.step()
        assert all(torch.isfinite(loss) for loss in losses.values())
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert all(torch.equal(weights, other) for other in gather_objects(world, weights))


def check_statistics(module, both):
    """The static part saw the statistics of both ranks' images."""
    joined = build("bn")
    joined.net.body(both.images.as_padded()[0])
    for name, wanted in joined.net.body.named_buffers():
        assert_close(module.net.body.get_buffer(name), wanted, rtol=1e-4, atol=1e-5, msg=name)


def work(rank, join):
    join()
    with distributed("cpu") as world:
        for mode in ("syncbn", "syncbn+gn"):
            train(world, mode, fixed=False)
        with patch.object(panoptic, "active_group", side_effect=AssertionError("nobody needs to ask")):
            train(world, "syncbn", fixed=True)


def test_ranks_with_and_without_things_train_together():
    launch(work, 2)
