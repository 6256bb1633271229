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


@pytest.mark.parametrize(
    ("moment", "signal", "size"),
    [
        ("forward", "SIGKILL", 2),
        pytest.param("forward", "SIGKILL", 3, marks=pytest.mark.slow),
        pytest.param("backward", "SIGSTOP", 3, marks=pytest.mark.slow),
        pytest.param("validation", "SIGKILL", 2, marks=pytest.mark.slow),
        pytest.param("forward", "SIGSTOP", 2, marks=pytest.mark.slow),
        pytest.param("backward", "SIGKILL", 2, marks=pytest.mark.slow),
        pytest.param("validation", "SIGSTOP", 2, marks=pytest.mark.slow),
        pytest.param("report", "SIGKILL", 2, marks=pytest.mark.slow),
    ],
)
def test_other_processes_end_when_one_is_lost(tmp_path, moment, signal, size):
    make_dataset(tmp_path / "data", [2, 1, 0, 3, 1, 1], [1, 2, 0])
    write_config(tmp_path / "config.ini", "syncbn")
    path = os.pathsep.join([str(Path(seamseg.__file__).parents[1]), str(TESTS)])
    words = [sys.executable, "-m", "support.training_that_dies", tmp_path, moment, signal, size]
    done = subprocess.run(
        [str(w) for w in words], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout)
    output = [(tmp_path / f"{rank}.err").read_text() for rank in range(size)]
    assert codes == [1] * (size - 1) + [-9 if signal == "SIGKILL" else None], output
    for text in output[:-1]:
        lines = [line for line in text.splitlines() if line.startswith("seamseg train: ")]
        assert len(lines) == 1, text
        assert "lost its connection to the others" in lines[0], text
        assert "Traceback" not in text, text
