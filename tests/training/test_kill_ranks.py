"""Processes that are killed under torchrun, in the short; benchmarks/kill_ranks.py has the long form.

`test_resume.py` kills a single process in a few seconds.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill_ranks.py"

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def kill(times: int, seconds: float) -> None:
    words = [sys.executable, SCRIPT, "--kills", str(times), "--seed", "3"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"kills: {times}" in done.stdout
    assert "scores equal the undisturbed run's" in done.stdout


def test_a_killed_process_changes_nothing():
    kill(1, 900)


def test_three_killed_processes_change_nothing():
    kill(3, 1800)
