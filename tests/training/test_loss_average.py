"""Mean losses over the batches of a step, or over all of its samples."""

import pytest
import torch
from support.step_equality import Network, batch_of, images_of, in_float64
from torch.testing import assert_close

from seamseg.models.network import Losses
from seamseg.training.step import ProcessAverage, StepAverage, combine_losses, preview_losses
from seamseg.utils.distributed import World


def losses(mean, count):
    return Losses({"a": torch.tensor(mean, requires_grad=True)}, {"a": torch.tensor(float(count), dtype=torch.float64)})


def test_means_are_weighted_by_counts():
    whole = combine_losses(World(), [losses(1.0, 1), losses(3.0, 99), losses(0.0, 0)])
    assert whole.counts["a"].item() == 100
    assert whole.means["a"].item() == pytest.approx((1 + 3 * 99) / 100)
    nothing = combine_losses(World(), [losses(0.0, 0)])
    assert nothing.means["a"].item() == 0 == nothing.counts["a"].item()


def test_by_process_each_batch_weighs_the_same():
    average = ProcessAverage(2)
    shares = [average.add(losses(1.0, 1))["a"], average.add(losses(3.0, 99))["a"]]
    assert [share.item() for share in shares] == [0.5, 1.5]
    assert average.means()["a"].item() == 2.0


def test_by_step_each_sample_weighs_the_same():
    parts = [losses(1.0, 1), losses(3.0, 99)]
    average = StepAverage(World(), parts)
    shares = [average.add(part)["a"] for part in parts]
    assert_close(torch.stack(shares), torch.tensor([0.01, 2.97]))
    assert_close(average.means()["a"], torch.tensor(2.98))
    sum(shares).backward()
    assert_close(parts[1].means["a"].grad, torch.tensor(0.99))


def test_preview_has_no_side_effects_and_the_counts_of_training():
    with in_float64():
        # few samples, so that they are chosen at random
        network = Network("bn", World(), "rpn.num_samples=16", "roi.num_samples=8")
        network.begin(1)
        batches = [batch_of(part) for part in images_of(1, 3)]
        before, rng_state = network.buffers(), torch.get_rng_state()
        ahead = preview_losses(network.module, batches, torch.device("cpu"))
        assert all(torch.equal(b, before[name]) for name, b in network.buffers().items())
        assert torch.equal(rng_state, torch.get_rng_state())
        trained = [network.module(batch) for batch in batches]
        assert any(float(part.counts["roi_msk_loss"]) > 0 for part in trained)
        for one, two in zip(ahead, trained):
            assert not one.means["obj_loss"].requires_grad
            assert two.means["obj_loss"].requires_grad
            assert one.counts == two.counts
            assert all(one.means[name].item() == two.means[name].item() for name in two.means)
