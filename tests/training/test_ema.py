"""The moving average of the weights: its formula, swapping it into the network, loading it from a snapshot."""

import copy

import pytest
import torch
from support.micro import train
from support.small_models import save_snapshot
from support.small_updates import Worker, same, small_net, state_of, stepper_of

import seamseg
from seamseg.checkpoints.pretrained import load_pretrained
from seamseg.checkpoints.snapshot import Snapshot, load_into, load_snapshot, network_state
from seamseg.training.checkpointing.checkpoint import load_stepper_state, stepper_state
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


def test_average_does_not_change_the_training():
    with_it, without = Worker(ema=0.9), Worker()
    for seed in range(4):
        one, two = with_it.step(seed), without.step(seed)
        assert torch.equal(one.loss, two.loss)
        assert torch.equal(one.norm, two.norm)
    same({k: v for k, v in state_of(with_it.stepper).items() if not k.startswith("ema")}, state_of(without.stepper))


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
    with worker.stepper.averaged():
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


def test_without_a_saved_average_it_starts_from_the_current_weights():
    worker = Worker(ema=0.9)
    worker.step(0)
    load_stepper_state(worker.stepper, {"body": {}}, "file")
    state = worker.stepper.ema.state_dict()
    assert state["updates"] == 0
    for part, tensors in network_state(worker.net).items():
        assert all(torch.equal(state[part][key], value) for key, value in tensors.items())


@pytest.mark.parametrize("damage", [{"rpn_head": 3}, {"rpn_head": {"bias": torch.zeros(3)}}, {"updates": None}])
def test_the_average_of_another_network_is_refused(damage):
    worker = Worker(ema=0.9)
    state = {"ema": {**stepper_state(worker.stepper)["ema"], **damage}}
    with pytest.raises(InputError, match=r"old\.tar: its moving average .* optimizer\.ema=0"):
        load_stepper_state(worker.stepper, state, "old.tar")


def test_the_average_of_a_snapshot_is_loaded_by_default(tmp_path):
    """Here of weights 1 whose average is 2, also as pre-training."""
    net, path = small_net(), tmp_path / "snapshot.tar"
    state = network_state(net)
    ones, twos = ({p: {k: torch.full_like(v, n) for k, v in t.items()} for p, t in state.items()} for n in (1, 2))
    save_snapshot(path, Snapshot("", {**ones, "ema": {**twos, "updates": torch.tensor(7)}}))
    loaded = load_snapshot(path)
    for averaged, value in ((True, 2), (False, 1)):
        report = load_into(net, loaded, averaged=averaged)
        assert report.averaged == averaged
        assert all((t == value).all() for t in net.state_dict().values())
    for part in ("", "body:", "rpn_head:"):
        net = small_net()
        report = load_pretrained(net, f"{part}{path}")
        assert report.averaged
        module = getattr(net, part[:-1]) if part else net
        assert str(report) == f"loaded {len(module.state_dict())} tensors of the moving average"
        assert all((t == 2).all() for t in module.state_dict().values())
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
