"""The training loop: epochs of steps, validations, snapshots."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from itertools import islice

from seamseg.data.loader import index_sampler, translate_worker_errors
from seamseg.maps.evaluation.scores import Scores
from seamseg.training.checkpointing.checkpoint import (
    EpochPosition,
    ResumePoint,
    TrainingProgress,
    TrainState,
    make_snapshot,
    seed_everything,
    set_rng_state,
)
from seamseg.training.checkpointing.run_folder import RunFolder, SnapshotWriter
from seamseg.training.logging.reporter import Reporter, StepPosition
from seamseg.training.losses import LossCheck
from seamseg.training.preemption import STOP, Preempted, Preemption
from seamseg.training.prefetch import DeviceBatch, DevicePrefetcher
from seamseg.training.setup import Validate
from seamseg.training.step import StepResult
from seamseg.utils.distributed import barrier
from seamseg.utils.errors import OutOfMemory, lacks_memory
from seamseg.utils.process import return_memory


@dataclass
class Trainer:
    """Trains a network; `run` gets the snapshots, `resumed` is where to begin, with all states restored."""

    state: TrainState
    batches: DevicePrefetcher
    validator: Validate | None
    run: RunFolder
    reporter: Reporter
    resumed: ResumePoint | None = None

    def __post_init__(self) -> None:
        resumed, state = self.resumed, self.state
        self.stepper = state.stepper
        self.options, self.world, self.net = state.stepper.options, state.stepper.world, state.stepper.net
        self.losses = LossCheck(self.options, self.world)
        self.writer = SnapshotWriter(self.run, self.options.snapshot_keep, fresh=resumed is None)
        # the best snapshot of an earlier run in this folder does not count
        self._has_best = resumed is not None and resumed.progress.epoch >= 0 and self.run.best.exists()
        self.progress = TrainingProgress() if resumed is None else replace(resumed.progress)
        self._position: EpochPosition | None = None if resumed is None else resumed.position
        self._preemption = Preemption(self.world, lambda: bool(self.reporter.callbacks.run.stop_reason))
        if resumed is not None and (own := resumed.rank_state(self.world)) is not None:
            # the beginning of a new epoch resets most of it
            self.losses.load_state_dict(own["losses"])

    def train(self) -> Scores | None:
        """Train to the last epoch; return the scores of the last validation. Preempted after a signal."""
        states = {} if self.resumed is None else self.resumed.callbacks
        epochs, between, scores = self.options.epochs, self.options.snapshot_interval, None
        with self.reporter.following(states), self._preemption, closing(self.writer):
            for epoch in range(self.progress.epoch + 1, epochs):
                with translate_worker_errors():
                    if not self._train_epoch(epoch):
                        break
                last = epoch + 1 == epochs
                # the snapshot and the validation use the running statistics of the main process
                self.stepper.share_statistics()
                is_best = False
                if self.validator is not None and ((epoch + 1) % self.options.val_interval == 0 or last):
                    if not (between and self.progress.global_step % between == 0):
                        # a signal or an error in the validation must not lose the epoch; or the step is saved already
                        self._save()
                    with nullcontext() if self.stepper.ema is None else self.stepper.ema.swapped_in():
                        step = self.progress.global_step
                        scores = self.reporter.validate(self.validator, self.net, epoch, step)
                    is_best = self.progress.validated(scores.selection, self._has_best)
                self.progress.epoch = epoch
                self._position = None
                self._save(is_best)
                if scores is not None and is_best and self.world.rank == 0:
                    self.reporter.log.info(f"best so far: {scores.selection}, in {self.run.best}")
                if not last and self._stops(self._preemption.now()):
                    break
            self.writer.wait()
        return scores

    def _train_epoch(self, epoch: int) -> bool:
        self.stepper.module.train()
        self._position = position = self._begin_epoch(epoch)
        done, batches = position.steps, iter(self.batches)
        length = done + self.options.steps_per_epoch(len(self.batches.loader))
        began = time.perf_counter()
        for index, group in enumerate(iter(lambda: list(islice(batches, self.options.accumulate)), []), done):
            self.progress.global_step += 1
            step = self.progress.global_step
            loaded = time.perf_counter()
            if index == 0:
                self.reporter.targets(group[0].source, step)
            result = self._step(epoch, group)
            now = time.perf_counter()
            self.losses.add(step, result)
            self.reporter.add(loaded - began, now - began, len(result.ids))
            where = StepPosition(epoch, index, length, step)
            due = self.reporter.is_due(where)
            if due or self.losses.full:
                self.losses.check()
            if due:
                self.reporter.report(where, self.losses.pop_means())
            else:
                self.reporter.progress(where)
            self.reporter.histograms(self.net, step)
            self._position = position = position.after(len(group))
            self.writer.check()
            return_memory()
            number = self._preemption.after_step()
            interval = self.options.snapshot_interval
            if number or (interval and step % interval == 0):
                self._save()
            if self._stops(number):
                return False
            began = time.perf_counter()
        return True

    def _step(self, epoch: int, group: list[DeviceBatch]) -> StepResult:
        step = self.progress.global_step
        rates = self.state.schedule.get_lr(step, epoch)
        self.reporter.begin_step(step, rates)
        batches = [uploaded.batch for uploaded in group]
        try:
            return self.stepper(batches, rates)
        except Exception as error:
            if not lacks_memory(error):
                raise
            ids = ", ".join(i for batch in batches for i in batch.ids)
            sizes = (f"dataloader.{key}" for key in ("train_batch_size", "shortest_size", "longest_max_size"))
            lower = self.options.key(*sizes, joined=" or ")
            message = f"step {step}: {self.world.device}: not enough memory (images {ids}); lower {lower}"
            raise OutOfMemory(message) from error

    def _begin_epoch(self, epoch: int) -> EpochPosition:
        seed, world, loader = self.options.seed, self.world, self.batches.loader
        sampler = index_sampler(loader)
        sampler.set_epoch(epoch)
        self.reporter.begin_epoch()
        seed_everything(seed, epoch, world.rank)
        position, resumed = self._position, self.resumed
        if resumed is None or position is None:
            self.losses.begin_epoch()
            return EpochPosition(epoch, 0, sampler.segments, sampler.order)
        sampler.continue_from(position.segments)
        if (own := resumed.rank_state(world)) is not None:
            set_rng_state(own["random"], world.device)
        else:
            seed_everything(seed, epoch, world.rank, self.progress.global_step)
        return replace(position, segments=sampler.segments)

    def _save(self, is_best: bool = False) -> None:
        """Write the state of the training in the background; a collective call."""
        # first, as they raise if a loss or a weight is not finite
        losses = self.losses.state_dict()
        self.losses.check_weights(self.net, self.progress.global_step)
        callbacks = self.reporter.callbacks
        snapshot = make_snapshot(self.state, self.progress, self._position, is_best, losses, callbacks)
        self._has_best = self._has_best or is_best
        if snapshot is not None:
            self.writer.save(snapshot, self.progress.global_step, is_best, not self._has_best)

    def _stops(self, number: int) -> bool:
        """Return whether a callback ends the training, whose snapshot is being written; Preempted after a signal."""
        if number in (0, STOP):
            return number == STOP
        self.writer.wait()
        stopped = Preempted(number, self.progress.global_step)
        if self.world.rank == 0:
            self.reporter.log.warning(str(stopped))
        # complete the pending exchange of signals before any process exits
        self._preemption.settle()
        # a launcher ends the others when the first one exits: wait until the snapshot is written
        barrier(self.world)
        raise stopped
