"""The memory of a command with all of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def peak_of(command: Sequence[str], timeout: float = 600, **environment: str) -> tuple[int, int, str]:
    """Run a command; return its exit code, the largest sum of the memory of its processes in bytes, and its stderr."""
    peak, ends = 0, time.monotonic() + timeout
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(_memory, _family(process.pid))))
            assert time.monotonic() < ends, "it takes too long"
            time.sleep(0.02)
        return process.returncode, peak, process.stderr.read()


def seamseg(*words: object) -> list[str]:
    return [sys.executable, "-m", "seamseg", *map(str, words)]


def _family(pid: int) -> list[int]:
    found = [pid]
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += _family(int(child))
    return found


def _memory(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):  # shared pages count once
                return int(line.split()[1]) << 10
    return 0
