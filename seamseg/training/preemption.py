"""Signals that ask a training to stop: processes tell each other, and all stop after the same step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist

from seamseg.utils.distributed import TogetherError, World
from seamseg.utils.process_groups import new_group

SIGNALS = ("SIGTERM", "SIGUSR1")
"""What clusters send before they take the machine away; names, as some systems lack some."""


class Preempted(TogetherError):
    """The training stopped because a signal asked it to, and can go on; the exit code is the shell's for the signal."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class Preemption:
    """Notes signals while it is entered.

    The processes exchange the numbers of their signals, 0 for none, in the background, and the largest wins: what they
    say after one step is looked at after the next, when it has long arrived. So nobody waits, and all learn of a signal
    after the same step. A collective object: every process must make it, and ask it as often as the others.

    Parameters
    ----------
    world : the processes
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._received = 0
        self._before: dict[int, Any] = {}
        # a group of its own: collectives of a group must come in the same order everywhere
        self._group = new_group(range(world.size), "gloo") if world.is_distributed else None
        self._said = torch.zeros(1, dtype=torch.int32)
        self._work: dist.Work | None = None

    def __enter__(self) -> Preemption:
        # only the main thread may; a training in another one ends as Python programs do
        if threading.current_thread() is threading.main_thread():
            for name in SIGNALS:
                number = getattr(signal, name, None)
                if number is not None:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # launchers pass a signal on that the process had already: a second one means nothing new
        self._received = self._received or number

    def after_step(self) -> int:
        """The signal that processes had received after the step before this one; 0 if none."""
        if self._group is None:
            return self._received
        agreed = self.settle()
        self._said = torch.tensor([self._received], dtype=torch.int32)
        self._work = dist.all_reduce(self._said, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed

    def now(self) -> int:
        """The signal that processes have received by now; waits for all of them."""
        return self.after_step() if self._group is None else max(self.after_step(), self.settle())

    def settle(self) -> int:
        """Wait for what is still on its way; the signal that it tells of, 0 if there is none."""
        if self._work is None:
            return 0
        self._work.wait()
        self._work = None
        return int(self._said)
