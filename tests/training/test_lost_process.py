"""A process that dies or hangs ends the others within bounded time, with a one-line error; killed ones are resumed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.micro import make_dataset, write_config

import seamseg

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("moment", "number", "size"),
    [
        ("forward", "SIGKILL", 3),
        ("backward", "SIGSTOP", 3),
        ("validation", "SIGKILL", 2),
        ("report", "SIGKILL", 2),
    ],
)
def test_other_processes_end_when_one_is_lost(tmp_path, moment, number, size):
    """In interpreters of their own, whose end may hang, too: all but the last end by themselves, with one line."""
    make_dataset(tmp_path / "data", [2, 1, 0, 3, 1, 1], [1, 2, 0])
    write_config(tmp_path / "config.ini", "syncbn")
    path = os.pathsep.join([str(Path(seamseg.__file__).parents[1]), str(TESTS)])
    words = [sys.executable, "-m", "support.training_that_dies", tmp_path, moment, number, size]
    done = subprocess.run(
        [str(w) for w in words], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    output = [(tmp_path / f"{rank}.err").read_text() for rank in range(size)]
    assert json.loads(done.stdout) == [1] * (size - 1) + [-9 if number == "SIGKILL" else None], output
    for text in output[:-1]:
        lines = [line for line in text.splitlines() if line.startswith("seamseg train: ")]
        assert len(lines) == 1, text
        assert "lost its connection to the others" in lines[0], text
        assert "Traceback" not in text, text


def test_three_killed_processes_change_nothing():
    """Under torchrun, in the short; benchmarks/kill_ranks.py has the long form, test_resume.py a single process."""
    script = TESTS.parent / "benchmarks" / "kill_ranks.py"
    words = [sys.executable, str(script), "--kills", "3", "--seed", "3"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills: 3" in done.stdout
    assert "scores equal the undisturbed run's" in done.stdout
