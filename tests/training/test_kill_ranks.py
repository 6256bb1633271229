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


def test_three_killed_processes_change_nothing():
    words = [sys.executable, str(SCRIPT), "--kills", "3", "--seed", "3"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills: 3" in done.stdout
    assert "scores equal the undisturbed run's" in done.stdout
