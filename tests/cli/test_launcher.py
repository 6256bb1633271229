"""Commands under torchrun: every process has the settings and keeps its place."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from seamseg.utils import process_settings
from seamseg.utils.distributed import _environment, is_main_process, process_count


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


# --- Rank and size from the launcher's variables agree with `seamseg.utils.distributed`


ADDRESS = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "count", "is_main"),
    [
        ({}, 1, True),
        (ADDRESS, 1, True),
        ({"RANK": "0", "WORLD_SIZE": "1", **ADDRESS}, 1, True),
        ({"RANK": "3", "WORLD_SIZE": "1", **ADDRESS}, 1, True),
        ({"RANK": "3"}, 1, True),
        ({"RANK": "0", "WORLD_SIZE": "2", **ADDRESS}, 2, True),
        ({"RANK": "1", "WORLD_SIZE": "2", **ADDRESS}, 2, False),
    ],
)
def test_agrees_with_distributed(monkeypatch, variables, count, is_main):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", *ADDRESS):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    rank, size, _ = _environment()
    assert (size, rank == 0) == (count, is_main) == (process_count(), is_main_process())
