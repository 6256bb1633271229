"""From gradients to weights: skipped and applied updates, clipping, and no reads from the device."""

import pytest
import torch
from support.host_reads import HostReads
from support.processes import launch
from support.small_updates import Worker, images, same, state_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from seamseg.ops.fused import autocast
from seamseg.training.checkpointing.checkpoint import load_stepper_state, stepper_state
from seamseg.utils.distributed import distributed

PRECISIONS = ("fp32", "bf16", "fp16")
KINDS = ("sgd", "adamw")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("precision", "what"),
    [("fp32", "loss"), ("fp32", "gradient"), ("bf16", "loss"), ("bf16", "gradient"), ("fp16", "loss")],
)
def test_nothing_changes_after_values_that_are_not_finite(precision, what, kind):
    worker = Worker(precision=precision, type=kind, ema=0.9, clip_norm=1.0)
    for seed in range(2):
        assert not worker.step(seed).skipped
    before = state_of(worker.stepper)
    bad = worker.step(2, loss_factor=float("nan")) if what == "loss" else worker.step(2, gradient=float("inf"))
    assert bad.skipped
    assert not torch.isfinite(bad.norm)
    for seed in range(3, 6):
        after = worker.step(seed)
        assert after.skipped
        assert torch.isfinite(after.loss)
    same(before, state_of(worker.stepper, scaler=False))


def test_a_loss_over_the_limit_counts_as_one():
    worker = Worker(loss_limit=100.0)
    assert not worker.step(0).skipped
    before = state_of(worker.stepper)
    assert [bool(worker.step(seed, factor).skipped) for seed, factor in ((1, 1e6), (2, 1.0))] == [True, True]
    same(before, state_of(worker.stepper))
    unlimited = Worker(loss_limit=0.0)
    assert not unlimited.step(0, 1e6).skipped


@pytest.mark.parametrize("kind", KINDS)
def test_overflow_of_fp16_skips_one_step(kind):
    worker = Worker(precision="fp16", type=kind, ema=0.9)
    worker.step(0)
    before, scale = state_of(worker.stepper), worker.stepper.scaler.get_scale()
    bad = worker.step(1, gradient=float("inf"))
    assert bad.skipped
    assert torch.isfinite(bad.loss)
    same(before, state_of(worker.stepper, scaler=False))
    assert worker.stepper.scaler.get_scale() == scale / 2
    good = worker.step(2)
    assert not good.skipped
    changed = state_of(worker.stepper, scaler=False)
    assert all(not torch.equal(changed[k], before[k]) for k in before if "weight" in k or "running" in k)


@pytest.mark.parametrize("kind", KINDS)
def test_overflow_in_the_first_step_has_no_effect(kind):
    """torch's fused SGD would continue from uninitialised memory."""
    one, two = Worker(precision="fp16", type=kind), Worker(precision="fp16", type=kind)
    one.step(0, gradient=float("inf"))
    for seed in range(1, 3):
        # another scale, a power of 2, changes no bit of these gradients
        one.step(seed), two.step(seed)
    same(state_of(one.stepper, scaler=False), state_of(two.stepper, scaler=False))


class Counting(torch.optim.Optimizer):
    """Of a user, with numbers of Python."""

    def __init__(self, params):
        super().__init__(params, {"steps": 0})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                state["steps"] = state.get("steps", 0) + 1
                parameter -= 0.1 / state["steps"] * parameter.grad


def test_a_skipped_step_of_fp16_is_not_counted():
    worker = Worker(precision="fp16")
    worker.stepper.optimizer = optimizer = Counting(worker.net.parameters())
    skipped = [
        bool(worker.step(seed, gradient=gradient).skipped) for seed, gradient in enumerate((0.0, torch.inf, 0.0))
    ]
    assert skipped == [False, True, False]
    assert (optimizer.steps, optimizer.param_groups[0]["steps"]) == (2, 2)
    assert {state["steps"] for state in optimizer.state.values()} == {2}


def test_clipping_is_that_of_torch():
    worker, reference = Worker(clip_norm=0.01), Worker()
    for seed in range(3):
        result = worker.step(seed)
        reference.stepper.begin()
        reference.stepper.backward(reference.loss(seed))
        norm = nn.utils.clip_grad_norm_(reference.net.parameters(), 0.01)
        reference.stepper.optimizer.step()
        # versions of torch add the squares in other orders
        torch.testing.assert_close(result.norm, norm, rtol=1e-6, atol=0)
        assert norm > 0.01
    torch.testing.assert_close(state_of(worker.stepper), state_of(reference.stepper), rtol=1e-6, atol=1e-8)


