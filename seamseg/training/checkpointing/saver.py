"""Writes snapshots behind the training's back: the next step does not wait for the disk."""

from __future__ import annotations

import threading

from seamseg.checkpoints.snapshot import Snapshot, save_snapshot
from seamseg.training.checkpointing.run_folder import RunFolder
from seamseg.utils.errors import SeamsegError


class Saver:
    """One snapshot at a time is written by a thread.

    Parameters
    ----------
    run : folder to write to
    keep : so many of the newest snapshots stay
    fresh : the run began anew: snapshots that are in the folder are of another run, and go when this one has its first
    """

    def __init__(self, run: RunFolder, keep: int, fresh: bool) -> None:
        self.run = run
        self.keep = keep
        self._fresh = fresh
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def save(self, snapshot: Snapshot, step: int, best: bool = False, forget_best: bool = False) -> None:
        """Begin to write; waits for the snapshot before this one.

        Parameters
        ----------
        snapshot : its tensors must not change any more
        step : global step, for the name
        best : it is the best so far
        forget_best : there is no best one; one in the folder is of another run

        Raises
        ------
        SeamsegError
            if an earlier one could not be written
        """
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(snapshot, step, best, forget_best), name="saver")
        self._thread.start()

    def check(self) -> None:
        """SeamsegError if a snapshot could not be written; does not wait."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until what was begun is written; errors as :meth:`check`."""
        self.close()
        self.check()

    def close(self) -> None:
        """Wait as :meth:`wait`, but leave errors for later: another one may be on its way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, snapshot: Snapshot, step: int, best: bool, forget_best: bool) -> None:
        path = self.run.step_path(step)
        try:
            save_snapshot(path, snapshot)
            self.run.publish(path, self.run.last)
            if best:
                self.run.publish(path, self.run.best)
            elif forget_best:
                self.run.best.unlink(missing_ok=True)
            # last, so that whatever fails leaves the older ones
            self.run.prune(step, 1 if self._fresh else self.keep)
            self._fresh = False
        except SeamsegError as error:
            self._error = error
        except Exception as error:
            self._error = SeamsegError(f"{path}: cannot be written: {error}")
