"""Run a function in several processes that find each other as under torchrun."""

import multiprocessing as standard
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import multiprocessing

PRELOADED = [
    "torch._dynamo",  # which every optimizer imports
    "torch.nn.parallel",
    "seamseg.cli.main",
    "seamseg.cli.train",
    "seamseg.training.run",
    "seamseg.validation.evaluate",
]
"""Imported once, by the server from which the processes are forked."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(function: Callable[..., None], world: int, *args: Any, seconds: float = 150) -> None:
    """Call `function(rank, join, *args)` in `world` processes; fail if one fails or if they do not end in time.

    `join()` sets the environment of torchrun afresh: call it before each use of `utils.distributed`, at most 16 times.
    The processes are forked from a server that has loaded torch, which takes longer than most tests.
    """
    standard.set_forkserver_preload(PRELOADED)
    ports = [free_port() for _ in range(16)]
    arguments = (world, ports, dict(os.environ), function, args)
    context = multiprocessing.start_processes(_start, arguments, nprocs=world, join=False, start_method="forkserver")
    deadline = time.monotonic() + seconds
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, f"{world} processes hang"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()


def _start(
    rank: int, world: int, ports: list[int], environment: dict[str, str], function: Callable[..., None], args: tuple
) -> None:
    # the server has the environment of the first test that used it
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    remaining = iter(ports)

    def join() -> None:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(world),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(next(remaining)),
        )

    function(rank, join, *args)
    # it has passed; an orderly exit can abort in a thread of torch that outlives the interpreter
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
