"""When a training saves its state, and what it leaves when a step fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from seamseg.training.callbacks import Callbacks
from seamseg.training.checkpointing.checkpoint import (
    EpochPosition,
    ResumePoint,
    TrainingProgress,
    TrainState,
    make_snapshot,
    resume_state,
)
from seamseg.training.checkpointing.rank_state import gather_rank_states
from seamseg.training.checkpointing.run_folder import Failure, RunFolder, SnapshotWriter
from seamseg.training.logging.logs import TextLog
from seamseg.training.losses import LossCheck
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.distributed import is_peer_failure
from seamseg.utils.errors import SeamsegError, one_line


class Checkpointer:
    """Saves snapshots of a training in the background, and notes the step that ends it.

    Parameters
    ----------
    state : state of the training
    run : folder of the snapshots, written by the main process
    losses : loss check of the training; has the newest step that has updated the weights
    log : log for messages
    resumed : where the training begins; None for a new one
    callbacks : callbacks whose states are saved, too
    """

    def __init__(
        self,
        state: TrainState,
        run: RunFolder,
        losses: LossCheck,
        log: TextLog,
        resumed: ResumePoint | None,
        callbacks: Callbacks,
    ) -> None:
        self.callbacks = callbacks
        self.state = state
        self.run = run
        self.losses = losses
        self.log = log
        self._resumed = resumed is not None
        self._start = 0 if resumed is None else resumed.progress.global_step
        # the best snapshot of an earlier run in this folder does not count
        self.has_best = resumed is not None and resumed.progress.epoch >= 0 and run.best.exists()
        self._has_saved = False
        keep = state.options.snapshot_keep
        self._writer = SnapshotWriter(run, keep, resumed is None) if state.world.is_main else None

    @property
    def _last_update(self) -> int:
        return max(self._start, self.losses.last_update)

    def save(self, progress: TrainingProgress, position: EpochPosition | None, is_best: bool = False) -> None:
        """Copy the state of the training, and write it in the background; a collective call.

        Parameters
        ----------
        progress : finished epochs and steps
        position : position in the epoch; None between two epochs
        is_best : the last validation had the best score so far

        Raises
        ------
        SeamsegError
            if a loss was not finite, or an earlier snapshot could not be written
        """
        state = self.state
        # first, as it raises if a loss was not finite
        losses = self.losses.state_dict()
        self._has_saved = True
        self.has_best = self.has_best or is_best
        if self._writer is not None:
            # before the others go on, which may note a failure
            self.run.resolve_failure(self._start)
            # there was no step yet if a resumed training begins with a validation
            self._writer.updated(self._last_update)
        averaged = state.stepper.state_dict().get("ema", {})
        ranks = gather_rank_states(state.world, state.net, averaged, losses)
        if self._writer is None:
            return
        more = resume_state(position, ranks, is_best, state.schedule.total)
        if states := self.callbacks.states():
            more["callbacks"] = states
        if (run := self.callbacks.run).stop_reason:
            more["stopped"] = {"by": run.stopped_by, "reason": run.stop_reason}
        meters = {
            loss: {name: torch.tensor(value, dtype=torch.float64) for name, value in entry.items()}
            for loss, entry in self.losses.epoch.state.items()
        }
        snapshot = make_snapshot(state, progress, meters, more)
        self._writer.save(snapshot, progress.global_step, is_best, not self.has_best)

    def after_step(self) -> None:
        """Raise the SeamsegError of a failed write, and remove a snapshot that is not needed any more; do not wait."""
        if self._writer is not None:
            self._writer.check()
            self._writer.updated(self._last_update)

    def wait(self) -> None:
        """Wait until the snapshot is written; SeamsegError if it cannot be."""
        if self._writer is not None:
            self._writer.wait()

    def close(self) -> None:
        """Wait for the current write without raising its error: another exception may be propagating."""
        if self._writer is not None:
            self._writer.close()

    @contextmanager
    def failures(self, progress: TrainingProgress) -> Iterator[None]:
        """Note an error in a `with` block as a failed step: weights that have diverged can cause almost any."""
        try:
            yield
        except Exception as error:
            lost = isinstance(error, RuntimeError) and self.state.world.is_distributed and is_peer_failure(error)
            if not (isinstance(error, SeamsegError) or lacks_memory(error)):
                # nothing can be read from a device after some errors
                with suppress(RuntimeError):
                    # report a loss that is not finite instead
                    self.losses.failed()
                # before the first update of a resumed training, the cause is rather the machine, as for a missing file
                if not (lost or isinstance(error, OSError)) and self.losses.last_update > self._start:
                    self.fail(progress.global_step, f"{type(error).__name__}: {error}")
            raise

    def fail(self, step: int, problem: str) -> None:
        """Note that a step has failed: its weights may be the cause, so the run does not resume from them."""
        self.close()
        if not self._resumed and not self._has_saved and self.run.saved():
            # those of an earlier run
            return
        try:
            if self.losses.last_update <= self._start and self.run.failure() is not None:
                # with the snapshot that it began with, a step has succeeded before
                return
            good = self.run.fail(Failure(step, self._last_update, one_line(problem)))
        except SeamsegError as error:
            self.log.warning(str(error))
            return
        if good is not None:
            self.log.warning(
                f"{good} is the newest snapshot with which a step has succeeded, and now {self.run.last.name}"
            )
        elif self.run.saved():
            self.log.warning(f"{self.run.path}: no step has succeeded with its snapshots, `resume=auto` starts over")
