"""Averages of the losses, and the check that stops a training."""

import pytest
import torch
from support.step_equality import Network, batch_of, images_of, in_float64
from torch.testing import assert_close

from seamseg.models.network import Losses
from seamseg.training.losses import MAX_OVERFLOWS, Diverged, InvalidStep, LossCheck, LossMeans
from seamseg.training.options import TrainerOptions
from seamseg.training.step import LossAverage, StepResult, combine_losses, preview_losses
from seamseg.utils.distributed import World


def losses(*values):
    return {name: torch.tensor(v, requires_grad=True) for name, v in zip(("obj_loss", "sem_loss"), values)}


def check_of(interval=1, **options):
    log = LossCheck(TrainerOptions(1, {}, **options), World())
    log.interval = interval
    return log


def add(log, step, ids, values, total, norm=1.0, skipped=False):
    log.add(step, StepResult(losses(*values), torch.tensor(total), ids, torch.tensor(norm), torch.tensor(skipped)))


def test_losses_are_read_once_an_interval():
    log = check_of(interval=2)
    add(log, 1, ["a"], (1.0, 2.0), 3.0)
    assert not log.full
    assert log.recent.state == {}
    add(log, 2, ["b"], (3.0, 2.0), 5.0, norm=4.0)
    assert log.full
    log.interval = 1
    assert log.full
    assert log.read() is None
    assert not log.full
    assert log.recent.pop_means() == {"obj_loss": 2.0, "sem_loss": 2.0, "loss": 4.0}
    assert log.gradients.pop_means() == {"grad_norm": 2.5}
    add(log, 3, ["c"], (1.0, 1.0), 2.0)
    assert log.read() is None
    assert log.read() is None
    assert log.recent.pop_means() == {"obj_loss": 1.0, "sem_loss": 1.0, "loss": 2.0}
    assert log.epoch.means()["loss"] == pytest.approx(10 / 3)
    assert "grad_norm" not in log.epoch.state
    options = TrainerOptions(1, {}, log_interval=7)
    assert [LossCheck(options, World(device=torch.device(name))).interval for name in ("cpu", "cuda")] == [1, 7]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_first_bad_step_is_found_with_its_images(value):
    log = check_of(interval=10)
    add(log, 7, ["fine"], (1.0, 2.0), 3.0)
    add(log, 8, ["left", "right"], (1.0, value), value, norm=value)
    add(log, 9, ["later"], (value, value), value, norm=value)
    found = log.read()
    assert (found.step, found.ids, found.of_loss) == (8, ["left", "right"], True)
    assert found.problem == f"sem_loss = {value}, loss = {value}"
    assert log.recent.pop_means()["loss"] == 3.0


def test_steps_skipped_by_float16_are_counted():
    log = check_of(interval=3, precision="fp16")
    for step, norm in enumerate((float("inf"), 2.0, float("nan"))):
        add(log, step, ["a"], (1.0, 2.0), 3.0, norm=norm, skipped=norm != 2.0)
    assert log.read() is None
    assert log.skipped == 2
    assert log.pop_means() == LossMeans({"obj_loss": 1.0, "sem_loss": 2.0, "loss": 3.0}, {"grad_norm": 2.0}, 2)
    assert log.pop_means() == LossMeans({}, {}, 0)


@pytest.mark.parametrize("between_epochs", [True, False])
def test_consecutive_overflows_are_counted_across_a_resume(between_epochs):
    before, after = check_of(precision="fp16"), check_of(precision="fp16")
    for step in range(MAX_OVERFLOWS - 1):
        add(before, step, ["a"], (1.0, 2.0), 3.0, norm=float("inf"), skipped=True)
        assert before.read() is None
    state = before.state_dict()
    after.load_state_dict(state)
    if between_epochs:
        after.begin_epoch()
        assert after.skipped == 0
    add(after, MAX_OVERFLOWS, ["a"], (1.0, 2.0), 3.0, norm=float("inf"), skipped=True)
    assert "in a row" in after.read().problem


def test_limits_and_gradients_that_are_not_finite():
    log = check_of(loss_limit=100)
    add(log, 1, ["a"], (1.0, 99.0), 100.0)
    assert log.read() is None
    add(log, 2, ["b"], (1.0, 100.0), 101.0)
    assert log.read().problem == "loss = 101 is above general.loss_limit = 100"
    add(log, 3, ["a"], (1.0, 2.0), 3.0, norm=float("inf"), skipped=True)
    found = log.read()
    assert (found.of_loss, found.problem) == (False, "gradient norm = inf")
    free = check_of()
    add(free, 1, ["b"], (1.0, 1e30), 1e30)
    assert free.read() is None


def test_losses_are_named_before_gradients_and_the_first_step_before_later_ones(monkeypatch):
    gradient, loss = InvalidStep(3, ["a"], "gradient norm = inf", False), InvalidStep(3, ["b"], "loss = nan", True)
    for found, problems in (
        ([gradient, None, loss, InvalidStep(4, ["c"], "loss = inf", True)], r"loss = nan \(process 2, images b\)"),
        ([None, gradient], r"gradient norm = inf \(process 1, images a\)"),
    ):
        monkeypatch.setattr("seamseg.training.losses.gather_objects", lambda *_, found=found: found)
        log = check_of()
        add(log, 3, ["a"], (1.0, 2.0), 3.0, norm=float("inf"))
        with pytest.raises(Diverged, match=rf"^training stopped at step 3: {problems}; lower "):
            log.check()


@pytest.mark.parametrize("name", ["weight", "running_var"])
def test_weights_that_are_not_finite(name):
    net, check = torch.nn.BatchNorm2d(3), check_of()
    check.check_weights(net, 4)
    net.state_dict()[name][1] = torch.inf
    with pytest.raises(Diverged, match=r"^training stopped after step 4: its weights are not finite; lower "):
        check.check_weights(net, 4)


# --- Mean losses over the batches of a step, or over all of its samples


def losses_of(mean, count):
    return Losses({"a": torch.tensor(mean, requires_grad=True)}, {"a": torch.tensor(float(count), dtype=torch.float64)})


def test_means_are_weighted_by_counts():
    whole = combine_losses(World(), [losses_of(1.0, 1), losses_of(3.0, 99), losses_of(0.0, 0)])
    assert whole.counts["a"].item() == 100
    assert whole.means["a"].item() == pytest.approx((1 + 3 * 99) / 100)
    nothing = combine_losses(World(), [losses_of(0.0, 0)])
    assert nothing.means["a"].item() == 0 == nothing.counts["a"].item()


@pytest.mark.parametrize(("by_step", "weights"), [(False, (0.5, 0.5)), (True, (0.01, 0.99))])
def test_by_process_each_batch_weighs_the_same_and_by_step_each_sample(by_step, weights):
    parts = [losses_of(1.0, 1), losses_of(3.0, 99)]
    average = LossAverage(2, World(), parts) if by_step else LossAverage(2)
    for part in parts:
        average.add(part)
    shares = [average.to_minimise(part)["a"] for part in parts]
    assert_close(torch.stack(shares), torch.tensor([weights[0], 3 * weights[1]]))
    assert_close(average.means()["a"], torch.tensor(weights[0] + 3 * weights[1]))
    sum(shares).backward()
    assert_close([part.means["a"].grad for part in parts], [torch.tensor(weight) for weight in weights])


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
