"""A training that is killed at any time resumes to the bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.classes import make_class_folders, write_config


def command(folder: Path, run: str) -> list[str]:
    words = ["classify", "train", folder / "c.json", folder / "data", "--log-dir", folder / run, "--resume", "auto"]
    words += ["--device", "cpu", "--quiet", "--set", "training.snapshot_interval=1"]
    return [sys.executable, "-m", "seamseg", *map(str, words)]


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_bit(tmp_path: Path) -> None:
    make_class_folders(tmp_path / "data")
    write_config(tmp_path / "c.json", optimizer={"schedule": {"type": "constant", "epochs": 30}})
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command(tmp_path, "whole"), check=True, env=environment, capture_output=True)
    kills = 0
    for wanted in (5, 30, 60):
        process = subprocess.Popen(command(tmp_path, "parts"), env=environment, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            steps = [int(p.name[5:13]) for p in (tmp_path / "parts" / "snapshots").glob("step-*")]
            if steps and max(steps) >= wanted:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.02)
        process.wait()
    assert kills >= 2
    subprocess.run(command(tmp_path, "parts"), check=True, env=environment, capture_output=True)
    states = [torch.load(tmp_path / run / "checkpoint.pth.tar", weights_only=True) for run in ("whole", "parts")]
    first, second = (state["state_dict"] for state in states)
    assert states[0]["epoch"] == states[1]["epoch"] == 30
    assert [key for key in first if not torch.equal(first[key], second[key])] == []
