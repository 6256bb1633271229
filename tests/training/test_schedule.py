"""Learning-rate schedules against stored values of the original, and their errors."""

import ast
import json

import numpy as np
import pytest
from support.golden_files import array

from seamseg.training.optim.schedule import CurveSchedule
from seamseg.utils.errors import InputError

CONFIGS = json.loads(bytes(array("ops", "scheduler/_configs")))


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_golden(name):
    config, case = CONFIGS[name]["config"], CONFIGS[name]
    schedule = CurveSchedule(
        config["type"],
        ast.literal_eval(config["params"]),
        case["base_lrs"],
        int(config["epochs"]),
        case["epoch_length"],
        config["update_mode"],
        int(config["burn_in_steps"]),
        float(config["burn_in_start"]),
    )
    rates = np.array([schedule.get_lr(t, t) for t in range(1, 1001)])
    np.testing.assert_allclose(rates, array("ops", f"scheduler_get_lr/{name}"), rtol=0, atol=1e-16)


def test_epochs_count_with_update_mode_epoch_and_burn_in_counts_steps():
    schedule = CurveSchedule("step", {"step_size": 1, "gamma": 0.5}, [1.0], 3, 10, "epoch", burn_in_steps=4)
    assert [schedule.factor(4, 0), schedule.factor(5, 0), schedule.factor(15, 1), schedule.factor(30, 2)] == [
        1.0,
        1.0,
        0.5,
        0.25,
    ]


def test_beyond_the_end_poly_stays_zero():
    assert CurveSchedule("poly", {"gamma": 0.9}, [1.0], 1, 10).get_lr(11, 1) == [0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cosine", {}, [1.0], 1, 1), "unknown schedule 'cosine'"),
        (("poly", {}, [1.0], 1, 1), "a poly schedule needs gamma"),
        (("multistep", {"gamma": 1}, [1.0], 1, 1), "needs milestones"),
        (("step", {"gamma": 1, "step_size": 0}, [1.0], 1, 1), "step_size must be positive"),
        (("poly", {"gamma": 1}, [1.0], 0, 1), "epochs"),
        (("poly", {"gamma": 1}, [1.0], 1, 1, "minute"), "update_mode"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(InputError, match=message):
        CurveSchedule(*arguments)
