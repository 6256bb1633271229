"""What a training says while it runs: lines, numbers and pictures, and the end of one whose losses go wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from seamseg.config import Config
from seamseg.evaluation.scores import PanopticScores
from seamseg.formats.metadata import Metadata
from seamseg.models.panoptic import PanopticNet
from seamseg.structures import Batch
from seamseg.training.debugging.dump import Recorder
from seamseg.training.device_transforms import prepare_batch
from seamseg.training.logging.images import Artist, SampleCollector, best_proposals
from seamseg.training.logging.logs import Board, TextLog, remaining, train_tag, validation_line, validation_scalars
from seamseg.training.logging.meters import AverageMeter, Averages, Finding, LossLog
from seamseg.training.logging.metrics import MetricsFile
from seamseg.training.step import StepResult
from seamseg.utils.distributed import World, gather_objects, max_over_processes, mean_over_processes
from seamseg.utils.errors import SeamsegError


@dataclass(frozen=True)
class Position:
    """Where in the training a step is: epoch and index of the step in it, from 0; steps of the epoch; global step."""

    epoch: int
    index: int
    length: int
    step: int


class Reporter:
    """Tells the log, TensorBoard and `metrics.jsonl` of the main process what all processes do.

    Parameters
    ----------
    config, metadata : of the run
    world : the processes; all of them must report the same steps
    log, board, metrics : where it is told
    recorder : dumps a step that went wrong; None for no dumps

    Attributes
    ----------
    notes : further numbers by name that each line tells as they are, such as `ema_decay`
    broken : images of the epoch that this process could not read
    """

    def __init__(
        self,
        config: Config,
        metadata: Metadata,
        world: World,
        log: TextLog,
        board: Board,
        metrics: MetricsFile | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.config = config
        self.world = world
        self.log = log
        self.board = board
        self.metrics = metrics or MetricsFile(None)
        self.notes: dict[str, float] = {"ema_decay": config.optimizer.ema} if config.optimizer.ema else {}
        self.broken = 0
        self._recorder = recorder
        self._artist = Artist(metadata, config)
        self._pace = _Pace()
        self._validations = AverageMeter()
        self._interval = max(1, config.general.log_interval)
        # on the CPU a look costs nothing
        looks = 1 if world.device.type == "cpu" else self._interval
        self._losses = LossLog(looks, config.general.loss_limit, config.general.precision == "fp16")
        self._times = Averages()
        self._rates: dict[str, float] = {}

    @property
    def meters(self) -> dict[str, AverageMeter]:
        """Averages of the losses over the epoch so far, by name"""
        return self._losses.epoch.meters

    def begin_epoch(self) -> None:
        """Start the averages anew."""
        self._losses.begin_epoch()
        self._times = Averages()

    def state_dict(self) -> dict[str, Any]:
        """Averages of the losses up to the last step, as plain numbers; all processes call it together.

        Errors as :meth:`step`.
        """
        self.look()
        return self._losses.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on in the middle of an epoch from what :meth:`state_dict` gave; call it after :meth:`begin_epoch`."""
        self._losses.load_state_dict(state)

    def targets(self, batch: Batch, step: int) -> None:
        """Show what a batch, as the loader made it, wants the network to learn."""
        if self.world.is_main and self.board.active:
            prepared = prepare_batch(batch, self.config.dataloader)
            self.board.picture("train/targets", self._artist.targets(prepared), step)

    def begin_step(self, step: int, rates: list[float], batches: Sequence[Batch]) -> None:
        """Note a step before it is made: its learning rates, and what is needed to repeat it."""
        self._rates = {"lr_norm": rates[0], "lr_other": rates[-1]}
        self.board.scalars({train_tag(name): value for name, value in self._rates.items()}, step)
        if self._recorder is not None:
            self._recorder.begin(step, batches)

    def step(self, position: Position, result: StepResult, data_seconds: float, seconds: float) -> None:
        """Take in a step: what came of it, the time it waited for data, and all the time it took.

        Raises
        ------
        SeamsegError
            if a loss of any process, or the gradient, is not finite, or a loss is over `general.loss_limit`
        """
        self._losses.add(position.step, result.ids, result.losses, result.total, result.grad_norm, result.skipped)
        times = {"data_seconds": data_seconds, "step_seconds": seconds, "images": float(len(result.ids))}
        self._times.update(times)
        due = (position.index + 1) % self._interval == 0 or position.index + 1 == position.length
        if due or self._losses.full:
            self.look()
        if due:
            self._tell(position)

    def look(self) -> None:
        """Look at the losses of all steps so far; all processes call it together. Errors as :meth:`step`."""
        finding = self._losses.flush()
        if self._anywhere(finding):
            self._stop(gather_objects(self.world, finding))
        if self._recorder is not None:
            self._recorder.forget()

    def failed(self) -> None:
        """After an error in a step of this process: say so if the losses before it explain it; errors as :meth:`step`.

        The other processes may be anywhere: none is asked.
        """
        finding = self._losses.flush()
        if finding is not None:
            self._stop([finding])

    def _anywhere(self, finding: Finding | None) -> bool:
        if not self.world.is_distributed:
            return finding is not None
        return max_over_processes(self.world, {"found": float(finding is not None)})["found"] > 0

    def _stop(self, findings: Sequence[Finding | None]) -> None:
        """Write the dump of this process if it has one to write, and raise what all of them say.

        Parameters
        ----------
        findings : by rank
        """
        step = min(f.step for f in findings if f is not None)
        found = {rank: f for rank, f in enumerate(findings) if f is not None and f.step == step}
        if any(f.of_loss for f in found.values()):
            # the gradient of the others is spoilt by these
            found = {rank: f for rank, f in found.items() if f.of_loss}
        shared = len(findings) > 1
        words = "; ".join(
            f"{f.words} ({f'process {rank}, ' if shared else ''}images {', '.join(f.ids)})" for rank, f in found.items()
        )
        own = found.get(self.world.rank if shared else 0)
        raise SeamsegError(
            f"training stopped at step {step}: {words}; lower optimizer.lr or lengthen scheduler.burn_in_steps, and "
            f"look at these images{'' if own is None else self._dump(own)}"
        )

    def _dump(self, finding: Finding) -> str:
        if self._recorder is None:
            return ""
        try:
            path = self._recorder.write(finding.step, finding.losses, finding.words)
        except SeamsegError as error:
            return f" (no dump of the step: {error})"
        return "" if path is None else f"; `seamseg doctor --replay {path}` repeats the step"

    def _tell(self, position: Position) -> None:
        step, epochs, size = position.step, self.config.scheduler.epochs, self.world.size
        losses, gradients = self._losses.recent.take(), self._losses.gradients.take()
        skipped, self._losses.skipped = self._losses.skipped, 0
        own = {**losses, **gradients, **self._times.take(), "broken": float(self.broken)}
        means = mean_over_processes(self.world, own)
        memory = max_over_processes(self.world, peak_memory(self.world.device))
        line = {name: means[name] for name in (*losses, *gradients)}
        line |= {"skipped": float(skipped), "broken_images": round(size * means["broken"]), **self._rates}
        line |= {name: means[name] for name in ("step_seconds", "data_seconds")}
        line["data_share"] = line["data_seconds"] / max(line["step_seconds"], 1e-9)
        line["images_per_second"] = size * means["images"] / max(line["step_seconds"], 1e-9)
        line |= {**memory, **self.notes}
        self._pace.update(line["step_seconds"])

        shown = [f"{name.removesuffix('_loss')} {line[name]:.4f}" for name in losses]
        shown += [f"grad {line[name]:.3g}" for name in gradients]
        shown += [f"{skipped} skipped"] if skipped else []
        shown += [f"broken images: {line['broken_images']}"] if line["broken_images"] else []
        shown += [f"{line['step_seconds']:.2f} s/step (data {line['data_seconds']:.2f})"]
        shown += [f"{line['images_per_second']:.1f} images/s"]
        shown += [f"{list(memory.values())[-1]:.1f} GiB"] if memory else []
        untimed = " and validation" if self._validations.count == 0 and self.config.dataloader.val_set else ""
        shown += [f"{remaining(self._seconds_left(position))}{untimed} left"]
        place = f"epoch {position.epoch + 1}/{epochs} [{position.index + 1}/{position.length}]"
        self.log.info("  ".join([place, *shown]))
        rates = self._rates
        self.board.scalars({train_tag(name): value for name, value in line.items() if name not in rates}, step)
        self.metrics.write("train", step, position.epoch, line)

    def _seconds_left(self, position: Position) -> float:
        """Of the steps at the recent pace, and of the validations as they took on average."""
        epochs, interval = self.config.scheduler.epochs, max(1, self.config.general.val_interval)
        steps = (epochs - position.epoch) * position.length - position.index - 1
        validations = sum((e + 1) % interval == 0 or e + 1 == epochs for e in range(position.epoch, epochs))
        return steps * self._pace.mean + validations * self._validations.mean

    def validated(self, epoch: int, step: int, scores: PanopticScores, seconds: float) -> None:
        """Tell the scores of a validation that took `seconds`."""
        self._validations.update(seconds)
        self.log.info(f"validation after epoch {epoch + 1}: {validation_line(scores, seconds)}")
        self.board.scalars(validation_scalars(scores), step)
        self.metrics.write("validation", step, epoch, {"seconds": round(seconds, 3), **scores.to_json()})

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


_GIB = 1 << 30


def peak_memory(device: torch.device) -> dict[str, float]:
    """Peaks of this process in GiB: of its resident memory and, on a GPU, of what tensors and torch's pool took there.

    Nothing waits for the device.
    """
    peaks = {}
    try:
        import resource
    except ImportError:  # Windows
        pass
    else:
        # kilobytes, but bytes on macOS
        unit = 1 if sys.platform == "darwin" else 1024
        peaks["rss_peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _GIB
    if device.type == "cuda":
        peaks["allocated_peak_gib"] = torch.cuda.max_memory_allocated(device) / _GIB
        peaks["reserved_peak_gib"] = torch.cuda.max_memory_reserved(device) / _GIB
    return peaks
