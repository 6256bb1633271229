"""Decoding of the images of a process, in worker processes that may be killed without ending the run."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from seamseg.data.workers import begin_worker, describe_exit, failed_workers, recording_context, starting_workers
from seamseg.idmaps.histogram import as_array
from seamseg.inference.images import PreparedImage
from seamseg.predicting.share import (
    READ_AHEAD_BYTES,
    DecodedImage,
    DecoderShare,
    WorkerFailure,
    retry_on_worker_death,
)
from seamseg.predicting.source import Source
from seamseg.utils.errors import SeamsegError
from seamseg.utils.image_memory import ALONE_BYTES, RGB_BYTES

_NOTE_BYTES = 4096
_PIPE_BYTES = 1 << 20
"""Larger arrays pass through shared memory; for smaller ones its set-up takes longer than a copy through the pipe."""
_MAX_IDLE_DEATHS = 3
"""Deaths of decoders that were not reading an image, after which the run ends."""


class _Decoding(IterableDataset[Any]):
    """The images of a share as a data set: each with the number of the decoder that read it.

    Large arrays are tensors, which pass from a worker process to this one through shared memory.
    """

    def __init__(self, share: DecoderShare, notes: torch.Tensor, budget: ReadAheadBudget) -> None:
        self.share = share
        self.notes = notes
        self.budget = budget

    def __iter__(self) -> Iterator[tuple[int, DecodedImage]]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        note = self.notes[worker] if worker < len(self.notes) else None
        for stamp, item in self.share.items(worker, workers):
            self.budget.wait(worker)
            _write_note(note, item.source)
            try:
                decoded = self.share.decode(stamp, item)
            finally:
                _write_note(note, None)
            if isinstance(decoded.image, PreparedImage):
                self.budget.add(worker, self.budget.size_of(decoded.image))
                decoded = decoded._replace(image=decoded.image.map(_sendable))
            yield worker, decoded
            del decoded  # a large one would stay in memory until the next


def _sendable(array: np.ndarray) -> np.ndarray | torch.Tensor:
    return array if array.nbytes <= _PIPE_BYTES else torch.from_numpy(array)


class ReadAheadBudget:
    """Counts the bytes that decoders have decoded and the reading process has not yet received.

    Each counter has one process that writes it, so no lock is needed that a killed decoder would keep. A large image
    counts until its outputs are written, and its decoder does not go on before.

    Parameters
    ----------
    workers : decoders
    """

    def __init__(self, workers: int) -> None:
        self.parent = os.getpid()
        self._part = READ_AHEAD_BYTES // max(workers, 1)
        self._removing = threading.Lock()
        with starting_workers("workers"):
            self._decoded, self._received = (torch.zeros(workers, dtype=torch.int64).share_memory_() for _ in range(2))

    def wait(self, worker: int) -> None:
        """Block a decoder while its part is used up; never if it holds nothing, so that others cannot block it."""
        while worker < len(self._received) and self._decoded[worker] - self._received[worker] >= self._part:
            if os.getppid() != self.parent:
                return
            time.sleep(0.005)

    def add(self, worker: int, count: int) -> None:
        """Count bytes that a decoder has decoded; called by the decoder."""
        if worker < len(self._decoded):
            self._decoded[worker] += count

    def remove(self, worker: int, count: int) -> None:
        """Count bytes that have been received; called by the reading process."""
        if worker < len(self._received):
            with self._removing:
                self._received[worker] += count

    def size_of(self, image: PreparedImage) -> int:
        """Return the bytes that an image counts: a large one, all of the part of its decoder."""
        return max(image.nbytes, self._part) if is_large(image) else image.nbytes

    def release(self) -> None:
        """End all waiting; called by the reading process."""
        self._received.fill_(1 << 60)


def is_large(image: PreparedImage) -> bool:
    """Return whether an image is one of those that are decoded one at a time, and is kept for its outputs."""
    return image.rgb is not None and RGB_BYTES * image.size[0] * image.size[1] > ALONE_BYTES


class ProcessDecoders:
    """Reads a share with worker processes.

    A decoder that is killed while it reads an image is replaced, and the image is tried again; if this happens a second
    time, the image is skipped.

    Parameters
    ----------
    share : share of this process
    workers : processes that decode; 0 decodes in this one
    """

    def __init__(self, share: DecoderShare, workers: int) -> None:
        self.share = share
        self.workers = workers if share.videos else min(workers, len(share.mine))
        self._deaths: Counter[str] = Counter()
        self._idle_deaths = 0
        self._iterator: object = None
        self._started: list[BaseProcess] = []
        with starting_workers("workers"):
            self._notes = torch.zeros(self.workers, _NOTE_BYTES, dtype=torch.uint8).share_memory_()
        self._budget = ReadAheadBudget(0)
        self._unwritten: dict[str, Callable[[], None]] = {}

    def read(self, skip: Collection[str]) -> Iterator[DecodedImage]:
        """Decode the images except those named; may be called again after :meth:`handle_worker_failure`."""
        self.share.skip = skip
        self._started.clear()
        self._notes.zero_()
        if not self.share.mine and not self.share.videos:
            return
        budget = self._budget = ReadAheadBudget(self.workers)
        loader: DataLoader[Any] = DataLoader(
            _Decoding(self.share, self._notes, budget),
            batch_size=None,
            num_workers=self.workers,
            collate_fn=_unchanged,
            worker_init_fn=begin_worker if self.workers else None,
            multiprocessing_context=recording_context(self._started) if self.workers else None,
        )
        with starting_workers("workers"):
            self._iterator = iter(loader)
        try:
            for worker, decoded in self._iterator:
                if isinstance(decoded.image, PreparedImage):
                    received = partial(budget.remove, worker, budget.size_of(decoded.image))
                    if is_large(decoded.image):
                        self._unwritten[decoded.source.name] = received
                    else:
                        received()
                    decoded = decoded._replace(image=decoded.image.map(as_array))
                name = decoded.source.name
                yield decoded
                del decoded
                while not self.workers and name in self._unwritten:
                    time.sleep(0.005)
        finally:
            budget.release()
        self._iterator = None

    def written(self, source: Source) -> None:
        """Let the decoder of a large image go on; called by any thread."""
        self._unwritten.pop(source.name, lambda: None)()

    def handle_worker_failure(self, error: BaseException) -> WorkerFailure | None:
        """Handle an error that was raised while images were read, anywhere in this process.

        Returns
        -------
        the failure; None if the error is not about a dead decoder

        Raises
        ------
        SeamsegError
            if the run cannot continue
        """
        workers = self._started
        dead = failed_workers(error, workers)
        if not dead:
            return None
        for number in dead:
            workers[number].join(timeout=1)
        codes = {code for number in dead if (code := workers[number].exitcode)}
        sources = [source for number in dead if (source := _read_note(self._notes[number])) is not None]
        self._close()
        cause = describe_exit(codes)
        message = f"a process that decodes images {cause}" + (
            f" while it read {', '.join(map(str, sources))}" if sources else ""
        )
        if -getattr(signal, "SIGBUS", 0) in codes:
            raise SeamsegError(
                f"{message}: shared memory is full; enlarge /dev/shm (docker run --shm-size), or lower `workers`"
            ) from error
        self._idle_deaths += not sources
        if self._idle_deaths > _MAX_IDLE_DEATHS:
            raise SeamsegError(
                f"{message}, {self._idle_deaths} times while it read no image; usually the machine is out of "
                f"memory: lower `workers`; re-run the same command to resume"
            ) from error
        self._deaths.update(source.name for source in sources)
        skipped = [
            (source, f"{source}: the process that decoded it {cause}, twice")
            for source in sources
            if self._deaths[source.name] > 1
        ]
        return WorkerFailure(f"{message}; it is replaced", skipped)

    def _close(self) -> None:
        # its workers would go on decoding
        self._budget.release()
        shutdown = getattr(self._iterator, "_shutdown_workers", None)
        self._iterator = None
        if shutdown is not None:
            retry_on_worker_death(shutdown)
        for process in self._started:  # of a loader that was not even complete
            process.kill()


def _unchanged(item: Any) -> Any:
    """Return an item as it is; the default `collate_fn` would rebuild it."""
    return item


def _write_note(note: torch.Tensor | None, source: Source | None) -> None:
    if note is None:
        return
    text = "" if source is None else "\0".join((source.name, source.relative, str(source)))
    data = text.encode("utf-8", "surrogateescape")[: _NOTE_BYTES - 1] + b"\0"
    note[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    note[len(data) :] = 0


def _read_note(note: torch.Tensor) -> Source | None:
    text = bytes(note.tolist()).rstrip(b"\0").decode("utf-8", "surrogateescape")
    if text.count("\0") != 2:
        return None
    name, relative, address = text.split("\0")
    return Source(Path(address), name, relative, address)
