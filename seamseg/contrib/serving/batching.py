"""The threads that run the network on images of concurrent requests, in batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seamseg.inference.predictor import Predictor
from seamseg.maps.predictions import ArrayPrediction


@dataclass(eq=False)
class _Job:
    pixels: np.ndarray
    future: Future[ArrayPrediction] = field(default_factory=Future)


class Batcher:
    """Runs a network in threads, on batches of images of equal network size that arrive during the one before."""

    def __init__(
        self, predictor: Predictor, batch_size: int | None, on_batch: Callable[[int], None] = lambda size: None
    ) -> None:
        self._predictor = predictor
        self._batch_size = batch_size or predictor.batch_size
        self._on_batch = on_batch
        self._jobs: list[_Job] = []
        self._changed = threading.Condition()
        self._closing = False
        self._at_a_time = ExitStack()
        shares = nullcontext((1, None)) if batch_size == 1 else predictor.images_at_a_time()
        count, begin = self._at_a_time.enter_context(shares)
        options: dict[str, Any] = {"target": self._loop, "args": (begin,), "name": "network", "daemon": True}
        self._threads = [threading.Thread(**options) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Number of images that wait for the network."""
        with self._changed:
            return sum(not job.future.cancelled() for job in self._jobs)

    @property
    def alive(self) -> bool:
        """Whether images are computed."""
        return all(thread.is_alive() for thread in self._threads) and not self._closing

    def submit(self, pixels: np.ndarray) -> Future[ArrayPrediction]:
        """Have a prepared image computed, unless the future is cancelled before its batch has started."""
        job = _Job(pixels)
        with self._changed:
            if self._closing:
                raise RuntimeError("the batcher is closed")
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def close(self) -> None:
        """Compute what waits, and end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._at_a_time.close()

    def _loop(self, begin: Callable[[], object] | None) -> None:
        if begin is not None:
            begin()
        while True:
            with self._changed:
                batch = self._next_batch()
            if batch is None:
                return
            running = [job for job in batch if job.future.set_running_or_notify_cancel()]
            if running:
                self._compute(running)
            # the images would stay in memory until the next batch
            del batch, running

    def _next_batch(self) -> list[_Job] | None:
        """Wait for a batch of the size of the oldest image and remove it from the queue; None if there will be none."""
        while True:
            jobs = [job for job in self._jobs if not job.future.cancelled()]
            if jobs:
                shape = jobs[0].pixels.shape
                tiled = self._predictor.tiling.side_for((shape[0], shape[1])) is not None
                batch = [job for job in jobs if job.pixels.shape == shape][: 1 if tiled else self._batch_size]
                taken = set(map(id, batch))
                self._jobs = [job for job in jobs if id(job) not in taken]
                # for a thread that slept when they arrived
                if self._jobs:
                    self._changed.notify()
                return batch
            self._jobs = jobs
            if self._closing:
                return None
            self._changed.wait()

    def _compute(self, batch: Sequence[_Job]) -> None:
        self._on_batch(len(batch))
        try:
            # copies: slices would keep the outputs of the whole batch in memory; those of a GPU already are copies
            found = self._predictor.raw([job.pixels for job in batch])
            predictions = [p.copy() if p.semantic_on_gpu is None else p for p in found]
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
        else:
            for job, prediction in zip(batch, predictions, strict=True):
                job.future.set_result(prediction)
            return
        # only the image that fails alone has failed
        for job in batch:
            self._compute([job])
