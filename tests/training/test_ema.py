"""The moving average of the weights: its formula, swapping it into the network, loading it from a snapshot."""

import copy

import pytest
import torch
from support.small_snapshots import save_snapshot
from support.small_updates import Worker, same, small_net, state_of, stepper_of

from seamseg.checkpoints.pretrained import load_pretrained
from seamseg.checkpoints.snapshot import Snapshot, load_into, load_snapshot, network_state
from seamseg.utils.errors import InputError


def test_average_matches_its_formula():
    worker = Worker(ema=0.6)
    expected = worker.net.body[0].weight.detach().double()
    for number in range(8):
        worker.step(number)
        own = worker.net.body[0].weight.detach().double()
        keep = min(0.6, (1 + number) / (10 + number))
        expected = keep * expected + (1 - keep) * own
        torch.testing.assert_close(
            worker.stepper.ema.state_dict()["body"]["0.weight"].double(), expected, rtol=1e-5, atol=1e-7
        )
    assert worker.stepper.ema.state_dict()["updates"] == 8


def test_decay_reaches_the_configured_value():
    worker = Worker(ema=0.15)
    worker.step(0), worker.step(1)
    before, average = state_of(worker.stepper), worker.stepper.ema.state_dict()["body"]
    assert worker.stepper.ema.state_dict()["updates"] == 2
    worker.step(2)
    after = state_of(worker.stepper)
    expected = torch.lerp(before["ema.body.0.weight"], after["net.body.0.weight"], 0.85)
    torch.testing.assert_close(average["0.weight"], expected)


def test_average_does_not_change_the_training():
    with_it, without = Worker(ema=0.9), Worker()
    for seed in range(4):
        one, two = with_it.step(seed), without.step(seed)
        assert torch.equal(one.loss, two.loss)
        assert torch.equal(one.norm, two.norm)
    same({k: v for k, v in state_of(with_it.stepper).items() if not k.startswith("ema")}, state_of(without.stepper))


def test_running_statistics_are_averaged_and_counters_copied():
    worker = Worker(ema=0.9)
    for seed in range(3):
        worker.step(seed)
    state = worker.stepper.ema.state_dict()["body"]
    assert state["1.num_batches_tracked"] == 3
    for key in ("1.running_mean", "3.running_var"):
        assert not torch.equal(state[key], worker.net.body.state_dict()[key])
    assert len(worker.stepper.ema.statistics) == 4


def test_frozen_weights_are_not_averaged():
    worker = Worker()
    worker.net.body[0].weight.requires_grad_(False)
    worker.stepper = stepper_of(worker.net, ema=0.9)
    worker.step(0)
    state = worker.stepper.ema.state_dict()["body"]
    assert state["0.weight"].data_ptr() == worker.net.body[0].weight.data_ptr()
    assert not torch.equal(state["2.weight"], worker.net.body[2].weight)


def test_average_is_swapped_in_and_out():
    worker = Worker(ema=0.9)
    for seed in range(2):
        worker.step(seed)
    before, average = state_of(worker.stepper), worker.stepper.ema.state_dict()
    addresses = [t.data_ptr() for t in worker.net.state_dict().values()]
    with worker.stepper.averaged():
        held = network_state(worker.net)
        assert all(torch.equal(held[part][key], average[part][key]) for part in held for key in held[part])
        assert not torch.equal(held["body"]["0.weight"], before["net.body.0.weight"])
        with worker.stepper.averaged():
            pass
        assert torch.equal(worker.net.body[0].weight, average["body"]["0.weight"])
    same(before, state_of(worker.stepper))

    def fail():
        with worker.stepper.averaged():
            worker.net.body[0].weight.data.zero_()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    same(before, state_of(worker.stepper))
    assert addresses == [t.data_ptr() for t in worker.net.state_dict().values()]
    plain = Worker()
    before = state_of(plain.stepper)
    with plain.stepper.averaged():
        same(before, state_of(plain.stepper))


