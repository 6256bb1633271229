"""A process that dies or hangs ends the other processes within bounded time, with a one-line error."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.micro import make_dataset, write_config

import seamseg

pytestmark = pytest.mark.distributed

TESTS = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path):
    """A folder with data and configuration."""
    make_dataset(tmp_path / "data", [2, 1, 0, 3, 1, 1], [1, 2, 0])
    write_config(tmp_path / "config.ini", "syncbn")
    return tmp_path


def check(folder, codes, killed, size):
    """All but the last process have ended by themselves, with one line."""
    output = [(folder / f"{rank}.err").read_text() for rank in range(size)]
    assert codes == [1] * (size - 1) + [-9 if killed else None], output
    for text in output[:-1]:
        lines = [line for line in text.splitlines() if line.startswith("seamseg train: ")]
        assert len(lines) == 1, text
        assert "lost its connection to the others" in lines[0], text
        assert "Traceback" not in text, text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number", "size"),
    [
        ("forward", "SIGKILL", 2),
        ("forward", "SIGKILL", 3),
        ("backward", "SIGSTOP", 3),
        ("validation", "SIGKILL", 2),
        ("forward", "SIGSTOP", 2),
        ("backward", "SIGKILL", 2),
        ("validation", "SIGSTOP", 2),
        ("report", "SIGKILL", 2),
    ],
)
def test_other_processes_end_when_one_is_lost(folder, moment, number, size):
    """In interpreters of their own, whose end may hang, too."""
    path = os.pathsep.join([str(Path(seamseg.__file__).parents[1]), str(TESTS)])
    words = [sys.executable, "-m", "support.training_that_dies", folder, moment, number, size]
    done = subprocess.run(
        [str(w) for w in words], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    check(folder, json.loads(done.stdout), number == "SIGKILL", size)
