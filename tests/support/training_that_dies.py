"""Train in processes of which one stops or dies at a chosen moment.

    python -m support.training_that_dies FOLDER MOMENT SIGNAL SIZE

Prints the exit code of each process as JSON, None for one that had to be killed in the end; FOLDER gets RANK.err, the
output of each. Torch is loaded once and the processes are forked from there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from seamseg.ops import abn_channels
from seamseg.training.logging import reporter
from seamseg.validation.validator import Validator
from support.micro import narrow_body
from support.processes import free_port, set_launcher_variables

TIMEOUT_SECONDS = 20
"""Timeout of collective calls; long enough for a busy machine."""
PATIENCE_SECONDS = 160
"""Time for the other processes to end, on the slowest machine."""


def after(calls: int, function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Wrap a function so that its call number `calls` sends this process a signal."""
    remaining = [calls]

    def called(*args: Any, **kwargs: Any) -> Any:
        remaining[0] -= 1
        if remaining[0] == 0:
            os.kill(os.getpid(), number)
        return function(*args, **kwargs)

    return called


def train(rank: int, folder: Path, moment: str, number: int) -> int:
    """Train as the command line does; the last process sends itself the signal."""
    from seamseg.cli.main import main

    owner: Any
    owner, name, calls = {
        # in the middle of the second step's body, of its backward pass, of the first validation
        "forward": (abn_channels, "_join", 70),
        "backward": (abn_channels, "gradient_sums", 70),
        "validation": (Validator, "_compare", 1),
        "report": (reporter, "mean_over_processes", 2),
    }[moment]
    words = ["train", folder / "config.ini", folder / "data", "--log-dir", folder / "run", "--device", "cpu", "--quiet"]
    words += ["--set", "dataloader.train_batch_size=1"]
    with narrow_body():
        if rank + 1 < int(os.environ["WORLD_SIZE"]):
            return main([str(w) for w in words])
        with mock.patch.object(owner, name, after(calls, getattr(owner, name), number)):
            return main([str(w) for w in words])


def start(rank: int, size: int, port: int, folder: Path, moment: str, number: int) -> int:
    """Fork a process and return its id."""
    process = os.fork()
    if process:
        return process
    with open(folder / f"{rank}.err", "wb") as file:
        os.dup2(file.fileno(), 2)
        os.dup2(file.fileno(), 1)
    os.environ["SEAMSEG_TIMEOUT_MINUTES"] = str(TIMEOUT_SECONDS / 60)
    set_launcher_variables(rank, size, port)
    code = train(rank, folder, moment, number)
    sys.stdout.flush()
    sys.stderr.flush()
    # the interpreter's own end is part of what may hang
    sys.exit(code)


def watch(processes: list[int]) -> list[int | None]:
    """Wait for all but the last process, which may be stopped, then kill the rest; return the exit codes."""
    codes: list[int | None] = [None] * len(processes)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while None in codes[:-1] and time.monotonic() < deadline:
        for rank, process in enumerate(processes):
            if codes[rank] is None:
                done, status = os.waitpid(process, os.WNOHANG)
                codes[rank] = os.waitstatus_to_exitcode(status) if done else None
        time.sleep(0.1)
    for rank, process in enumerate(processes):
        if codes[rank] is None:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    return codes


def main() -> None:
    """Run the processes and print their exit codes."""
    folder, moment, number, size = Path(sys.argv[1]), sys.argv[2], getattr(signal, sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    port = free_port()
    print(json.dumps(watch([start(rank, size, port, folder, moment, number) for rank in range(size)])))


if __name__ == "__main__":
    main()
