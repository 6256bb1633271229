"""Training in several processes: ranks without things run the ROI head on zero rows, and all ranks stay equal."""

from unittest.mock import patch

import pytest
import torch
from support.networks import narrow_module, part_of, toy_batch
from support.processes import launch
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close

from seamseg.utils.distributed import distributed, gather_objects

pytestmark = pytest.mark.distributed


def train(world, mode, *overrides):
    module = narrow_module(*overrides, mode=mode)
    # every rank runs every part in every step: no parameter is unused
    parallel = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    # which ranks have no thing in their image
    for step, empty in enumerate([(), (1,), (0, 1), (0,)]):
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
    return weights


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
        found, gather = [], torch.distributed.all_gather_into_tensor
        for checkpoint in ("no", "yes"):
            with patch.object(torch.distributed, "all_gather_into_tensor", side_effect=gather) as counted:
                found.append((train(world, "syncbn", f"general.checkpoint_body={checkpoint}"), counted.call_count))
        assert torch.equal(found[0][0], found[1][0])
        assert found[0][1] == found[1][1] > 0, "the recomputation does not communicate"
        train(world, "syncbn+gn")
        train(world, "syncbn", "roi.fixed_samples=yes")
        # on ranks without things the mask branch alone has zero rows
        train(world, "syncbn", "roi.mask_positives_only=yes", "roi.sample_empty_images=yes")


def test_ranks_with_and_without_things_train_together():
    launch(work, 2)
