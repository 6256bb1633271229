"""The run folder of a training: files of earlier runs, and the snapshots that remain when a step fails."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.interruptions import signals_at

from seamseg.training.checkpointing.run_folder import RunFolder
from seamseg.training.losses import Diverged
from seamseg.training.preemption import Preempted
from seamseg.training.run import TrainingOptions, run_training

EACH_STEP = ("general.snapshot_interval=1", "general.snapshot_keep=1")
HUGE_RATE = (*EACH_STEP, "optimizer.lr=1e9")


def steps_in(run: Path) -> list[int]:
    return [step for step, _ in RunFolder(run).saved()]


@pytest.fixture
def options(micro: Path, micro_config: Path, tmp_path: Path, narrow: None) -> TrainingOptions:
    """Of a training of four steps in a new folder."""
    return TrainingOptions(micro_config, micro, tmp_path / "run", resume="auto", overrides=EACH_STEP, device="cpu")


def test_a_training_that_has_diverged_resumes_from_an_earlier_snapshot(options: TrainingOptions) -> None:
    """With a huge learning rate from step 3 on, it fails at step 4."""
    run = Path(options.log_dir)
    with signals_at([2]), pytest.raises(Preempted):
        run_training(options)
    for _ in range(2):
        with pytest.raises(Diverged, match=r"^training stopped at step 4: .*; lower optimizer\.lr, or begin with a "):
            run_training(replace(options, overrides=HUGE_RATE))
        assert steps_in(run) == [3, 2]
    assert run_training(replace(options, resume=RunFolder(run).step_path(2))).steps == 4


def test_a_link_that_is_impossible_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=OSError(95, os.strerror(95))))
    (tmp_path / "step").write_bytes(b"weights")
    RunFolder(tmp_path).publish(tmp_path / "step", tmp_path / "last")
    assert (tmp_path / "last").read_bytes() == b"weights"
