"""The moving average of the weights: its formula, swapping it into the network, loading it from a snapshot."""

import copy
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from support.micro import narrow_body, train
from support.small_snapshots import save_snapshot
from support.small_updates import Worker, same, small_net, state_of, stepper_of

from seamseg.checkpoints.pretrained import load_pretrained
from seamseg.checkpoints.snapshot import NETWORK_MODULES, Snapshot, load_into, load_snapshot, network_state
from seamseg.models.heads.rpn import RPNHead
from seamseg.utils.errors import InputError
from seamseg.validation.validator import Validator


@pytest.mark.parametrize("decay", [0.6, 0.15])
def test_average_matches_its_formula(decay):
    """The first steps keep less than the second decay."""
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
    Worker().stepper.load_state_dict(saved, "a training without an average")


def test_without_a_saved_average_it_starts_from_the_current_weights():
    worker = Worker(ema=0.9)
    worker.step(0)
    worker.stepper.load_state_dict({"body": {}}, "file")
    state = worker.stepper.ema.state_dict()
    assert state["updates"] == 0
    for part, tensors in network_state(worker.net).items():
        assert all(torch.equal(state[part][key], value) for key, value in tensors.items())


@pytest.mark.parametrize("damage", [{"rpn_head": 3}, {"rpn_head": {"bias": torch.zeros(3)}}, {"updates": 3}])
def test_the_average_of_another_network_is_refused(damage):
    worker = Worker(ema=0.9)
    worker.step(0)
    before, state = state_of(worker.stepper), worker.stepper.state_dict()
    state["ema"] = {**state["ema"], **damage}
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


@contextmanager
def watched_scores():
    """Collect a weight of each network that is scored, None of a folded one."""
    seen, score = [], Validator.score

    def watched(self, predictor, *args, **options):
        head = predictor.network.net.rpn_head
        seen.append(head.state_dict()["conv1.weight"].clone() if isinstance(head, RPNHead) else None)
        return score(self, predictor, *args, **options)

    with mock.patch.object(Validator, "score", watched):
        yield seen


@pytest.fixture(scope="module")
def averaged(micro, micro_config, tmp_path_factory):
    """A run folder after two epochs with a moving average, and what its validations have scored."""
    run = tmp_path_factory.mktemp("runs") / "averaged"
    with narrow_body(), watched_scores() as seen:
        train(micro_config, micro, run, "optimizer.ema=0.9")
    return run, seen


@pytest.mark.usefixtures("narrow")
def test_moving_average_does_not_change_the_training(micro_run, averaged):
    averaged_run, _ = averaged
    state, plain = (load_snapshot(run / "model_last.pth.tar").state_dict for run in (averaged_run, micro_run))
    (one, spec), (two, other) = (
        torch.utils._pytree.tree_flatten({name: part for name, part in s.items() if name != "ema"})
        for s in (state, plain)
    )
    assert spec == other
    assert all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(one, two))
    parts = [part for part in NETWORK_MODULES if part in state]
    assert state["ema"].keys() == {*parts, "updates"}
    assert state["ema"]["updates"] == 4
    assert all(state["ema"][part].keys() == state[part].keys() for part in parts)
    assert not torch.equal(state["ema"]["rpn_head"]["conv1.weight"], state["rpn_head"]["conv1.weight"])


@pytest.mark.usefixtures("narrow")
def test_average_is_validated_and_used_for_prediction(averaged, micro, micro_config, tmp_path, seamseg_main, capsys):
    run, (_, trained) = averaged
    last = run / "model_last.pth.tar"
    with watched_scores() as seen:
        train(micro_config, micro, tmp_path / "eval", evaluate=True, resume=last)
        assert seamseg_main("evaluate", last, micro, "--device", "cpu") == 0
    assert "model_last.pth.tar: scoring the moving average of its weights" in capsys.readouterr().err
    alone, folded = seen
    assert folded is None
    average = load_snapshot(last).state_dict["ema"]["rpn_head"]["conv1.weight"]
    assert torch.equal(trained, average)
    assert torch.equal(alone, average)
    words = ("predict", last, micro / "img" / "val0.png", tmp_path / "out", "--device", "cpu", "--workers", 0)
    assert seamseg_main(*words) == 0
    assert "with the moving average of the weights" in capsys.readouterr().err
