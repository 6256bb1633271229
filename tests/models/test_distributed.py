"""Training in several processes: ranks without things run the ROI head on zero rows, and all ranks stay equal."""

from unittest.mock import patch

import pytest
import torch
from support.networks import narrow_module, part_of, toy_batch
from support.processes import launch
from support.sections import roi
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from seamseg.models.heads.roi import ROIHead
from seamseg.ops.norm import InPlaceABN, InPlaceABNSync
from seamseg.utils.distributed import distributed, gather_objects

pytestmark = pytest.mark.distributed

EMPTY = [(), (1,), (0, 1), (0,)]
"""Which ranks have no thing in their image, step by step."""


def train(world, mode, *overrides):
    module = narrow_module(*overrides, mode=mode)
    # every rank runs every part in every step: no parameter is unused
    parallel = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    for step, empty in enumerate(EMPTY):
        # of one size so that they can be joined
        both = toy_batch((64, 80), (64, 80), empty=empty)
        losses = parallel(part_of(both, world.rank)).means
        assert (losses["roi_msk_loss"] > 0) == (world.rank not in empty)
        optimizer.zero_grad()
        sum(losses.values()).backward()
        if step == 0 and mode == "syncbn":
            check_statistics(module, both)
        optimizer.step()
        assert all(torch.isfinite(loss) for loss in losses.values())
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert all(torch.equal(weights, other) for other in gather_objects(world, weights))


def check_statistics(module, both):
    """Norms of body and semantic head use the statistics of the images of both ranks."""
    joined = narrow_module()
    joined.net.body(both.images.as_padded()[0])
    for name, wanted in joined.net.body.named_buffers():
        assert_close(module.net.body.get_buffer(name), wanted, rtol=1e-4, atol=1e-5, msg=name)


def work(rank, join):
    join()
    no_more = patch.object(torch.distributed, "new_group", side_effect=AssertionError("no group but that of all ranks"))
    with distributed("cpu") as world, no_more:
        for mode in ("syncbn", "syncbn+gn"):
            train(world, mode)
        train(world, "syncbn", "roi.fixed_samples=yes")
        # on ranks without things the mask branch alone has zero rows
        train(world, "syncbn", "roi.mask_positives_only=yes", "roi.sample_empty_images=yes")


def compare_heads(world, counts):
    """The ROI head on the rows of each rank, of which `counts` has the numbers, and on all rows in one process."""
    torch.manual_seed(0)
    config = roi(roi_size=(8, 8), fc_channels=6, conv_channels=5)
    single, parallel = (ROIHead(config, 4, 3, norm).double() for norm in (InPlaceABN, InPlaceABNSync))
    parallel.load_state_dict(single.state_dict())
    x = torch.randn(sum(counts), 4, 8, 8, dtype=torch.float64)
    start = sum(counts[: world.rank])
    mine = slice(start, start + counts[world.rank])
    leaves = x.clone().requires_grad_(), x[mine].clone().requires_grad_()
    # the even rows of each rank have masks
    masked = torch.cat([torch.arange(0, n, 2) + sum(counts[:rank]) for rank, n in enumerate(counts)])
    together = single(leaves[0], masked)
    part = parallel(leaves[1], torch.arange(0, counts[world.rank], 2))
    first = sum((n + 1) // 2 for n in counts[: world.rank])
    masks = slice(first, first + part[2].shape[0])
    for got, wanted in zip(part, (together[0][mine], together[1][mine], together[2][masks])):
        assert_close(got, wanted)
    for logits in (together, part):
        sum(t.square().sum() + t.sum() for t in logits).backward()
    assert_close(leaves[1].grad, leaves[0].grad[mine], rtol=1e-7, atol=1e-10)
    for (name, one), many in zip(single.named_parameters(), parallel.parameters()):
        torch.distributed.all_reduce(many.grad)
        assert_close(many.grad, one.grad, rtol=1e-7, atol=1e-10, msg=name)
    for (name, one), many in zip(single.named_buffers(), parallel.buffers()):
        assert_close(many, one, msg=name)


def heads(rank, join):
    join()
    with distributed("cpu") as world:
        for counts in ((3, 0, 2), (0, 4, 0), (1, 0, 0), (0, 0, 0)):
            compare_heads(world, counts)


def test_a_head_on_zero_rows_equals_one_process_with_all_rows():
    launch(heads, 3)


def test_ranks_with_and_without_things_train_together():
    launch(work, 2)
