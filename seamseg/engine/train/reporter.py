"""What a training says while it runs: lines, scalars and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seamseg.config import Config
from seamseg.data.metadata import Metadata
from seamseg.engine.distributed import World, mean_over_processes
from seamseg.engine.train.logs import Board, TextLog, duration
from seamseg.engine.train.meters import AverageMeter, Averages, LossLog
from seamseg.engine.train.pictures import Artist, SampleCollector, best_proposals
from seamseg.engine.train.step import StepResult
from seamseg.evaluation.scores import HEADLINE, PanopticScores
from seamseg.models.panoptic import PanopticNet
from seamseg.structures import Batch


@dataclass(frozen=True)
class Position:
    """Where in the training a step is: epoch and index of the step in it, from 0; steps of the epoch; global step."""

    epoch: int
    index: int
    length: int
    step: int


class Reporter:
    """Tells the log and TensorBoard of the main process what all processes do.

    Parameters
    ----------
    config, metadata : of the run
    world : the processes; all of them must report the same steps
    log, board : where it is told
    """

    def __init__(self, config: Config, metadata: Metadata, world: World, log: TextLog, board: Board) -> None:
        self.config = config
        self.world = world
        self.log = log
        self.board = board
        self._artist = Artist(metadata, config)
        self._pace = _Pace()
        self._interval = max(1, config.general.log_interval)
        self._losses = self._new_losses()
        self._times = Averages()

    def _new_losses(self) -> LossLog:
        return LossLog(1 if self.world.device.type == "cpu" else self._interval)

    @property
    def meters(self) -> dict[str, AverageMeter]:
        """Averages of the losses over the epoch so far, by name"""
        return self._losses.epoch.meters

    def begin_epoch(self) -> None:
        """Start the averages anew."""
        self._losses, self._times = self._new_losses(), Averages()

    def state_dict(self) -> dict[str, Any]:
        """Averages of the losses up to the last step, as plain numbers; errors as :meth:`step`."""
        self._losses.flush()
        return self._losses.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the middle of an epoch from what :meth:`state_dict` gave; call it after :meth:`begin_epoch`."""
        self._losses.load_state_dict(state)

    def targets(self, batch: Batch, step: int) -> None:
        """Show what a batch wants the network to learn."""
        if self.world.is_main and self.board.active:
            self.board.picture("train/targets", self._artist.targets(batch), step)

    def step(self, position: Position, result: StepResult, data_seconds: float, seconds: float) -> None:
        """Take in a step: what came of it, the time it waited for data, and all the time it took.

        Raises
        ------
        SeamsegError
            if a loss is not finite
        """
        self._losses.add(position.step, result.ids, result.losses, result.total)
        self._times.update({"data": data_seconds, "step": seconds})
        if (position.index + 1) % self._interval == 0 or position.index + 1 == position.length:
            self._losses.flush()
            self._tell(position)

    def failed(self) -> None:
        """After an error in a step: say so if the losses before it explain it; errors as :meth:`step`."""
        self._losses.flush()

    def _tell(self, position: Position) -> None:
        step, epochs = position.step, self.config.scheduler.epochs
        means = mean_over_processes(self.world, self._losses.recent.take())
        seconds = self._times.take()
        left = (epochs - position.epoch) * position.length - position.index - 1
        self._pace.update(seconds["step"])
        shown = "  ".join(f"{name.removesuffix('_loss')} {value:.4f}" for name, value in means.items())
        self.log.info(
            f"epoch {position.epoch + 1}/{epochs} [{position.index + 1}/{position.length}]  {shown}  "
            f"{seconds['step']:.2f} s/step (data {seconds['data']:.2f})  {duration(left * self._pace.mean)} left"
        )
        scalars = {f"train/{name}": value for name, value in means.items()}
        scalars |= {f"time/{name}": value for name, value in seconds.items()}
        self.board.scalars(scalars, step)

    def rates(self, rates: list[float], step: int) -> None:
        """Note the learning rates of a step."""
        self.board.scalars({"lr/norm": rates[0], "lr/other": rates[-1]}, step)

    def validated(self, epoch: int, step: int, scores: PanopticScores, seconds: float) -> None:
        """Tell the scores of a validation that took `seconds`."""
        shown = ("PQ", "PQ_things", "PQ_stuff", "SQ", "RQ", "PQ_dagger", "mIoU")
        headline = "  ".join(f"{name} {100 * getattr(scores, name):.2f}" for name in shown)
        self.log.info(f"validation after epoch {epoch + 1}: {headline} ({scores.n_images} images, {duration(seconds)})")
        self.board.scalars(validation_scalars(scores), step)

    def samples(self, net: PanopticNet, collector: SampleCollector, step: int) -> None:
        """Show proposals, targets and predictions of validated images."""
        net.eval()
        for number, sample in enumerate(collector.samples):
            proposals = best_proposals(net, sample.image.to(self.world.device))
            self.board.picture(
                f"val/{number}_proposals_target_prediction", self._artist.triptych(sample, proposals), step
            )
        net.train()


@dataclass
class _Pace:
    """Seconds a step, for the time that is left: recent steps count more."""

    mean: float = 0.0

    def update(self, seconds: float) -> None:
        self.mean = seconds if self.mean == 0.0 else 0.8 * self.mean + 0.2 * seconds


def validation_scalars(scores: PanopticScores) -> dict[str, float]:
    """The scores by TensorBoard tag; what could not be measured is left out."""
    values = {f"val/{name}": getattr(scores, name) for name in HEADLINE}
    values |= {f"val_PQ/{c.info.name}": c.PQ for c in scores.per_class}
    values |= {f"val_IoU/{c.info.name}": c.IoU for c in scores.per_class}
    return {tag: value for tag, value in values.items() if value == value}
