"""The training loop: epochs of steps, validations, snapshots."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from torch.utils.data import DataLoader

from seamseg.config import Config
from seamseg.data.loader import index_sampler, set_epoch
from seamseg.evaluation.scores import PanopticScores
from seamseg.formats.metadata import Metadata
from seamseg.models.panoptic import PanopticNet
from seamseg.training.checkpointing.checkpoint import Progress, Start, make_snapshot, resume_state
from seamseg.training.checkpointing.position import EpochPosition, order_of
from seamseg.training.checkpointing.rank_state import gather_rank_states, pooled_losses
from seamseg.training.checkpointing.rng import seed_everything, set_random_state
from seamseg.training.checkpointing.run_folder import RunFolder
from seamseg.training.checkpointing.saver import Saver
from seamseg.training.logging.images import SampleCollector
from seamseg.training.logging.reporter import Position, Reporter
from seamseg.training.optim.schedule import LRSchedule
from seamseg.training.preemption import Preempted, Preemption
from seamseg.training.prefetch import Fed, Feed
from seamseg.training.step import Stepper, StepResult
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.distributed import World, barrier, failure_reason, is_peer_failure
from seamseg.utils.errors import SeamsegError
from seamseg.validation.validator import Validator

T = TypeVar("T")


@dataclass
class Trainer:
    """Trains a network.

    Parameters
    ----------
    config : of the run
    metadata : classes
    net : the network, on the device of this process
    stepper : trains it, and the criterion around it, on the batches of a step
    schedule : learning rates
    loader : training batches, the same number in each process
    validator : scores the network; None to train without
    world : the processes
    run : folder of the snapshots, written by the main process
    reporter : tells how it goes
    start : where it begins, of a resumed training; weights, momentum and the stepper's state are in place already
    """

    config: Config
    metadata: Metadata
    net: PanopticNet
    stepper: Stepper
    schedule: LRSchedule
    loader: DataLoader
    validator: Validator | None
    world: World
    run: RunFolder
    reporter: Reporter
    start: Start | None = None

    def __post_init__(self) -> None:
        start = self.start
        self._feed = Feed.open(self.config, self.loader, self.world, self.reporter.log.warning)
        self.progress = Progress() if start is None else replace(start.progress)
        # the best snapshot of an earlier run in this folder says nothing of this one
        self._has_best = self.progress.epoch >= 0 and self.run.best.exists()
        self._position: EpochPosition | None = None if start is None else start.position
        self._saver = Saver(self.run, self.config.general.snapshot_keep, start is None) if self.world.is_main else None
        self._preemption = Preemption(self.world)
        if start is not None and start.rank_states:
            # of this, what begins anew with each epoch is forgotten when one begins
            own = start.own_state(self.world)
            self.reporter.load_state_dict(pooled_losses(start.rank_states) if own is None else own["losses"])

    def train(self) -> PanopticScores | None:
        """Train from where the training stands to the last epoch; the scores of the last validation, if there was one.

        Snapshots are written after each epoch, every `general.snapshot_interval` steps and when a signal asks to stop,
        so that a run can be interrupted at any time.

        Raises
        ------
        SeamsegError
            if a loss is not finite or a file cannot be written
        Preempted
            if a signal asked to stop; where the training stands is saved
        """
        try:
            with self._preemption:
                scores = self._train()
                if self._saver is not None:
                    self._saver.wait()
                return scores
        except RuntimeError as error:
            if not (self.world.is_distributed and is_peer_failure(error)):
                raise
            raise SeamsegError(
                f"step {self.progress.global_step}: process {self.world.rank} lost touch with the others, see their "
                f"messages ({failure_reason(error)})"
            ) from error
        finally:
            if self._saver is not None:
                self._saver.close()

    def _train(self) -> PanopticScores | None:
        epochs, scores = self.config.scheduler.epochs, None
        interval, between = max(1, self.config.general.val_interval), self.config.general.snapshot_interval
        for epoch in range(self.progress.epoch + 1, epochs):
            with self._feed.deaths_explained():
                self._train_epoch(epoch)
            validates = self.validator is not None and ((epoch + 1) % interval == 0 or epoch + 1 == epochs)
            if validates and between and self.progress.global_step % between:
                # a validation can take longer than a machine is ours; the last step may be saved already
                self._save()
            # each process averaged its own running statistics; all continue with, and judge by, those that are saved
            self.stepper.share_statistics()
            is_best = False
            if validates:
                assert self.validator is not None
                scores = self.validate(epoch)
                self.progress.last_score = self.validator.best_by(scores)
                is_best = self.progress.last_score > self.progress.best_score or not self._has_best
                self.progress.best_score = max(self.progress.best_score, self.progress.last_score)
            self.progress.epoch = epoch
            self._position = None
            self._save(is_best)
            if epoch + 1 < epochs and (number := self._preemption.now()):
                self._stop(number)
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
        self.stepper.module.train()
        done = self._enter(epoch)
        length = done + steps_of_epoch(len(self.loader), self.config.optimizer.accumulate)
        last = time.perf_counter()
        for index, group in enumerate(grouped(self._feed, self.config.optimizer.accumulate), done):
            self.progress.global_step += 1
            step = self.progress.global_step
            loaded = time.perf_counter()
            if index == 0:
                self.reporter.targets(group[0].source, step)
            result = self._step(epoch, group)
            self.reporter.broken = self._feed.broken_images
            now = time.perf_counter()
            self.reporter.step(Position(epoch, index, length, step), result, loaded - last, now - last)
            assert self._position is not None
            self._position = self._position.after(len(group))
            self._between_steps()
            last = time.perf_counter()

    def _enter(self, epoch: int) -> int:
        """Begin an epoch, or go on in the middle of it; the steps of it that are done."""
        general, world, sampler = self.config.general, self.world, index_sampler(self.loader)
        set_epoch(self.loader, epoch)
        self.reporter.begin_epoch()
        seed_everything(general.seed, epoch, world.rank)
        order = order_of(sampler, general.seed)
        position, start = self._position, self.start
        if start is None or position is None or position.epoch != epoch:
            self._position = EpochPosition(epoch, 0, sampler.segments, order)
            return 0
        if position.order != order:
            self.reporter.log.warning(
                f"epoch {epoch + 1} begins anew: the training images or general.seed are others than in {start.source}"
            )
            self._position = EpochPosition(epoch, 0, sampler.segments, order)
            return 0
        sampler.continue_from(position.segments)
        self._position = replace(position, segments=sampler.segments)
        own = start.own_state(world)
        if own is not None:
            self.reporter.load_state_dict(own["losses"])
            set_random_state(own["random"], world.device)
        else:
            self.reporter.load_state_dict(pooled_losses(start.rank_states))
            seed_everything(general.seed, epoch, world.rank, self.progress.global_step)
        return position.steps

    def _between_steps(self) -> None:
        if self._saver is not None:
            self._saver.check()
        number = self._preemption.after_step()
        interval = self.config.general.snapshot_interval
        if number or (interval and self.progress.global_step % interval == 0):
            self._save()
        if number:
            self._stop(number)

    def _stop(self, number: int) -> None:
        """End the training, which is saved as it stands, because of a signal."""
        message = (
            f"{signal.Signals(number).name}: stopped after step {self.progress.global_step}, which is saved; "
            "the same command with --resume auto goes on"
        )
        if self._saver is not None:
            self._saver.wait()
            self.reporter.log.warning(message)
        # nobody shall leave while another one's word is on its way to it
        self._preemption.settle()
        # a launcher ends the others when the first one has ended: not before the snapshot is there
        barrier(self.world)
        raise Preempted(number, message)

    def _step(self, epoch: int, group: list[Fed]) -> StepResult:
        step = self.progress.global_step
        rates = self.schedule.get_lr(step, epoch)
        self.reporter.begin_step(step, rates, [fed.source for fed in group])
        batches = [fed.batch for fed in group]
        ids = ", ".join(i for batch in batches for i in batch.ids)
        try:
            return self.stepper(batches, rates)
        except SeamsegError:
            raise
        except RuntimeError as error:
            if lacks_memory(error):
                raise SeamsegError(
                    f"step {step}: the GPU's memory is full (images {ids}); lower "
                    "dataloader.train_batch_size, dataloader.shortest_size or dataloader.longest_max_size"
                ) from error
            # after a loss that is not finite nearly anything can fail: name the cause, not the consequence
            self.reporter.failed()
            raise

    def _save(self, is_best: bool = False) -> None:
        """Copy where the training stands, and write it in the background; all processes must call it."""
        # first, as it fails if a loss was not finite
        losses = self.reporter.state_dict()
        averaged = self.stepper.state_dict().get("ema", {})
        ranks = gather_rank_states(self.world, self.net, averaged, losses)
        if self._saver is None:
            return
        more = resume_state(self._position, ranks, is_best, self.schedule.total)
        self._has_best = self._has_best or is_best
        snapshot = make_snapshot(
            self.config, self.metadata, self.net, self.stepper, self.reporter.meters, self.progress, more
        )
        self._saver.save(snapshot, self.progress.global_step, is_best, not self._has_best)
        if is_best:
            self.reporter.log.info(f"best so far: {100 * self.progress.best_score:.2f}, in {self.run.best}")


def steps_of_epoch(batches: int, accumulate: int) -> int:
    """Steps that so many batches make; the last one may have fewer than `accumulate`."""
    return -(-batches // accumulate)


def grouped(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last of which may be shorter."""
    iterator = iter(items)
    while group := list(islice(iterator, size)):
        yield group
