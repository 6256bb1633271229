"""From gradients to weights: skipped and applied updates, clipping, and no reads from the device."""

import copy

import pytest
import torch
from support.host_reads import HostReads
from support.micro import train
from support.processes import launch
from support.small_models import save_snapshot
from support.small_updates import Worker, images, same, small_net, state_of, stepper_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import seamseg
from seamseg.checkpoints.pretrained import load_pretrained
from seamseg.checkpoints.snapshot import Snapshot, load_into, load_snapshot, network_state
from seamseg.ops.fused import autocast
from seamseg.training.checkpointing.checkpoint import load_stepper_state, stepper_state
from seamseg.utils.distributed import distributed
from seamseg.utils.errors import InputError
from seamseg.validation.validator import Validator

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


def test_a_skipped_step_of_fp16_is_not_counted():
    worker = Worker(precision="fp16")
    # not fused
    worker.stepper.optimizer = optimizer = torch.optim.NAdam(worker.net.parameters())
    skipped = [
        bool(worker.step(seed, gradient=gradient).skipped) for seed, gradient in enumerate((0.0, torch.inf, 0.0))
    ]
    assert skipped == [False, True, False]
    assert {float(state["step"]) for state in optimizer.state.values()} == {2}


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


# --- the moving average of the weights


@pytest.mark.parametrize("decay", [0.6, 0.15])
def test_average_matches_its_formula(decay):
    worker = Worker(ema=decay)
    expected = worker.net.body[0].weight.detach().double()
    for number in range(8):
        worker.step(number)
        own = worker.net.body[0].weight.detach().double()
        keep = min(decay, (1 + number) / (10 + number))
        expected = keep * expected + (1 - keep) * own
        torch.testing.assert_close(
            worker.stepper.ema.state_dict()["body"]["0.weight"].double(), expected, rtol=1e-5, atol=1e-7
        )
    assert worker.stepper.ema.state_dict()["updates"] == 8


def test_running_statistics_are_averaged_and_counters_and_frozen_weights_copied():
    worker = Worker()
    worker.net.body[0].weight.requires_grad_(False)
    worker.stepper = stepper_of(worker.net, ema=0.9)
    for seed in range(3):
        worker.step(seed)
    state = worker.stepper.ema.state_dict()["body"]
    assert state["1.num_batches_tracked"] == 3
    assert state["0.weight"].data_ptr() == worker.net.body[0].weight.data_ptr()
    for key in ("1.running_mean", "3.running_var", "2.weight"):
        assert not torch.equal(state[key], worker.net.body.state_dict()[key])
    assert len(worker.stepper.ema.statistics) == 4


def test_average_is_swapped_in_and_out():
    worker = Worker(ema=0.9)
    for seed in range(2):
        worker.step(seed)
    before, average = state_of(worker.stepper), worker.stepper.ema.state_dict()
    addresses = [t.data_ptr() for t in worker.net.state_dict().values()]
    with worker.stepper.ema.swapped_in():
        held = network_state(worker.net)
        assert all(torch.equal(held[part][key], average[part][key]) for part in held for key in held[part])
        assert not torch.equal(held["body"]["0.weight"], before["net.body.0.weight"])
    same(before, state_of(worker.stepper))
    assert addresses == [t.data_ptr() for t in worker.net.state_dict().values()]


def test_state_is_saved_and_continues():
    one = Worker(ema=0.9)
    one.step(0), one.step(1)
    two = copy.deepcopy(one)
    saved = copy.deepcopy(stepper_state(one.stepper))
    assert saved["ema"].keys() == {"body", "rpn_head", "updates"}
    assert {part: t.keys() for part, t in network_state(one.net).items()} == {
        part: saved["ema"][part].keys() for part in ("body", "rpn_head")
    }
    two.stepper.ema.reset()
    load_stepper_state(two.stepper, {"body": {}, **saved}, "file")
    one.step(2), two.step(2)
    same(state_of(one.stepper), state_of(two.stepper))
    load_stepper_state(Worker().stepper, saved, "a training without an average")
    # without a saved one it starts from the current weights
    load_stepper_state(one.stepper, {"body": {}}, "file")
    state = one.stepper.ema.state_dict()
    assert state["updates"] == 0
    for part, tensors in network_state(one.net).items():
        assert all(torch.equal(state[part][key], value) for key, value in tensors.items())


@pytest.mark.parametrize("damage", [{"rpn_head": 3}, {"rpn_head": {"bias": torch.zeros(3)}}, {"updates": None}])
def test_the_average_of_another_network_is_refused(damage):
    worker = Worker(ema=0.9)
    state = {"ema": {**stepper_state(worker.stepper)["ema"], **damage}}
    with pytest.raises(InputError, match=r"old\.tar: its moving average .* optimizer\.ema=0"):
        load_stepper_state(worker.stepper, state, "old.tar")


def test_the_average_of_a_snapshot_is_loaded_by_default(tmp_path):
    net, path = small_net(), tmp_path / "snapshot.tar"
    state = network_state(net)
    ones, twos = ({p: {k: torch.full_like(v, n) for k, v in t.items()} for p, t in state.items()} for n in (1, 2))
    save_snapshot(path, Snapshot("", {**ones, "ema": {**twos, "updates": torch.tensor(7)}}))
    loaded = load_snapshot(path)
    for averaged, value in ((True, 2), (False, 1)):
        report = load_into(net, loaded, averaged=averaged)
        assert report.averaged == averaged
        assert all((t == value).all() for t in net.state_dict().values())
    net = small_net()
    report = load_pretrained(net, f"body:{path}")
    assert str(report) == f"loaded {len(net.body.state_dict())} tensors of the moving average"
    assert all((t == 2).all() for t in net.body.state_dict().values())
    del loaded.state_dict["ema"]
    report = load_into(net, loaded)
    assert not report.averaged
    assert "moving" not in str(report)


@pytest.mark.usefixtures("narrow")
def test_average_is_validated_and_used_for_prediction(micro, micro_config, tmp_path, monkeypatch, seamseg_main, capsys):
    seen, score = [], Validator.score

    def watched(self, predictor, *args, **options):
        head = predictor.network.net.rpn_head
        seen.append(head.state_dict()["conv1.weight"].clone())
        return score(self, predictor, *args, **options)

    monkeypatch.setattr(Validator, "score", watched)
    last = tmp_path / "run" / "model_last.pth.tar"
    train(micro_config, micro, tmp_path / "run", "optimizer.ema=0.9", "scheduler.epochs=1")
    train(micro_config, micro, tmp_path / "eval", evaluate=True, resume=last)
    assert seamseg_main("evaluate", last, micro, "--device", "cpu") == 0
    assert "model_last.pth.tar: scoring the moving average of its weights" in capsys.readouterr().err
    trained, alone, _ = seen  # the last has its norms folded
    state = load_snapshot(last).state_dict
    assert state["ema"]["updates"] == 2
    average = state["ema"]["rpn_head"]["conv1.weight"]
    assert torch.equal(trained, average)
    assert torch.equal(alone, average)
    assert not torch.equal(state["rpn_head"]["conv1.weight"], average)
    assert seamseg.load(last, device="cpu").network.averaged
