"""The training loop: epochs of steps, validations, snapshots."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from seamseg.config import Config
from seamseg.data.loader import set_epoch
from seamseg.data.metadata import Metadata
from seamseg.engine.checkpoint import Progress, make_snapshot
from seamseg.engine.distributed import World, broadcast_buffers, mean_over_processes
from seamseg.engine.logs import Board, TextLog, duration
from seamseg.engine.meters import Averages, LossLog
from seamseg.engine.optimizer import set_learning_rates
from seamseg.engine.pictures import Artist, SampleCollector, best_proposals
from seamseg.engine.precision import autocast
from seamseg.engine.run_folder import RunFolder
from seamseg.engine.schedule import LRSchedule
from seamseg.engine.snapshot import save_snapshot
from seamseg.engine.validate import Validator
from seamseg.errors import SeamsegError
from seamseg.evaluation.scores import HEADLINE, PanopticScores
from seamseg.models.panoptic import PanopticNet
from seamseg.structures import Batch


@dataclass
class Trainer:
    """Trains a network.

    Parameters
    ----------
    config : of the run
    metadata : classes
    net : the network, on the device of this process
    module : network and criterion, batch to losses; wrapped for several processes
    optimizer, schedule : of the network's parameters
    loader : training batches, the same number in each process
    validator : scores the network; None to train without
    world : the processes
    run : folder of the snapshots, written by the main process
    log, board : text and TensorBoard
    progress : where the training stands; not at its beginning after a resume
    """

    config: Config
    metadata: Metadata
    net: PanopticNet
    module: nn.Module
    optimizer: torch.optim.SGD
    schedule: LRSchedule
    loader: DataLoader
    validator: Validator | None
    world: World
    run: RunFolder
    log: TextLog
    board: Board
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self._artist = Artist(self.metadata, self.config)
        self._eta = _Pace()
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
            losses = self._train_epoch(epoch)
            # each process averaged its own running statistics; all continue with, and judge by, those that are saved
            broadcast_buffers(self.world, self.net)
            is_best = False
            if self.validator is not None and ((epoch + 1) % interval == 0 or epoch + 1 == epochs):
                scores = self.validate(epoch)
                self.progress.last_score = self.validator.best_by(scores)
                is_best = self.progress.last_score > self.progress.best_score or not self._has_best
                self.progress.best_score = max(self.progress.best_score, self.progress.last_score)
            self.progress.epoch = epoch
            self._save(losses, is_best)
        return scores

    def validate(self, epoch: int) -> PanopticScores:
        """Score the network as it is, and log the scores and sample pictures."""
        assert self.validator is not None
        collector = SampleCollector() if self.world.is_main and self.board.active else None
        start = time.perf_counter()
        scores = self.validator(self.net, collector, desc=f"validate, epoch {epoch + 1}")
        took = time.perf_counter() - start
        shown = ("PQ", "PQ_things", "PQ_stuff", "SQ", "RQ", "PQ_dagger", "mIoU")
        headline = "  ".join(f"{name} {100 * getattr(scores, name):.2f}" for name in shown)
        self.log.info(f"validation after epoch {epoch + 1}: {headline} ({scores.n_images} images, {duration(took)})")
        step = self.progress.global_step
        self.board.scalars(validation_scalars(scores), step)
        if collector is not None:
            self._show(collector, step)
        return scores

    def _train_epoch(self, epoch: int) -> LossLog:
        self.module.train()
        seed_everything(self.config.general.seed, epoch, self.world.rank)
        set_epoch(self.loader, epoch)
        on_cpu = self.world.device.type == "cpu"
        interval = max(1, self.config.general.log_interval)
        losses, times = LossLog(1 if on_cpu else interval), Averages()
        last = time.perf_counter()
        for index, batch in enumerate(self.loader):
            self.progress.global_step += 1
            loaded = time.perf_counter()
            if index == 0 and self.world.is_main and self.board.active:
                self.board.picture("train/targets", self._artist.targets(batch), self.progress.global_step)
            self._step(epoch, batch, losses)
            if (index + 1) % interval == 0 or index + 1 == len(self.loader):
                losses.flush()
            now = time.perf_counter()
            times.update({"data": loaded - last, "step": now - last})
            last = now
            if (index + 1) % interval == 0 or index + 1 == len(self.loader):
                self._report(epoch, index, losses, times)
        return losses

    def _step(self, epoch: int, batch: Batch, log: LossLog) -> None:
        step = self.progress.global_step
        set_learning_rates(self.optimizer, self.schedule.get_lr(step, epoch))
        try:
            with autocast(self.config.general.precision, self.world.device):
                losses = self.module(batch.to(self.world.device, non_blocking=True))
            total = weighted_sum(losses, self.config.optimizer.loss_weights)
            log.add(step, batch.ids, losses, total)
            self.optimizer.zero_grad(set_to_none=True)
            total.backward()
            self.optimizer.step()
        except SeamsegError:
            raise
        except torch.cuda.OutOfMemoryError as error:
            raise SeamsegError(
                f"step {step}: the GPU's memory is full (images {', '.join(batch.ids)}); lower "
                "dataloader.train_batch_size, dataloader.shortest_size or dataloader.longest_max_size"
            ) from error
        except RuntimeError as error:
            # after a loss that is not finite nearly anything can fail: name the cause, not the consequence
            log.flush()
            if self.world.is_distributed and any(word in str(error) for word in ("gloo", "NCCL", "peer")):
                raise SeamsegError(
                    f"step {step}: process {self.world.rank} lost touch with the others, see their messages "
                    f"({str(error).splitlines()[0][:200]})"
                ) from error
            raise

    def _report(self, epoch: int, index: int, losses: LossLog, times: Averages) -> None:
        step, epochs = self.progress.global_step, self.config.scheduler.epochs
        means = mean_over_processes(self.world, losses.recent.take())
        seconds = times.take()
        rates = [group["lr"] for group in self.optimizer.param_groups]
        left = (epochs - epoch) * len(self.loader) - index - 1
        self._eta.update(seconds["step"])
        shown = "  ".join(f"{name.removesuffix('_loss')} {value:.4f}" for name, value in means.items())
        self.log.info(
            f"epoch {epoch + 1}/{epochs} [{index + 1}/{len(self.loader)}]  {shown}  lr {rates[-1]:.3g}  "
            f"{seconds['step']:.2f} s/step (data {seconds['data']:.2f})  {duration(left * self._eta.mean)} left"
        )
        scalars = {f"train/{name}": value for name, value in means.items()}
        scalars |= {"lr/norm": rates[0], "lr/other": rates[-1]}
        scalars |= {f"time/{name}": value for name, value in seconds.items()}
        self.board.scalars(scalars, step)

    def _save(self, losses: LossLog, is_best: bool) -> None:
        if not self.world.is_main:
            return
        meters = losses.epoch.meters
        snapshot = make_snapshot(self.config, self.metadata, self.net, self.optimizer, meters, self.progress)
        save_snapshot(self.run.last, snapshot)
        if is_best:
            save_snapshot(self.run.best, snapshot)
            self._has_best = True
            self.log.info(f"best so far: {100 * self.progress.best_score:.2f}, in {self.run.best}")
        elif not self._has_best:
            self.run.best.unlink(missing_ok=True)

    def _show(self, collector: SampleCollector, step: int) -> None:
        self.net.eval()
        for number, sample in enumerate(collector.samples):
            proposals = best_proposals(self.net, sample.image.to(self.world.device))
            self.board.picture(
                f"val/{number}_proposals_target_prediction", self._artist.triptych(sample, proposals), step
            )
        self.net.train()


@dataclass
class _Pace:
    """Seconds a step, for the time that is left: recent steps count more."""

    mean: float = 0.0

    def update(self, seconds: float) -> None:
        self.mean = seconds if self.mean == 0.0 else 0.8 * self.mean + 0.2 * seconds


def weighted_sum(losses: dict[str, Tensor], weights: tuple[float, ...]) -> Tensor:
    """The loss that is minimised, of losses in the order of `[optimizer] loss_weights`."""
    return torch.stack([weight * loss.float() for weight, loss in zip(weights, losses.values())]).sum()


def seed_everything(seed: int, epoch: int, rank: int) -> None:
    """Seed Python's, NumPy's and torch's chance for an epoch of a process.

    It depends on nothing that came before, so a resumed run continues exactly as the uninterrupted one.
    """
    value = random.Random(f"seamseg/{seed}/{epoch}/{rank}").getrandbits(63)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def validation_scalars(scores: PanopticScores) -> dict[str, float]:
    """The scores by TensorBoard tag; what could not be measured is left out."""
    values = {f"val/{name}": getattr(scores, name) for name in HEADLINE}
    values |= {f"val_PQ/{c.info.name}": c.PQ for c in scores.per_class}
    values |= {f"val_IoU/{c.info.name}": c.IoU for c in scores.per_class}
    return {tag: value for tag, value in values.items() if value == value}
