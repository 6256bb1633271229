"""The training loop: epochs of steps, validations, snapshots."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from seamseg.config import Config
from seamseg.data.loader import set_epoch
from seamseg.data.metadata import Metadata
from seamseg.engine.distributed import World
from seamseg.engine.snapshot import save_snapshot
from seamseg.engine.train.checkpoint import Progress, make_snapshot
from seamseg.engine.train.device_transforms import prepare_batch
from seamseg.engine.train.feed import Feed
from seamseg.engine.train.pictures import SampleCollector
from seamseg.engine.train.reporter import Position, Reporter
from seamseg.engine.train.run_folder import RunFolder
from seamseg.engine.train.schedule import LRSchedule
from seamseg.engine.train.step import Stepper, StepResult
from seamseg.engine.validate import Validator
from seamseg.errors import SeamsegError
from seamseg.evaluation.scores import PanopticScores
from seamseg.models.panoptic import PanopticNet
from seamseg.structures import Batch

T = TypeVar("T")


@dataclass
class Trainer:
    """Trains a network.

    Parameters
    ----------
    config : of the run
    metadata : classes
    net : the network, on the device of this process
    module : network and criterion, batch to losses; wrapped for several processes
    stepper : trains it on the batches of a step
    schedule : learning rates
    loader : training batches, the same number in each process
    validator : scores the network; None to train without
    world : the processes
    run : folder of the snapshots, written by the main process
    reporter : tells how it goes
    progress : where the training stands; not at its beginning after a resume
    """

    config: Config
    metadata: Metadata
    net: PanopticNet
    module: nn.Module
    stepper: Stepper
    schedule: LRSchedule
    loader: DataLoader
    validator: Validator | None
    world: World
    run: RunFolder
    reporter: Reporter
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self._feed = Feed.open(self.config, self.loader, self.world, self.reporter.log.warning)
        # the best snapshot of an earlier run in this folder says nothing of this one
        self._has_best = self.progress.epoch >= 0 and self.run.best.exists()

    def train(self) -> PanopticScores | None:
        """Train from where the training stands to the last epoch; the scores of the last validation, if there was one.

        After each epoch the snapshots are brought up to date, so that a run can be interrupted at any time.

        Raises
        ------
        SeamsegError
            if a loss is not finite or a file cannot be written
        """
        epochs, scores = self.config.scheduler.epochs, None
        interval = max(1, self.config.general.val_interval)
        for epoch in range(self.progress.epoch + 1, epochs):
            with self._feed.deaths_explained():
                self._train_epoch(epoch)
            # each process averaged its own running statistics; all continue with, and judge by, those that are saved
            self.stepper.share_statistics()
            is_best = False
            if self.validator is not None and ((epoch + 1) % interval == 0 or epoch + 1 == epochs):
                scores = self.validate(epoch)
                self.progress.last_score = self.validator.best_by(scores)
                is_best = self.progress.last_score > self.progress.best_score or not self._has_best
                self.progress.best_score = max(self.progress.best_score, self.progress.last_score)
            self.progress.epoch = epoch
            self._save(is_best)
        return scores

    def validate(self, epoch: int) -> PanopticScores:
        """Score the network as it is, and report the scores and sample pictures."""
        assert self.validator is not None
        collector = SampleCollector() if self.world.is_main and self.reporter.board.active else None
        start = time.perf_counter()
        step = self.progress.global_step
        with self.stepper.averaged():
            scores = self.validator(self.net, collector, desc=f"validate, epoch {epoch + 1}")
            self.reporter.validated(epoch, step, scores, time.perf_counter() - start)
            if collector is not None:
                self.reporter.samples(self.net, collector, step)
        return scores

    def _train_epoch(self, epoch: int) -> None:
        self.module.train()
        seed_everything(self.config.general.seed, epoch, self.world.rank)
        set_epoch(self.loader, epoch)
        self.reporter.begin_epoch()
        length = steps_of_epoch(len(self.loader), self.config.optimizer.accumulate)
        last = time.perf_counter()
        for index, batches in enumerate(grouped(self._feed, self.config.optimizer.accumulate)):
            self.progress.global_step += 1
            step = self.progress.global_step
            loaded = time.perf_counter()
            if index == 0:
                self.reporter.targets(prepare_batch(batches[0], self.config.dataloader), step)
            result = self._step(epoch, batches)
            now = time.perf_counter()
            self.reporter.step(Position(epoch, index, length, step), result, loaded - last, now - last)
            last = now

    def _step(self, epoch: int, batches: list[Batch]) -> StepResult:
        step = self.progress.global_step
        rates = self.schedule.get_lr(step, epoch)
        self.reporter.begin_step(step, rates, batches)
        ids = ", ".join(i for batch in batches for i in batch.ids)
        try:
            return self.stepper(batches, rates)
        except SeamsegError:
            raise
        except torch.cuda.OutOfMemoryError as error:
            raise SeamsegError(
                f"step {step}: the GPU's memory is full (images {ids}); lower "
                "dataloader.train_batch_size, dataloader.shortest_size or dataloader.longest_max_size"
            ) from error
        except RuntimeError as error:
            # after a loss that is not finite nearly anything can fail: name the cause, not the consequence
            self.reporter.failed()
            if self.world.is_distributed and any(word in str(error) for word in ("gloo", "NCCL", "peer")):
                raise SeamsegError(
                    f"step {step}: process {self.world.rank} lost touch with the others, see their messages "
                    f"({str(error).splitlines()[0][:200]})"
                ) from error
            raise

    def _save(self, is_best: bool) -> None:
        if not self.world.is_main:
            return
        meters = self.reporter.meters
        snapshot = make_snapshot(self.config, self.metadata, self.net, self.stepper.optimizer, meters, self.progress)
        snapshot.state_dict.update(self.stepper.state_dict())
        save_snapshot(self.run.last, snapshot)
        if is_best:
            save_snapshot(self.run.best, snapshot)
            self._has_best = True
            self.reporter.log.info(f"best so far: {100 * self.progress.best_score:.2f}, in {self.run.best}")
        elif not self._has_best:
            self.run.best.unlink(missing_ok=True)


def steps_of_epoch(batches: int, accumulate: int) -> int:
    """Steps that so many batches make; the last one may have fewer than `accumulate`."""
    return -(-batches // accumulate)


def grouped(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last of which may be shorter."""
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group


def seed_everything(seed: int, epoch: int, rank: int) -> None:
    """Seed Python's, NumPy's and torch's chance for an epoch of a process.

    It depends on nothing that came before, so a resumed run continues exactly as the uninterrupted one.
    """
    value = random.Random(f"seamseg/{seed}/{epoch}/{rank}").getrandbits(63)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
