"""How the tests run: the same with and without make, and no process dies without a word."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.dead_workers import oom_kills


@pytest.mark.slow
@pytest.mark.parametrize(
    ("death", "how"), [("os.kill(os.getpid(), 9)", "killed by SIGKILL"), ("os._exit(3)", "exit code 3")]
)
def test_a_worker_that_dies_leaves_its_signal_and_the_memory(tmp_path, death, how):
    pytest.importorskip("xdist", reason="pip install pytest-xdist: without it there are no workers")
    (tmp_path / "test_it.py").write_text(f"import os\n\ndef test_dies():\n    {death}\n")
    words = ["-q", "-n", "1", "--max-worker-restart=0", "-p", "support.dead_workers", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("gw0 died: "))
    assert line.startswith(f"gw0 died: {how}; processes killed by the kernel for lack of memory during this run: ")
    assert oom_kills() is None or " run: unknown" not in line
