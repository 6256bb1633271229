"""Callbacks: what follows a training from outside, such as a logger, and may end it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.checkpoints.snapshot import check_storable
from seamseg.config.components import custom_of, register
from seamseg.config.sections import key
from seamseg.utils.errors import SeamsegError, described, file_of


@dataclass
class Run:
    """The training that a callback follows.

    Attributes
    ----------
    folder : run folder
    config : text of the configuration
    epochs : length of the training
    step, epoch : finished steps and epochs, more than 0 in a resumed training; `step` is that under way where learning
        rates and the images of a training batch are reported
    resumed : whether the training continues an earlier run
    stop_reason : reason given to :meth:`stop`; empty unless it was called
    """

    folder: Path
    config: str
    epochs: int
    step: int = 0
    epoch: int = 0
    resumed: bool = False
    stop_reason: str = ""

    def stop(self, reason: str) -> None:
        """End the training after the current step or validation, with a snapshot; the log has the reason."""
        self.stop_reason = self.stop_reason or reason


class Callback:
    """Follows a training; derive from it and override what is needed.

    All methods are called in the main process only, and must not change what they are given. An exception does not end
    the training: a warning is logged, and the callback is not called again. To end the training call :meth:`Run.stop`.

    Parameters
    ----------
    keys : values of the section `[callback NAME]`; None for the defaults

    Attributes
    ----------
    enabled : whether it is called
    """

    enabled: bool = True

    def __init__(self, keys: Any = None) -> None:
        component = custom_of(self) if keys is None else None
        self.keys = keys if component is None else component.keys()

    def begin(self, run: Run) -> None:
        """Begin a training; called before the first step, in a resumed training after :meth:`load_state_dict`."""

    def train(self, run: Run, values: Mapping[str, float]) -> None:
        """Report the numbers of `metrics.jsonl`; called every `log_interval` steps."""

    def validated(self, run: Run, scores: Mapping[str, float]) -> None:
        """Report the scores of a validation, fractions such as `PQ`, without those that are undefined."""

    def scalars(self, run: Run, values: Mapping[str, float]) -> None:
        """Report numbers by the tags of TensorBoard, such as `lr/other` and `val_PQ/car`.

        These are the learning rates of each step, the numbers of :meth:`train`, and all scores of a validation, with
        those of classes.
        """

    def image(self, run: Run, tag: str, rgb: np.ndarray) -> None:
        """Report a sample image, uint8 `H x W x 3`; images are drawn only if a callback has this method."""

    def histogram(self, run: Run, tag: str, values: np.ndarray) -> None:
        """Report the distribution of an array, float32, where a training has any."""

    def end(self, run: Run, status: str) -> None:
        """End a training; the status is `done`, `stopped: REASON`, or the message of an exception."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training restores: numbers, texts, tensors, lists and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`."""


@dataclass(frozen=True)
class TensorBoardKeys:
    """Keys of the section [callback tensorboard]."""

    enabled: bool = key("write the files", True)


@register("callback", "tensorboard", keys=TensorBoardKeys)
class TensorBoard(Callback):
    """Write TensorBoard files into the run folder; part of every training unless `enabled` is no."""

    def __init__(self, keys: Any = TensorBoardKeys()) -> None:
        super().__init__(keys)
        self.enabled = keys.enabled
        self._writer: Any = None

    def begin(self, run: Run) -> None:
        """Open the files and write the configuration; entries of an earlier run after a resumed step are hidden."""
        try:
            # takes a second to import
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            advice = "install it with `pip install tensorboard`"
            raise SeamsegError(f"no TensorBoard files are written: {error}; {advice}") from error
        self._writer = SummaryWriter(str(run.folder), purge_step=run.step + 1 if run.resumed else None)
        indented = "\n".join("    " + line for line in run.config.splitlines())
        self._writer.add_text("config", indented, 0)

    def scalars(self, run: Run, values: Mapping[str, float]) -> None:
        """Write numbers by tag."""
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, run.step)

    def image(self, run: Run, tag: str, rgb: np.ndarray) -> None:
        """Write an image."""
        self._writer.add_image(tag, rgb, run.step, dataformats="HWC")

    def histogram(self, run: Run, tag: str, values: np.ndarray) -> None:
        """Write the distribution of an array."""
        self._writer.add_histogram(tag, values, run.step)

    def end(self, run: Run, status: str) -> None:
        """Flush and close the files."""
        self._writer.close()


@dataclass
class Callbacks:
    """The callbacks of a training by name, none in processes other than the main one."""

    run: Run
    warn: Callable[[str], None]
    active: dict[str, Callback] = field(default_factory=dict)

    def begin(self, states: Mapping[str, Any]) -> None:
        """Begin a training, with the states of a snapshot."""
        for name, callback in list(self.active.items()):
            if name in states:
                self._call(name, partial(callback.load_state_dict, states[name]))
        self._call_all(lambda callback: callback.begin(self.run))

    @property
    def draws(self) -> bool:
        """Whether a callback takes sample images."""
        return any(type(callback).image is not Callback.image for callback in self.active.values())

    def report(self, method: str, step: int, *values: Any, epoch: int | None = None) -> None:
        """Call a method of all callbacks with the training and with values, at a step, after so many epochs."""
        self.run.step = step
        if epoch is not None:
            self.run.epoch = epoch
        self._call_all(lambda callback: getattr(callback, method)(self.run, *values))

    def states(self) -> dict[str, Any]:
        """Return the states of all callbacks that have one."""

        def state_of(callback: Callback) -> dict[str, Any]:
            state = callback.state_dict()
            check_storable(state, "state_dict()")
            return state

        states = {name: self._call(name, partial(state_of, callback)) for name, callback in list(self.active.items())}
        return {name: state for name, state in states.items() if state}

    def _call_all(self, call: Callable[[Callback], None]) -> None:
        for name, callback in list(self.active.items()):
            self._call(name, partial(call, callback))

    def _call(self, name: str, call: Callable[[], Any]) -> Any:
        """Return what a function returns; None, with a warning and without this callback from now on, if it fails."""
        try:
            return call()
        except Exception as error:
            module = type(self.active.pop(name)).__module__
            where = described(error, None if module.startswith("seamseg.") else file_of(module))
            self.warn(f"callback {name} is not called again{where}")
            return None
