"""Training in two processes: ranks without things skip the ROI head, nothing hangs, and all ranks stay equal."""

import os
import tempfile
from datetime import timedelta
from unittest.mock import patch

import pytest
import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from seamseg.models import panoptic
from seamseg.models.build import build_training_module
from seamseg.ops.sync import forget_groups

from .conftest import tiny_config, toy_batch

pytestmark = pytest.mark.distributed

WORLD = 2
EMPTY = [(), (1,), (0, 1), (0,)]
"""Which ranks have no thing in their image, step by step."""


def build(mode, *overrides):
    torch.manual_seed(0)
    return build_training_module(tiny_config(mode=mode, overrides=overrides), 2, 3)


def batch_of(rank, empty):
    """The image of one rank; both are of one size so that they can be joined."""
    both = toy_batch((64, 80), (64, 80), empty=empty)
    return both, type(both)(
        *(getattr(both, name)[rank : rank + 1] for name in ("images", "masks", "categories", "iscrowd", "boxes")),
        ids=both.ids[rank : rank + 1],
        original_sizes=both.original_sizes[rank : rank + 1],
    )


def train(rank, mode, fixed):
    module = build(mode, f"roi.fixed_samples={'yes' if fixed else 'no'}")
    # with fixed samples every rank runs every part in every step
    parallel = DistributedDataParallel(module, find_unused_parameters=not fixed)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    for step, empty in enumerate(EMPTY):
        both, mine = batch_of(rank, empty)
        losses = parallel(mine).means
        assert losses["roi_cls_loss"].requires_grad == (fixed or rank not in empty)
        assert (losses["roi_cls_loss"] > 0) == (rank not in empty)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        if step == 0 and mode == "syncbn":
            check_statistics(module, both)
        optimizer.step()
        assert all(torch.isfinite(loss) for loss in losses.values())
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    others = [torch.empty_like(weights) for _ in range(WORLD)]
    distributed.all_gather(others, weights)
    assert all(torch.equal(others[0], other) for other in others[1:])


def check_statistics(module, both):
    """The static part saw the statistics of both ranks' images."""
    joined = build("bn")
    joined.net.body(both.images.as_padded()[0])
    for name, wanted in joined.net.body.named_buffers():
        assert_close(module.net.body.get_buffer(name), wanted, rtol=1e-4, atol=1e-5, msg=name)


def worker(rank, rendezvous):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD, timeout=timedelta(seconds=120)
    )
    try:
        for mode in ("syncbn", "syncbn+gn"):
            train(rank, mode, fixed=False)
        with patch.object(panoptic, "active_group", side_effect=AssertionError("nobody needs to ask")):
            train(rank, "syncbn", fixed=True)
    finally:
        forget_groups()
        distributed.destroy_process_group()
    # it has passed; an orderly exit can abort in a thread of torch that outlives the interpreter
    os._exit(0)


def test_ranks_with_and_without_things_train_together():
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(worker, (os.path.join(folder, "rendezvous"),), nprocs=WORLD)
