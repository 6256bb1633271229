"""Signals that stop a training: the processes exchange them, and all stop after the same step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from seamseg.utils.distributed import CollectiveError, World, new_group

SIGNALS = ("SIGTERM", "SIGUSR1", "SIGINT")
"""Signals that clusters send before they reclaim a machine, and Ctrl-C; names, since some systems lack some of them."""
_STDERR = 2
_HINT = b"\nstopping after this step or validation; Ctrl-C again ends at once, without a snapshot\n"


STOP = 1
"""Number of a request to end the training, below the numbers of :data:`SIGNALS`."""


class Preempted(CollectiveError):
    """A signal stopped the training, which can be resumed; the exit code is the shell's for the signal."""

    reported = True

    def __init__(self, number: int, step: int) -> None:
        super().__init__(
            f"{signal.Signals(number).name}: stopped after step {step}, snapshot saved; "
            f"re-run the same command (`seamseg train`: with `resume=auto`) to continue"
        )
        self.exit_code = 128 + number


class Preemption:
    """Records signals inside a `with` block.

    The processes exchange the numbers of their signals, 0 for none, in the background, and the largest wins: the values
    sent after one step are read after the next, when they have long arrived. So no process waits, and all receive a
    signal after the same step. :data:`STOP` is sent while `stops` returns True and there is no signal. Construction and
    all methods but `settle` are collective calls.
    """

    def __init__(self, world: World, stops: Callable[[], bool] = lambda: False) -> None:
        self.world = world
        self._stops = stops
        self._received = 0
        self._previous_handlers: dict[int, Any] = {}
        # a separate group: collectives of a group must come in the same order in all processes
        self._group = new_group(range(world.size), "gloo") if world.size > 1 else None
        self._exchanged = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None

    def __enter__(self) -> Preemption:
        # only the main thread may set handlers; elsewhere signals have their default effect
        if threading.current_thread() is threading.main_thread():
            for name in SIGNALS:
                number = getattr(signal, name, None)
                # a shell has a command that runs in the background ignore Ctrl-C
                if number is not None and not (name == "SIGINT" and signal.getsignal(number) == signal.SIG_IGN):
                    self._previous_handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # launchers forward signals that the process may have received already: ignore the second one
        self._received = self._received or number
        if number == signal.SIGINT:
            # but a second Ctrl-C ends the process at once, also while it waits for others
            signal.signal(number, signal.SIG_DFL)
            if self.world.rank == 0 and os.isatty(_STDERR):
                os.write(_STDERR, _HINT)

    def after_step(self) -> int:
        """Return the signal received, or with several processes by any of them until the step before; 0 if none."""
        number = self._received or (STOP if self._stops() else 0)
        if self._group is None:
            return number
        agreed = self.settle()
        self._exchanged = torch.tensor([number], dtype=torch.int32)
        self._work = dist.all_reduce(self._exchanged, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed

    def now(self) -> int:
        """Wait for all processes and return the signal that any of them has received; 0 if none."""
        return self.after_step() if self._group is None else max(self.after_step(), self.settle())

    def settle(self) -> int:
        """Wait for a pending exchange and return its signal; 0 if there is none."""
        if self._work is None:
            return 0
        self._work.wait()
        self._work = None
        return int(self._exchanged)
