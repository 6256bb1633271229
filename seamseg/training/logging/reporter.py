"""Reports of a running training: log lines, metrics and images."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from seamseg.maps.evaluation.scores import Scores
from seamseg.maps.metrics_file import MetricsFile
from seamseg.training.callbacks import Callbacks
from seamseg.training.logging.images import SampleCollector, SampleRenderer
from seamseg.training.losses import Averages, LossMeans
from seamseg.training.options import TrainerOptions, numbers
from seamseg.training.prefetch import TrainingBatch
from seamseg.utils.distributed import World, max_over_processes, mean_over_processes
from seamseg.utils.errors import SeamsegError, counted, one_line
from seamseg.utils.files import replacing
from seamseg.utils.output import make_printable
from seamseg.utils.progress import LINE_SECONDS

HISTOGRAM_INTERVAL = 10
"""Steps between histograms."""


_logger = logging.getLogger("seamseg")

_GROUPS = {
    "lr_norm": "lr/norm",
    "lr_other": "lr/other",
    "step_seconds": "time/step",
    "data_seconds": "time/data",
    "data_share": "time/data_share",
    "images_per_second": "time/images_per_second",
    "seconds_left": "time/seconds_left",
    "rss_peak_gib": "memory/rss_peak_gib",
    "allocated_peak_gib": "memory/allocated_peak_gib",
    "reserved_peak_gib": "memory/reserved_peak_gib",
}
"""Tags of TensorBoard by names in `metrics.jsonl`; others are `train/NAME`."""


class TextLog:
    """Writes lines to the console, with `quiet` only warnings, and to a file, if any, with the time."""

    def __init__(self, path: Path | None, quiet: bool = False, console: bool = True) -> None:
        self._handlers: list[logging.Handler] = []
        if console:
            stream = logging.StreamHandler(sys.stderr)
            stream.setLevel(logging.WARNING if quiet else logging.INFO)
            self._handlers.append(make_printable(stream))
        if path is not None:
            try:
                file = logging.FileHandler(path, encoding="utf-8")
            except OSError as error:
                raise SeamsegError(f"{path}: cannot write: {error.strerror}") from error
            self._handlers.append(make_printable(file, "%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        _logger.setLevel(logging.INFO)
        _logger.propagate = False
        for handler in self._handlers:
            # a full disk is reported by the writer of snapshots; without this each log line would print a traceback
            handler.handleError = lambda record: None  # type: ignore[method-assign]
            _logger.addHandler(handler)

    @property
    def enabled(self) -> bool:
        """Whether messages are shown or written."""
        return bool(self._handlers)

    def info(self, message: str) -> None:
        """Log an informational message."""
        if self.enabled:
            _logger.info(message)

    def progress(self, message: str) -> None:
        """Show an informational message on the console only."""
        self._handle(logging.INFO, message, in_file=False)

    def warning(self, message: str) -> None:
        """Log a warning."""
        if self.enabled:
            _logger.warning(message)

    def failure(self, message: str) -> None:
        """Log an error to the file only: the command line prints errors itself."""
        self._handle(logging.ERROR, message, in_file=True)

    def _handle(self, level: int, message: str, in_file: bool) -> None:
        record = _logger.makeRecord(_logger.name, level, "", 0, message, (), None)
        for handler in self._handlers:
            if isinstance(handler, logging.FileHandler) == in_file and level >= handler.level:
                handler.handle(record)

    def close(self) -> None:
        """Close the file and discard all further messages."""
        for handler in self._handlers:
            _logger.removeHandler(handler)
            handler.close()
        self._handlers = []


@dataclass(frozen=True)
class StepPosition:
    """The position of a step: epoch and index within it, from 0; number of steps of the epoch; global step."""

    epoch: int
    index: int
    length: int
    step: int


class Reporter:
    """Reports the same steps of all processes to the log, `metrics.jsonl` and the callbacks of the main process."""

    def __init__(
        self,
        options: TrainerOptions,
        images: SampleRenderer | None,
        world: World,
        log: TextLog,
        callbacks: Callbacks,
        metrics: MetricsFile | None = None,
    ) -> None:
        self.options = options
        self.world = world
        self.log = log
        self.callbacks = callbacks
        self.metrics = metrics or MetricsFile(None)
        self._images = images
        self._pace = 0.0
        self._times = Averages()
        self._rates: dict[str, float] = {}
        self._shown: float | None = None

    @contextmanager
    def following(self, states: Mapping[str, Any]) -> Iterator[None]:
        """Begin the callbacks with their states, and end them with the training in a `with` block."""
        run, status = self.callbacks.run, "done"
        try:
            self.callbacks.begin(states)
            yield
            if run.stop_reason:
                status = f"stopped: {run.stop_reason}"
                self.log.info(f"{status} (step {run.step}, epoch {run.epoch})")
        except BaseException as error:
            status = f"{type(error).__name__}: {one_line(error)}"
            raise
        finally:
            self.callbacks.report("end", run.step, status)
            self.metrics.close()

    def begin_epoch(self) -> None:
        """Reset the times."""
        self._times = Averages()

    def targets(self, batch: TrainingBatch, step: int) -> None:
        """Draw the targets of a batch as it was loaded, on the host."""
        if self._images is not None and self.callbacks.draws:
            self.callbacks.report("image", step, "train/targets", self._images.targets(batch))

    def begin_step(self, step: int, rates: list[float]) -> None:
        """Record the learning rates of a step."""
        # a single group of parameters has the first name
        self._rates = dict(zip(self.options.rate_names, (rates[0], *rates[1:][-1:])))
        self.callbacks.report(
            "scalars", step, {_GROUPS.get(name, f"train/{name}"): value for name, value in self._rates.items()}
        )

    def add(self, data_seconds: float, seconds: float, images: int) -> None:
        """Add the time that a step waited for data, its total time, and its number of images in this process."""
        self._times.update({"data_seconds": data_seconds, "step_seconds": seconds, "images": float(images)})

    def is_due(self, position: StepPosition) -> bool:
        """Return whether a :meth:`report` is due after a step."""
        return (position.index + 1) % self.options.log_interval == 0 or position.index + 1 == position.length

    def progress(self, position: StepPosition) -> None:
        """Show the first step on the console, and others if there was no line for 15 seconds; without losses."""
        now, first = time.perf_counter(), self._shown is None
        if not self.log.enabled or (self._shown is not None and now - self._shown < LINE_SECONDS):
            return
        self._shown = now
        line = self._times.means()
        line["images_per_second"] = self.world.size * line["images"] / max(line["step_seconds"], 1e-9)
        if not first:  # a first step takes longer
            line["seconds_left"] = self._seconds_left(position, self._pace or line["step_seconds"])
        self.log.progress(self._format(position, line, peak_memory(self.world.device)))

    def report(self, position: StepPosition, recent: LossMeans) -> None:
        """Write a line to all outputs, with the averages since the last one; a collective call."""
        losses, gradients, skipped = recent
        means = mean_over_processes(self.world, {**losses, **gradients, **self._times.pop_means()})
        memory = max_over_processes(self.world, peak_memory(self.world.device))
        size = self.world.size
        line = {name: means[name] for name in (*losses, *gradients)}
        line |= {"skipped": float(skipped), **self._rates}
        line |= {name: means[name] for name in ("step_seconds", "data_seconds")}
        line["data_share"] = line["data_seconds"] / max(line["step_seconds"], 1e-9)
        line["images_per_second"] = size * means["images"] / max(line["step_seconds"], 1e-9)
        seconds = line["step_seconds"]
        self._pace = 0.8 * self._pace + 0.2 * seconds if self._pace else seconds
        line["seconds_left"] = self._seconds_left(position, self._pace)
        line |= memory
        self._shown = time.perf_counter()
        self.log.info(self._format(position, line, memory, list(losses), list(gradients)))
        rates = self._rates
        tagged = {_GROUPS.get(name, f"train/{name}"): value for name, value in line.items() if name not in rates}
        self.callbacks.report("scalars", position.step, tagged)
        self.metrics.write("train", position.step, position.epoch, line)
        self.callbacks.report("train", position.step, line, epoch=position.epoch)

    def _format(
        self,
        position: StepPosition,
        line: Mapping[str, float],
        memory: Mapping[str, float],
        losses: Sequence[str] = (),
        gradients: Sequence[str] = (),
    ) -> str:
        words = [f"epoch {position.epoch + 1}/{self.options.epochs} [{position.index + 1}/{position.length}]"]
        words += [f"{name.removesuffix('_loss')} {line[name]:.4f}" for name in losses]
        words += [f"grad {line[name]:.3g}" for name in gradients]
        words += [f"{int(line['skipped'])} skipped"] if line.get("skipped") else []
        words += [f"{line['step_seconds']:.2f} s/step (data {line['data_seconds']:.2f})"]
        words += [f"{line['images_per_second']:.1f} images/s"]
        words += [f"{list(memory.values())[-1]:.1f} GiB"] if memory else []
        words += [f"{duration(line['seconds_left'])} left"] if "seconds_left" in line else []
        return "  ".join(words)

    def _seconds_left(self, position: StepPosition, pace: float) -> float:
        # without validations
        return ((self.options.epochs - position.epoch) * position.length - position.index - 1) * pace

    def validate(self, score: Callable[..., Scores], net: nn.Module, epoch: int, step: int) -> Scores:
        """Score a network by a validator, and report scores and sample images, these also as `validation/*.jpg`."""
        images = self._images if self.callbacks.draws else None
        collector = None if images is None else SampleCollector()
        start = time.perf_counter()
        scores = score(net, collector, desc=f"validate, epoch {epoch + 1}")
        seconds = time.perf_counter() - start
        line = f"{scores.line()} ({counted(scores.n_images, 'image')}, {duration(seconds)})"
        self.log.info(f"validation after epoch {epoch + 1}: {line}")
        if advice := scores.advice():
            self.log.info(advice)
        self.callbacks.report("scalars", step, scores.scalars())
        content = scores.to_json()
        self.metrics.write("validation", step, epoch, {"seconds": round(seconds, 3), **content})
        self.callbacks.report("validated", step, numbers(content), epoch=epoch + 1)
        for tag, image in () if images is None or collector is None else images.validation(net, collector):
            self.callbacks.report("image", step, tag, image)
            with replacing(self.callbacks.run.folder / "validation" / f"{tag.removeprefix('val/')}.jpg") as temporary:
                Image.fromarray(image).save(temporary, "JPEG", quality=90)
        return scores

    def histograms(self, net: nn.Module, step: int) -> None:
        """Report the distributions of `options.histograms`, every few steps."""
        words = self.options.histograms
        if not words or step % HISTOGRAM_INTERVAL or not self.callbacks.active:
            return
        for name, parameter in net.named_parameters():
            if any(word in name for word in words):
                values = parameter.detach().float().cpu().numpy()
                self.callbacks.report("histogram", step, name.removeprefix("body."), values)


_GIB = 1 << 30


def duration(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds, such as 1:02:03."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def peak_memory(device: torch.device) -> dict[str, float]:
    """Return memory peaks in GiB: resident memory of this process and, on a GPU, allocated and reserved memory."""
    peaks = {}
    if sys.platform != "win32":
        import resource

        # kilobytes, but bytes on macOS
        unit = 1 if sys.platform == "darwin" else 1024
        peaks["rss_peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _GIB
    if device.type == "cuda":
        peaks["allocated_peak_gib"] = torch.cuda.max_memory_allocated(device) / _GIB
        peaks["reserved_peak_gib"] = torch.cuda.max_memory_reserved(device) / _GIB
    return peaks
