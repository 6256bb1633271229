"""The run folder of a training: files of earlier runs, and the snapshots that remain when a step fails."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.interruptions import result, signals_at

from seamseg.training.checkpointing.run_folder import Failure, RunFolder, SnapshotWriter
from seamseg.training.logging.logs import TextLog
from seamseg.training.losses import Diverged
from seamseg.training.preemption import Preempted
from seamseg.training.run import TrainingOptions, run_training
from seamseg.training.step import Stepper
from seamseg.utils.errors import InputError, SeamsegError

EACH_STEP = ("general.snapshot_interval=1", "general.snapshot_keep=1")
HUGE_RATE = (*EACH_STEP, "optimizer.lr=1e9")


def steps_in(run: Path) -> list[int]:
    return [step for step, _ in RunFolder(run).saved()]


def diverge(options: TrainingOptions) -> str:
    """Resume a training after two of four steps with a huge learning rate, which fails at step 4; return the error."""
    with signals_at([2]), pytest.raises(Preempted):
        run_training(options)
    with pytest.raises(Diverged, match="training stopped at step 4: ") as found:
        run_training(replace(options, overrides=HUGE_RATE))
    return found.value.problem


@pytest.fixture
def options(micro: Path, micro_config: Path, tmp_path: Path, narrow: None) -> TrainingOptions:
    """Of a training of four steps in a new folder."""
    return TrainingOptions(micro_config, micro, tmp_path / "run", resume="auto", overrides=EACH_STEP, device="cpu")


@pytest.mark.slow
def test_a_training_that_has_diverged_resumes_before_the_ruined_snapshot(
    options: TrainingOptions, micro_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(options.log_dir)
    problem = diverge(options)
    good = run / "snapshots" / "step-00000002.pth.tar"
    said = f"{good} is the newest snapshot with which a step has succeeded, and now model_last.pth.tar"
    assert capsys.readouterr().err.splitlines().count(said) == 1
    assert steps_in(run) == [3, 2]
    assert good.samefile(run / "model_last.pth.tar")
    # as if the process had been killed before it changed the link
    (run / "model_last.pth.tar").unlink()
    os.link(run / "snapshots" / "step-00000003.pth.tar", run / "model_last.pth.tar")
    # with the same rate it fails again, and nothing is lost
    with pytest.raises(Diverged, match="training stopped at step 4: "):
        run_training(replace(options, overrides=HUGE_RATE))
    lines = [line for line in capsys.readouterr().err.splitlines() if "the training failed at step 4" in line]
    assert lines == [
        f"{run}: the training failed at step 4, {problem}: step-00000002.pth.tar is the newest snapshot with which a "
        "step has succeeded; lower optimizer.lr, or begin with a smaller one (scheduler.burn_in_steps)"
    ]
    assert steps_in(run) == [3, 2]
    run_training(options)
    assert result(run) == result(micro_run)
    assert not (run / "failure.json").exists()
    capsys.readouterr()
    run_training(replace(options, overrides=(*EACH_STEP, "scheduler.epochs=3")))
    assert "failed" not in capsys.readouterr().err


def test_an_error_of_ruined_weights_is_a_failed_step(
    options: TrainingOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the validation after step 1."""
    run = Path(options.log_dir)
    huge = ("dataloader.train_batch_size=4", "scheduler.burn_in_steps=0")
    with pytest.raises(RuntimeError, match="level of box 0"):
        run_training(replace(options, overrides=(*HUGE_RATE, *huge)))
    assert f"{run}: no step has succeeded with its snapshots, `resume=auto` starts over" in capsys.readouterr().err
    assert steps_in(run) == [1]
    assert not (run / "model_last.pth.tar").exists()
    with pytest.raises(InputError, match="no run folder: it holds no snapshot"):
        run_training(replace(options, resume=run))
    capsys.readouterr()
    run_training(replace(options, overrides=(*EACH_STEP, *huge)))
    err = capsys.readouterr().err
    assert f"{run}: the training failed at step 1, RuntimeError: check_roi_places" in err
    assert ": skipped 1 snapshots, no step has succeeded with them; lower optimizer.lr" in err
    assert "starting a new training" in err
    assert steps_in(run) == [2, 1]
    assert not (run / "failure.json").exists()


def test_other_errors_are_no_failed_steps(options: TrainingOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would have each restart on a broken machine drop a snapshot, at last all of them."""
    run = Path(options.log_dir)
    with signals_at([2]), pytest.raises(Preempted):
        run_training(options)
    saved = steps_in(run)
    assert saved == [2, 1]
    for error in (SeamsegError("of a file"), OSError("of a file"), RuntimeError("before the first update")):
        monkeypatch.setattr(Stepper, "__call__", Mock(side_effect=error))
        with pytest.raises(type(error), match=str(error)):
            run_training(options)
        assert not (run / "failure.json").exists()
        assert steps_in(run) == saved


def test_failures_before_the_first_update_drop_no_snapshot_that_has_proved_usable(options: TrainingOptions) -> None:
    """As of a GPU that computes NaN, under a launcher that restarts the training; or of a new training."""
    diverge(options)
    run = RunFolder(Path(options.log_dir))
    failure = run.failure()
    for resume, step in (("auto", 3), (None, 1)):
        again = replace(options, resume=resume, restart=resume is None)
        with pytest.raises(Diverged, match=f"training stopped at step {step}: "):
            run_training(replace(again, overrides=(*EACH_STEP, "general.loss_limit=1e-9")))
        assert run.failure() == failure
        assert steps_in(run.path) == [3, 2]
        assert run.step_path(2).samefile(run.last)


def test_one_more_snapshot_is_kept_until_a_step_has_succeeded_with_the_newest(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, content=lambda snapshot: snapshot)
    writer = SnapshotWriter(run, 1, fresh=True)

    def save(step: int) -> list[int]:
        writer.save({"step": step}, step)  # type: ignore[arg-type]
        writer.wait()
        return steps_in(tmp_path)

    def updated(step: int) -> list[int]:
        writer.updated(step)
        writer.wait()
        return steps_in(tmp_path)

    assert save(2) == [2]
    assert updated(4) == [2]
    assert save(4) == [4, 2]
    # float16: no update since
    assert updated(4) == [4, 2]
    assert save(6) == [6, 2]
    assert updated(7) == [6]
    # that of a signal, or the last one of a training
    assert save(8) == [8, 6]


def test_a_link_that_is_impossible_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(95, os.strerror(95))))
    (tmp_path / "step").write_bytes(b"weights")
    RunFolder(tmp_path).publish(tmp_path / "step", tmp_path / "last")
    assert (tmp_path / "last").read_bytes() == b"weights"


def test_a_damaged_note_of_an_earlier_failure(tmp_path: Path) -> None:
    run, log = RunFolder(tmp_path), TextLog(None)
    run.fail(Failure(3, 2, "loss = nan"))
    assert run.failure() == Failure(3, 2, "loss = nan")
    for text in ("[]", '{"step": 1e99, "last_update": 2, "problem": ""}', '{"step": 1}', "x" * 70_000):
        (tmp_path / "failure.json").write_text(text)
        with pytest.raises(InputError, match=r"failure\.json: "):
            run.newest_good(log.warning)
    run.resolve_failure(0)
    assert run.failure() is None
