"""Commands under torchrun: every process has the settings and keeps its place."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from seamseg.utils import process_settings


@pytest.mark.slow
@pytest.mark.distributed
def test_every_process_keeps_its_rank_and_has_the_settings() -> None:
    unwanted = (*process_settings.MALLOC, process_settings.MALLOC_SWITCH)
    env = {name: value for name, value in os.environ.items() if name not in unwanted} | {"OMP_NUM_THREADS": "1"}
    # --standalone finds a free port
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "seamseg", "doctor"]
    done = subprocess.run(command, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    assert sorted(line.split()[2] for line in lines if line.startswith("launcher")) == ["0", "1"]
    if platform.libc_ver()[0] == "glibc":
        assert sum(line.endswith("large buffers are kept") for line in lines) == 2
