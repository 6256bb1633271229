"""How a process of pytest-xdist ended that died: after SIGKILL it cannot say so itself."""

from __future__ import annotations

import re
import resource
import signal
from pathlib import Path

import pytest

_deaths: list[str] = []


def oom_kills() -> int:
    """Return how many processes the kernel has killed since the start of the machine because memory was exhausted."""
    path = Path("/proc/vmstat")  # of Linux
    return sum(int(n) for n in re.findall(r"^oom_kill (\d+)", path.read_text() if path.exists() else "", re.M))


_before = oom_kills()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Note the signal or exit code of a worker, and whether the kernel ran out of memory."""
    if error is None:
        return
    code = node.gateway._io.popen.wait(10)
    how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    killed = oom_kills() - _before
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    _deaths.append(
        f"{node.gateway.id} died: {how}; processes killed by the kernel for lack of memory during this run: {killed}; "
        f"largest process that has ended: {largest} MB"
    )


def pytest_terminal_summary(terminalreporter):
    """Print what was noted."""
    for line in _deaths:
        terminalreporter.write_line(line, red=True)