def test_high_limit_does_not_change_the_update():
    one, two = Worker(clip_norm=1e30), Worker()
    for seed in range(3):
        one.step(seed), two.step(seed)
    same(state_of(one.stepper), state_of(two.stepper))


def test_precisions_agree():
    norms = [Worker(precision=precision).step(0).norm for precision in ("fp32", "fp16")]
    torch.testing.assert_close(*norms, rtol=1e-2, atol=0)
    runs = {precision: Worker(precision=precision, lr=0.01) for precision in PRECISIONS}
    losses = {p: torch.stack([worker.step(seed % 2).loss for seed in range(8)]) for p, worker in runs.items()}
    torch.testing.assert_close(losses["bf16"], losses["fp32"], rtol=0.03, atol=0.01)
    torch.testing.assert_close(losses["fp16"], losses["fp32"], rtol=0.005, atol=0.002)
    assert losses["fp32"][-1] < losses["fp32"][0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_update_does_not_read_from_the_device(precision, kind):
    worker = Worker(precision=precision, type=kind, ema=0.9, clip_norm=0.1)
    worker.step(0)
    with HostReads() as reads:
        worker.step(1)
    assert reads.count == 0, reads


def test_scale_of_fp16_is_saved():
    worker = Worker(precision="fp16")
    worker.step(0, gradient=float("inf"))
    state = stepper_state(worker.stepper)
    assert set(state) == {"scaler"}
    assert all(isinstance(x, (int, float)) for x in tree_leaves(state))
    again = Worker(precision="fp16")
    load_stepper_state(again.stepper, state, "file")
    assert stepper_state(again.stepper) == state
    assert state["scaler"]["scale"] == 128.0
    plain = Worker()
    load_stepper_state(plain.stepper, state, "file")
    assert stepper_state(plain.stepper) == {}


# --- two processes: invalid values in one skip the step in both; both average the same statistics

CASES = {
    "fp32 loss": ("fp32", "loss", [False, True, True, True]),
    "fp32 gradient": ("fp32", "gradient", [False, True, True, True]),
    "fp16 loss": ("fp16", "loss", [False, True, True, True]),
    "fp16 gradient": ("fp16", "gradient", [False, True, False, False]),
}
"""Precision, the invalid value in the second step of the second process, and the steps that it skips."""


class Loss(nn.Module):
    def __init__(self, net, precision):
        super().__init__()
        self.net, self.precision = net, precision

    def forward(self, x):
        with autocast(self.precision, torch.device("cpu")):
            y = self.net.rpn_head(self.net.body(x))
        return (y.float() - 1).square().mean()


def work(rank, join, folder):
    """Run all cases and write the states of this process to a file."""
    found = {}
    for name, (precision, what, _) in CASES.items():
        join()
        with distributed("cpu") as world:
            worker = Worker(world, precision=precision, ema=0.9, clip_norm=10.0)
            bad = {"now": False}
            weight = worker.net.body[0].weight
            weight.register_hook(lambda g, bad=bad: g * torch.inf if bad["now"] else g)
            module = DistributedDataParallel(Loss(worker.net, precision), broadcast_buffers=False)
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


@pytest.mark.distributed
@pytest.mark.parametrize("name", CASES)
def test_both_hold_the_same_weights_and_skipped_steps_change_none(found, name):
    (steps, one), (others, two) = (process[name] for process in found)
    assert [bool(skipped) for _, skipped in steps] == [bool(skipped) for _, skipped in others] == CASES[name][2]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(steps, others) if torch.isfinite(a))
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


@pytest.mark.distributed
def test_statistics_of_the_average_are_shared_too(found):
    (_, one), (_, two) = (process["fp32 loss"] for process in found)
    # a norm layer that is not synchronised
    for key in ("net.body.3.running_mean", "ema.body.3.running_mean"):
        assert not torch.equal(one[-2][key], two[-2][key])
        assert torch.equal(one[-1][key], one[-2][key])
    same(one[-1], two[-1])
