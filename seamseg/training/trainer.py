"""The training loop: epochs of steps, validations, snapshots."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from torch.utils.data import DataLoader

from seamseg.data.loader import index_sampler, set_epoch
from seamseg.evaluation.scores import Scores
from seamseg.training.checkpointing.checkpoint import (
    EpochPosition,
    ResumePoint,
    TrainingProgress,
    TrainState,
    data_order,
    make_snapshot,
    resume_state,
)
from seamseg.training.checkpointing.rank_state import gather_rank_states, mean_losses, seed_everything, set_rng_state
from seamseg.training.checkpointing.run_folder import Failure, RunFolder, SnapshotWriter
from seamseg.training.logging.reporter import Diverged, Reporter, StepPosition
from seamseg.training.preemption import Preempted, Preemption
from seamseg.training.prefetch import DeviceBatch, DevicePrefetcher
from seamseg.training.step import StepResult
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.distributed import barrier, failure_reason, is_peer_failure
from seamseg.utils.errors import OutOfMemory, SeamsegError, one_line, option

T = TypeVar("T")

_SIZE_KEYS = ("dataloader.train_batch_size", "dataloader.shortest_size", "dataloader.longest_max_size")


@dataclass
class Trainer:
    """Trains a network.

    Parameters
    ----------
    state : what is trained
    loader : training batches, the same number in each process
    validator : scores the network, see :class:`seamseg.training.task.Task`; None for no validation
    run : folder of the snapshots, written by the main process
    reporter : reports the progress
    resumed : where to begin; weights, momentum and the stepper's state must be restored already; None for a new run
    watch : called with the number of each finished step
    """

    state: TrainState
    loader: DataLoader
    validator: Callable[..., Scores] | None
    run: RunFolder
    reporter: Reporter
    resumed: ResumePoint | None = None
    watch: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        resumed, state = self.resumed, self.state
        self.config, self.world, self.stepper, self.schedule = state.config, state.world, state.stepper, state.schedule
        self._batches = DevicePrefetcher.open(self.config, self.loader, self.world, self.reporter.log.warning)
        self.progress = TrainingProgress() if resumed is None else replace(resumed.progress)
        # the best snapshot of an earlier run in this folder does not count
        self._has_best = self.progress.epoch >= 0 and self.run.best.exists()
        self._has_saved = False
        self._start = self.progress.global_step
        self._position: EpochPosition | None = None if resumed is None else resumed.position
        keep = self.config.general.snapshot_keep
        self._writer = SnapshotWriter(self.run, keep, resumed is None) if self.world.is_main else None
        self._preemption = Preemption(self.world)
        if resumed is not None and resumed.rank_states:
            # a new epoch resets most of it
            own = resumed.rank_state(self.world)
            self.reporter.load_state_dict(mean_losses(resumed.rank_states) if own is None else own["losses"])

    def train(self) -> Scores | None:
        """Train to the last epoch and return the scores of the last validation, if there was one.

        Snapshots are written after each epoch, every `general.snapshot_interval` steps and when a signal stops the
        training, so that a run can be interrupted at any time.

        Raises
        ------
        SeamsegError
            if a loss is not finite or a file cannot be written
        Preempted
            if a signal stopped the training, after writing a snapshot
        """
        try:
            with self._preemption:
                scores = self._train()
                if self._writer is not None:
                    self._writer.wait()
                return scores
        except Diverged as error:
            self._fail(error.step, error.problem)
            raise
        except RuntimeError as error:
            if not (self.world.is_distributed and is_peer_failure(error)):
                raise
            raise SeamsegError(
                f"step {self.progress.global_step}: process {self.world.rank} lost its connection to the others, see "
                f"their messages ({failure_reason(error)})"
            ) from error
        finally:
            if self._writer is not None:
                self._writer.close()

    def _train(self) -> Scores | None:
        epochs, scores = self.config.scheduler.epochs, None
        interval, between = max(1, self.config.general.val_interval), self.config.general.snapshot_interval
        for epoch in range(self.progress.epoch + 1, epochs):
            with self._batches.worker_errors():
                self._train_epoch(epoch)
            validates = self.validator is not None and ((epoch + 1) % interval == 0 or epoch + 1 == epochs)
            if validates and between and self.progress.global_step % between:
                # the validation may be interrupted; the last step may be saved already
                self._save()
            # running statistics differ between processes; all continue with, and validate, those that are saved
            self.stepper.share_statistics()
            is_best = False
            if validates:
                assert self.validator is not None
                scores = self.validate(epoch)
                self.progress.last_score = scores.best
                is_best = self.progress.last_score > self.progress.best_score or not self._has_best
                self.progress.best_score = max(self.progress.best_score, self.progress.last_score)
            self.progress.epoch = epoch
            self._position = None
            self._save(is_best)
            if epoch + 1 < epochs and (number := self._preemption.now()):
                self._stop(number)
        return scores

    def validate(self, epoch: int) -> Scores:
        """Score the current network, and report the scores and sample images."""
        assert self.validator is not None
        collector = self.reporter.sample_collector()
        start = time.perf_counter()
        step = self.progress.global_step
        with self.stepper.averaged(), self._failures():
            scores: Scores = self.validator(self.state.net, collector, desc=f"validate, epoch {epoch + 1}")
            self.reporter.validated(epoch, step, scores, time.perf_counter() - start)
            if collector is not None:
                self.reporter.samples(self.state.net, collector, step)
        return scores

    def _train_epoch(self, epoch: int) -> None:
        self.stepper.module.train()
        done = self._begin_epoch(epoch)
        length = done + steps_per_epoch(len(self.loader), self.config.optimizer.accumulate)
        last = time.perf_counter()
        for index, group in enumerate(grouped(self._batches, self.config.optimizer.accumulate), done):
            self.progress.global_step += 1
            step = self.progress.global_step
            loaded = time.perf_counter()
            if index == 0:
                self.reporter.targets(group[0].source, step)
            result = self._step(epoch, group)
            self.reporter.broken = self._batches.broken_images
            now = time.perf_counter()
            self.reporter.step(StepPosition(epoch, index, length, step), result, loaded - last, now - last)
            if self.watch is not None:
                self.watch(step)
            assert self._position is not None
            self._position = self._position.after(len(group))
            self._after_step()
            last = time.perf_counter()

    def _begin_epoch(self, epoch: int) -> int:
        """Begin an epoch, or resume within it; return the number of its finished steps."""
        general, world, sampler = self.config.general, self.world, index_sampler(self.loader)
        set_epoch(self.loader, epoch)
        self.reporter.begin_epoch()
        seed_everything(general.seed, epoch, world.rank)
        order = data_order(sampler, general.seed)
        position, resumed = self._position, self.resumed
        if resumed is None or position is None or position.epoch != epoch:
            self._position = EpochPosition(epoch, 0, sampler.segments, order)
            return 0
        if position.order != order:
            self.reporter.log.warning(
                f"restarting epoch {epoch + 1}: the training images or {option('general.seed')} differ from those of "
                f"{resumed.source}"
            )
            self._position = EpochPosition(epoch, 0, sampler.segments, order)
            return 0
        sampler.continue_from(position.segments)
        self._position = replace(position, segments=sampler.segments)
        own = resumed.rank_state(world)
        if own is not None:
            self.reporter.load_state_dict(own["losses"])
            set_rng_state(own["random"], world.device)
        else:
            self.reporter.load_state_dict(mean_losses(resumed.rank_states))
            seed_everything(general.seed, epoch, world.rank, self.progress.global_step)
        return position.steps

    @property
    def _last_update(self) -> int:
        return max(self._start, self.reporter.last_update)

    def _after_step(self) -> None:
        if self._writer is not None:
            self._writer.check()
            self._writer.updated(self._last_update)
        number = self._preemption.after_step()
        interval = self.config.general.snapshot_interval
        if number or (interval and self.progress.global_step % interval == 0):
            self._save()
        if number:
            self._stop(number)

    def _stop(self, number: int) -> None:
        """Stop the training, whose snapshot is being written, because of a signal."""
        message = (
            f"{signal.Signals(number).name}: stopped after step {self.progress.global_step}, snapshot saved; "
            f"re-run the same command (`train`: with {option('resume', 'auto')}) to continue"
        )
        if self._writer is not None:
            self._writer.wait()
            self.reporter.log.warning(message)
        # complete the pending exchange of signals before any process exits
        self._preemption.settle()
        # a launcher ends the others when the first one exits: wait until the snapshot is written
        barrier(self.world)
        raise Preempted(number, message)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Note an error in a `with` block as a failed step: weights that have diverged can cause almost any."""
        try:
            yield
        except Exception as error:
            lost = isinstance(error, RuntimeError) and self.world.is_distributed and is_peer_failure(error)
            if not (isinstance(error, SeamsegError) or lacks_memory(error)):
                # nothing can be read from a device after some errors
                with suppress(RuntimeError):
                    # report a loss that is not finite instead
                    self.reporter.failed()
                # before the first update of a resumed training, the cause is rather the machine, as for a missing file
                if not (lost or isinstance(error, OSError)) and self.reporter.last_update > self._start:
                    self._fail(self.progress.global_step, f"{type(error).__name__}: {error}")
            raise

    def _fail(self, step: int, problem: str) -> None:
        """Note that a step has failed: its weights may be the cause, so the run does not resume from them."""
        if self._writer is not None:
            self._writer.close()
        if self.resumed is None and not self._has_saved and self.run.saved():
            # those of an earlier run
            return
        log = self.reporter.log
        try:
            if self.reporter.last_update <= self._start and self.run.failure() is not None:
                # with the snapshot that it began with, a step has succeeded before
                return
            good = self.run.fail(Failure(step, self._last_update, one_line(problem)))
        except SeamsegError as error:
            log.warning(str(error))
            return
        if good is not None:
            log.warning(f"{good} is the newest snapshot with which a step has succeeded, and now {self.run.last.name}")
        elif self.run.saved():
            log.warning(
                f"{self.run.path}: no step has succeeded with its snapshots, {option('resume', 'auto')} starts over"
            )

    def _step(self, epoch: int, group: list[DeviceBatch]) -> StepResult:
        step = self.progress.global_step
        rates = self.schedule.get_lr(step, epoch)
        self.reporter.begin_step(step, rates, [uploaded.source for uploaded in group])
        batches = [uploaded.batch for uploaded in group]
        ids = ", ".join(i for batch in batches for i in batch.ids)
        try:
            with self._failures():
                return self.stepper(batches, rates)
        except Exception as error:
            if lacks_memory(error):
                keys = dict.fromkeys(map(option, _SIZE_KEYS))
                device = self.world.device
                raise OutOfMemory(
                    f"step {step}: {device}: not enough memory (images {ids}); lower {' or '.join(keys)}"
                ) from error
            raise

    def _save(self, is_best: bool = False) -> None:
        """Copy the state of the training, and write it in the background; a collective call."""
        # first, as it raises if a loss was not finite
        losses = self.reporter.state_dict()
        self._has_saved = True
        if self._writer is not None:
            # before the others go on, which may note a failure
            self.run.resolve_failure(self._start)
            # there was no step yet if a resumed training begins with a validation
            self._writer.updated(self._last_update)
        averaged = self.stepper.state_dict().get("ema", {})
        ranks = gather_rank_states(self.world, self.state.net, averaged, losses)
        if self._writer is None:
            return
        more = resume_state(self._position, ranks, is_best, self.schedule.total)
        self._has_best = self._has_best or is_best
        meters = {name: meter.state_dict() for name, meter in self.reporter.meters.items()}
        snapshot = make_snapshot(self.state, self.progress, meters, more)
        self._writer.save(snapshot, self.progress.global_step, is_best, not self._has_best)
        if is_best:
            self.reporter.log.info(f"best so far: {100 * self.progress.best_score:.2f}, in {self.run.best}")


def steps_per_epoch(batches: int, accumulate: int) -> int:
    """Return the number of steps for so many batches; the last one may have fewer than `accumulate`."""
    return -(-batches // accumulate)


def grouped(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size`, the last of which may be shorter."""
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group
