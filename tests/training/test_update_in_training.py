"""Training from end to end with the options of a step: AdamW, fp16, clipping, moving average."""

from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from support.micro import narrow_body, train

from seamseg.checkpoints.snapshot import NETWORK_MODULES, load_snapshot
from seamseg.models.heads.rpn import RPNHead
from seamseg.training.trainer import Trainer
from seamseg.validation.validator import Validator

pytestmark = pytest.mark.usefixtures("narrow")

ALL = ("optimizer.type=adamw", "optimizer.lr=0.001", "optimizer.ema=0.9", "optimizer.clip_norm=5")
HALF = ("general.precision=fp16", "optimizer.ema=0.99", "optimizer.accumulate=2")


def leaves(path, *without):
    state = {k: v for k, v in load_snapshot(path).state_dict.items() if k not in without}
    return torch.utils._pytree.tree_flatten(state)


def same(one, two, *without):
    (a, tree), (b, other) = leaves(one, *without), leaves(two, *without)
    assert tree == other
    assert all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(a, b))


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


@pytest.fixture
def averaged_run(averaged):
    return averaged[0]


def test_moving_average_does_not_change_the_training(micro_run, averaged_run):
    same(averaged_run / "model_last.pth.tar", micro_run / "model_last.pth.tar", "ema")
    state = load_snapshot(averaged_run / "model_last.pth.tar").state_dict
    parts = [part for part in NETWORK_MODULES if part in state]
    assert state["ema"].keys() == {*parts, "updates"}
    assert state["ema"]["updates"] == 4
    assert all(state["ema"][part].keys() == state[part].keys() for part in parts)
    assert not torch.equal(state["ema"]["rpn_head"]["conv1.weight"], state["rpn_head"]["conv1.weight"])


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


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [ALL, pytest.param(HALF, marks=pytest.mark.slow)], ids=["adamw", "fp16"])
def test_a_resumed_run_has_the_same_bits(overrides, micro, micro_config, tmp_path, monkeypatch):
    train(micro_config, micro, tmp_path / "whole", *overrides)
    with monkeypatch.context() as patch:
        save = Trainer._save

        def stop(trainer, *args):
            save(trainer, *args)
            raise KeyboardInterrupt

        patch.setattr(Trainer, "_save", stop)
        with pytest.raises(KeyboardInterrupt):
            train(micro_config, micro, tmp_path / "part", *overrides)
    train(micro_config, micro, tmp_path / "part", *overrides, resume=tmp_path / "part" / "model_last.pth.tar")
    same(*(tmp_path / name / "model_last.pth.tar" for name in ("whole", "part")))
    assert ("scaler" in load_snapshot(tmp_path / "part" / "model_last.pth.tar").state_dict) == ("fp16" in overrides[0])


def test_an_average_may_begin_and_end_at_a_resume(micro, micro_config, micro_run, averaged_run, tmp_path):
    for name, start, options in (("begin", micro_run, ["optimizer.ema=0.9"]), ("end", averaged_run, [])):
        overrides = [*options, "scheduler.epochs=3"]
        train(micro_config, micro, tmp_path / name, *overrides, resume=start / "model_last.pth.tar")
    begun, ended = (load_snapshot(tmp_path / name / "model_last.pth.tar").state_dict for name in ("begin", "end"))
    assert begun["ema"]["updates"] == 2
    assert "ema" not in ended
    same(*(tmp_path / name / "model_last.pth.tar" for name in ("begin", "end")), "ema")
