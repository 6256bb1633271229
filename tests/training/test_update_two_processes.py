"""Two processes (gloo): invalid values in one of them skip the step in both; both average the same statistics."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.processes import launch
from support.small_updates import Worker, images, same, state_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from seamseg.training.step import autocast
from seamseg.utils.distributed import distributed

pytestmark = pytest.mark.distributed

CASES = {
    "fp32 loss": ("fp32", "loss", [False, True, True, True]),
    "fp32 gradient": ("fp32", "gradient", [False, True, True, True]),
    "fp16 loss": ("fp16", "loss", [False, True, True, True]),
    "fp16 gradient": ("fp16", "gradient", [False, True, False, False]),
}
"""Precision, the invalid value in the second step of the second process, and the steps that it skips."""


class _Module(nn.Module):
    def __init__(self, net: nn.Module, precision: str) -> None:
        super().__init__()
        self.net, self.precision = net, precision

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with autocast(self.precision, torch.device("cpu")):
            y = self.net.rpn_head(self.net.body(x))
        return (y.float() - 1).square().mean()


def work(rank: int, join: Callable[[], None], folder: Path) -> None:
    """Run all cases and write the states of this process to a file."""
    found = {}
    for name, (precision, what, _) in CASES.items():
        join()
        with distributed("cpu") as world:
            worker = Worker(world, precision=precision, ema=0.9, clip_norm=10.0)
            bad = {"now": False}
            weight = worker.net.body[0].weight
            weight.register_hook(lambda g, bad=bad: g * torch.inf if bad["now"] else g)
            module = DistributedDataParallel(_Module(worker.net, precision), broadcast_buffers=False)
            steps, states = [], [state_of(worker.stepper)]
            for number in range(4):
                now = rank == 1 and number == 1
                bad["now"] = now and what == "gradient"
                worker.stepper.begin()
                loss = module(images(10 * number + rank)) * (float("nan") if now and what == "loss" else 1.0)
                worker.stepper.backward(loss)
                norm, skipped = worker.stepper.update(loss.detach())
                steps.append((norm, skipped))
                states.append(state_of(worker.stepper))
            worker.stepper.share_statistics()
            states.append(state_of(worker.stepper))
            found[name] = (steps, states)
    torch.save(found, folder / f"{rank}.pth")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The states of both processes."""
    folder = tmp_path_factory.mktemp("two")
    launch(work, 2, folder)
    return [torch.load(folder / f"{rank}.pth", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("name", CASES)
def test_both_skip_the_same_steps(found, name):
    expected = CASES[name][2]
    (one, _), (two, _) = (process[name] for process in found)
    assert [bool(skipped) for _, skipped in one] == [bool(skipped) for _, skipped in two] == expected
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(one, two) if torch.isfinite(a))


@pytest.mark.parametrize("name", CASES)
def test_both_hold_the_same_weights_and_skipped_steps_change_none(found, name):
    (_, one), (_, two) = (process[name] for process in found)
    for a, b in zip(one, two):
        own = [key for key in a if "running" in key]
        same({k: v for k, v in a.items() if k not in own}, {k: v for k, v in b.items() if k not in own})
    for states in (one, two):
        for number, skipped in enumerate(CASES[name][2]):
            before, after = ({k: v for k, v in s.items() if k != "scale"} for s in states[number : number + 2])
            if skipped:
                same(before, after)
            else:
                assert not torch.equal(before["net.body.0.weight"], after["net.body.0.weight"])


def test_statistics_of_the_average_are_shared_too(found):
    (_, one), (_, two) = (process["fp32 loss"] for process in found)
    # a norm layer that is not synchronised
    for key in ("net.body.3.running_mean", "ema.body.3.running_mean"):
        assert not torch.equal(one[-2][key], two[-2][key])
        assert torch.equal(one[-1][key], one[-2][key])
    same(one[-1], two[-1])
