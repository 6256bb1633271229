"""Commands under torchrun: every process has the settings and keeps its place."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from seamseg.utils import process_settings

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.distributed


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in two processes."""
    unwanted = (*process_settings.MALLOC, process_settings.MALLOC_SWITCH)
    env = {name: value for name, value in os.environ.items() if name not in unwanted} | {"OMP_NUM_THREADS": "1"}
    # --standalone finds a free port
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    return subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_every_process_keeps_its_rank_and_has_the_settings() -> None:
    done = torchrun("-m", "seamseg", "doctor")
    lines = done.stdout.splitlines()
    assert sorted(line.split()[2] for line in lines if line.startswith("launcher")) == ["0", "1"]
    if platform.libc_ver()[0] == "glibc":
        assert sum(line.endswith("large buffers are kept") for line in lines) == 2


@pytest.mark.slow
def test_a_script_of_the_original(tmp_path: Path) -> None:
    done = torchrun("scripts/train_panoptic.py", "--log_dir", str(tmp_path), str(tmp_path / "none.ini"), "data")
    assert done.returncode != 0
    assert done.stderr.count("this is now: seamseg train") == 1
    assert "none.ini: no such config file" in done.stderr
