"""Averages and the store of losses."""

import pytest
import torch
from golden_files import array

from seamseg.engine.train.meters import AverageMeter, Averages, LossLog
from seamseg.errors import SeamsegError


def test_average_meter_golden():
    meter = AverageMeter(momentum=0.9)
    for value, expected in zip([1.0, 2.0, 0.5, 4.0], array("ops", "meters/average_m.9_1_2_.5_4")):
        meter.update(value)
        assert [meter.last, meter.mean, meter.sum, meter.count] == pytest.approx(expected.tolist(), rel=1e-6)
    assert {name: float(value) for name, value in meter.state_dict().items()} == pytest.approx(
        {"last": 4.0, "sum": 6.799, "count": 3.439}
    )


def test_taking_averages_begins_anew():
    averages = Averages()
    averages.update({"a": 1.0})
    averages.update({"a": 3.0})
    assert averages.take() == {"a": 2.0}
    averages.update({"a": 5.0})
    assert averages.take() == {"a": 5.0}


def losses(*values):
    return {name: torch.tensor(v, requires_grad=True) for name, v in zip(("obj_loss", "sem_loss"), values)}


def test_losses_are_read_once_an_interval():
    log = LossLog(interval=2)
    log.add(1, ["a"], losses(1.0, 2.0), torch.tensor(3.0))
    assert log.recent.meters == {}
    log.add(2, ["b"], losses(3.0, 2.0), torch.tensor(5.0))
    assert log.recent.take() == {"obj_loss": 2.0, "sem_loss": 2.0, "loss": 4.0}
    log.add(3, ["c"], losses(1.0, 1.0), torch.tensor(2.0))
    log.flush()
    assert log.recent.take() == {"obj_loss": 1.0, "sem_loss": 1.0, "loss": 2.0}
    assert log.epoch.meters["loss"].mean == pytest.approx(10 / 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_first_bad_step_is_named_with_its_images(value):
    log = LossLog(interval=10)
    log.add(7, ["fine"], losses(1.0, 2.0), torch.tensor(3.0))
    log.add(8, ["left", "right"], losses(1.0, value), torch.tensor(value))
    log.add(9, ["later"], losses(value, value), torch.tensor(value))
    with pytest.raises(SeamsegError, match=rf"stopped at step 8: sem_loss = {value}, .*images left, right\)") as caught:
        log.flush()
    assert "\n" not in str(caught.value) and "obj_loss" not in str(caught.value)