def test_state_is_saved_and_continues():
    one = Worker(ema=0.9)
    one.step(0), one.step(1)
    two = copy.deepcopy(one)
    saved = copy.deepcopy(one.stepper.state_dict())
    assert saved["ema"].keys() == {"body", "rpn_head", "updates"}
    assert {part: t.keys() for part, t in network_state(one.net).items()} == {
        part: saved["ema"][part].keys() for part in ("body", "rpn_head")
    }
    two.stepper.ema.reset()
    two.stepper.load_state_dict({"body": {}, **saved}, "file")
    one.step(2), two.step(2)
    same(state_of(one.stepper), state_of(two.stepper))


def test_without_a_saved_average_it_starts_from_the_current_weights():
    worker = Worker(ema=0.9)
    worker.step(0)
    worker.stepper.load_state_dict({"body": {}}, "file")
    state = worker.stepper.ema.state_dict()
    assert state["updates"] == 0
    for part, tensors in network_state(worker.net).items():
        assert all(torch.equal(state[part][key], value) for key, value in tensors.items())


@pytest.mark.parametrize("damage", ["part", "key", "shape", "type", "count", "all"])
def test_the_average_of_another_network_is_refused(damage):
    worker = Worker(ema=0.9)
    worker.step(0)
    before, state = state_of(worker.stepper), copy.deepcopy(worker.stepper.state_dict())
    average = state["ema"]
    if damage == "part":
        del average["rpn_head"]
    elif damage == "key":
        del average["rpn_head"]["bias"]
    elif damage == "shape":
        average["rpn_head"]["bias"] = torch.zeros(3)
    elif damage == "type":
        average["rpn_head"]["bias"] = "text"
    elif damage == "count":
        del average["updates"]
    else:
        state["ema"] = 3
    with pytest.raises(InputError, match=r"old\.tar: its moving average .* optimizer\.ema=0"):
        worker.stepper.load_state_dict(state, "old.tar")
    same(before, state_of(worker.stepper))


@pytest.fixture
def snapshot(tmp_path):
    """A snapshot of weights 1 whose average is 2."""
    net = small_net()
    state = network_state(net)
    ones, twos = ({p: {k: torch.full_like(v, n) for k, v in t.items()} for p, t in state.items()} for n in (1, 2))
    path = tmp_path / "snapshot.tar"
    save_snapshot(path, Snapshot("", {**ones, "ema": {**twos, "updates": torch.tensor(7)}}))
    return path


def test_snapshot_loads_the_average_by_default(snapshot):
    net, loaded = small_net(), load_snapshot(snapshot)
    report = load_into(net, loaded)
    assert report.averaged
    assert all((t == 2).all() for t in net.state_dict().values())
    assert str(report) == f"loaded {len(net.state_dict())} tensors of the moving average"
    report = load_into(net, loaded, averaged=False)
    assert not report.averaged
    assert all((t == 1).all() for t in net.state_dict().values())
    del loaded.state_dict["ema"]
    report = load_into(net, loaded)
    assert not report.averaged
    assert "moving" not in str(report)


@pytest.mark.parametrize("part", ["", "body:", "rpn_head:"])
def test_pre_training_starts_from_the_average(snapshot, part):
    net = small_net()
    report = load_pretrained(net, f"{part}{snapshot}")
    assert report.averaged
    assert "of the moving average" in str(report)
    module = getattr(net, part[:-1]) if part else net
    assert all((t == 2).all() for t in module.state_dict().values())


@pytest.mark.parametrize("average", [3, {"body": 3}])
def test_damaged_average_is_an_error(snapshot, average, tmp_path):
    loaded = load_snapshot(snapshot)
    loaded.state_dict["ema"] = average
    save_snapshot(tmp_path / "bad.tar", loaded)
    with pytest.raises(InputError, match=r"bad\.tar: its 'ema', the moving average of the weights, is damaged"):
        load_snapshot(tmp_path / "bad.tar")
