"""Averages of the losses, and the check that stops a training."""

import pytest
import torch

from seamseg.training.losses import MAX_OVERFLOWS, Diverged, LossCheck, LossMeans
from seamseg.training.options import TrainerOptions
from seamseg.training.step import StepResult
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


def test_the_first_bad_step_stops_the_training():
    checked = LossCheck(TrainerOptions(1, {}, loss_limit=100), World())
    add(checked, 1, ["a"], (1.0, 2.0), 3.0)
    assert checked.full
    checked.check()
    add(checked, 2, ["b", "c"], (1.0, 100.0), 101.0)
    with pytest.raises(Diverged, match=r"^training stopped at step 2: loss = 101 is above .* \(images b, c\); lower "):
        checked.state_dict()
    # after an exception no other process is asked
    checked = LossCheck(TrainerOptions(1, {}), World(1, 2))
    add(checked, 1, ["a"], (1.0, 2.0), float("nan"))
    with pytest.raises(Diverged, match=r"loss = nan \(images a\)"), checked.explaining():
        raise RuntimeError("of weights that are not finite")


@pytest.mark.parametrize("name", ["weight", "running_var"])
def test_weights_that_are_not_finite(name):
    net, check = torch.nn.BatchNorm2d(3), check_of()
    check.check_weights(net, 4)
    net.state_dict()[name][1] = torch.inf
    with pytest.raises(Diverged, match=r"^training stopped after step 4: its weights are not finite; lower "):
        check.check_weights(net, 4)
