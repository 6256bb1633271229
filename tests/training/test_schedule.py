"""Learning-rate schedules against stored values of the original, and their errors."""

import json
from dataclasses import fields

import numpy as np
import pytest
from support.golden_files import array

from seamseg.config import config_from_string
from seamseg.config.sections import Scheduler
from seamseg.training.optim.schedule import CurveSchedule
from seamseg.utils.errors import InputError

SECTION = {spec.name for spec in fields(Scheduler)}
CONFIGS = json.loads(bytes(array("ops", "scheduler/_configs")))


def schedule(base_lrs, epoch_length, **options):
    """Of the section `[scheduler]`."""
    given = {key: value for key, value in {"burn_in_steps": 0, **options}.items() if key in SECTION}
    text = "[scheduler]\n" + "".join(f"{key} = {value}\n" for key, value in given.items())
    config = config_from_string(text)
    curve, keys = config.component("scheduler")
    return CurveSchedule(curve.make, keys, config.scheduler, base_lrs, epoch_length)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_golden(name):
    config, case = CONFIGS[name]["config"], CONFIGS[name]
    found = schedule(case["base_lrs"], case["epoch_length"], **config)
    rates = np.array([found.get_lr(t, t) for t in range(1, 1001)])
    np.testing.assert_allclose(rates, array("ops", f"scheduler_get_lr/{name}"), rtol=0, atol=1e-16)


def test_epochs_count_with_update_mode_epoch_and_burn_in_counts_steps():
    params = {"step_size": 1, "gamma": 0.5}
    found = schedule([1.0], 10, type="step", params=params, epochs=3, update_mode="epoch", burn_in_steps=4)
    assert [found.factor(*at) for at in ((4, 0), (5, 0), (15, 1), (30, 2))] == [1.0, 1.0, 0.5, 0.25]


def test_beyond_the_end_poly_stays_zero():
    found = schedule([1.0], 10, type="poly", params={"gamma": 0.9}, epochs=1, update_mode="batch")
    assert found.get_lr(11, 1) == [0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "cosine"}, "no scheduler 'cosine'; known are linear, multistep, poly, step"),
        ({"type": "poly", "params": {}}, "a poly schedule needs gamma"),
        ({"type": "multistep", "params": {"gamma": 1}}, "needs milestones"),
        ({"type": "step", "params": {"gamma": 1, "step_size": 0}}, "step_size must be positive"),
        ({"type": "poly", "params": {"gamma": 1}, "epochs": 0}, "epochs"),
        ({"type": "poly", "params": {"gamma": 1}, "update_mode": "minute"}, "update_mode"),
    ],
)
def test_errors(options, message):
    with pytest.raises(InputError, match=message):
        schedule([1.0], 1, **options)
