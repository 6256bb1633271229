"""Training of a classifier, as a task of :mod:`seamseg.training`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from seamseg.checkpoints.class_table import ClassTable
from seamseg.checkpoints.imagenet import published_name
from seamseg.checkpoints.model_path import weights_at
from seamseg.checkpoints.names import CLASSIFIER_CLASSES_NAME, CLASSIFIER_CONFIG_NAME
from seamseg.checkpoints.snapshot import LoadReport, check_finite, load_module, load_tensors
from seamseg.classification.checkpoint import checkpoint_files, checkpoint_weights
from seamseg.classification.config import ClassifierConfig, InputConfig, load_classifier_config, parse_classifier_config
from seamseg.classification.data import TRAIN, VAL, ClassFolders, ImageBatch, class_names, open_train_loader
from seamseg.classification.network import Classifier, ClassifierLoss, build_classifier
from seamseg.classification.optimizer import ClassifierSchedule, build_optimizer
from seamseg.classification.transforms import train_transform
from seamseg.classification.validate import ClassifierValidator, open_validator
from seamseg.data.loader import BatchLoader
from seamseg.formats.metadata import Metadata
from seamseg.training.callbacks import Callbacks
from seamseg.training.checkpointing.run_folder import RunFolder, SnapshotFiles
from seamseg.training.logging.images import SampleImages
from seamseg.training.logging.logs import TextLog
from seamseg.training.optim.schedule import LRSchedule
from seamseg.training.options import KeyNames, TrainerOptions
from seamseg.training.prefetch import TrainingBatch
from seamseg.training.result import TrainResult
from seamseg.training.run import TrainingOptions, run_training
from seamseg.training.task import StepCallback, Task
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.utils.files import write_json
from seamseg.utils.progress import is_quiet

HISTOGRAM_INTERVAL = 10
"""Steps between histograms."""
_SHOWN = ("fc", "bn_out")

KEYS = KeyNames(
    learning_rate="optimizer.learning_rate",
    burn_in="optimizer.schedule",
    epochs="optimizer.schedule.epochs",
    seed="training.seed",
    loss_limit="training.loss_limit",
    ema="training.ema",
    groups=("optimizer.classifier_lr",),
    image_size=("optimizer.batch_size", "input.crop_train"),
)
"""Names of the keys of the JSON that messages of the trainer mention."""


@dataclass(frozen=True)
class ClassifierTask(Task):
    """The task of training a classifier; see :class:`seamseg.training.task.Task` for its methods.

    Attributes
    ----------
    settings : configuration
    """

    settings: ClassifierConfig

    parts = ("body",)
    quantised = False

    @cached_property
    def options(self) -> TrainerOptions:
        """The options of the trainer."""
        training, optimizer = self.settings.training, self.settings.optimizer
        return TrainerOptions(
            epochs=optimizer.schedule.epochs,
            loss_weights={"loss": 1.0},
            seed=training.seed,
            accumulate=training.accumulate,
            precision=training.precision,
            loss_limit=training.loss_limit,
            clip_norm=optimizer.clip,
            ema=training.ema,
            log_interval=training.log_interval,
            val_interval=training.val_interval,
            snapshot_interval=training.snapshot_interval,
            snapshot_keep=training.snapshot_keep,
            rate_names=("lr", "lr_classifier"),
            keys=KEYS,
        )

    @property
    def files(self) -> SnapshotFiles:
        """Names and layout of the checkpoints, those of the original."""
        return checkpoint_files(self.settings)

    @property
    def config_text(self) -> str:
        """The configuration as JSON."""
        return json.dumps(self.settings.to_json(), indent=2)

    def changes(self, text: str) -> list[str]:
        """Return the keys whose values differ from those of the configuration in a checkpoint."""
        try:
            old = parse_classifier_config(json.loads(text)).to_json()
        except (ValueError, InputError):
            return []
        return list(_differences("", old, self.settings.to_json()))

    def open_log(self, folder: RunFolder, world: World) -> TextLog:
        """Open `training_<rank>.log`, one for each process."""
        folder.make()
        return TextLog(folder.path, is_quiet(), console=world.is_main, name=f"training_{world.rank}.log")

    def describe(self, metadata: Metadata) -> list[str]:
        """Return the number of classes and the architecture."""
        return [f"{metadata.num_classes} classes, {self.settings.network.arch}"]

    def open_loader(self, data: str | Path, world: World) -> BatchLoader:
        """Open the loader of the training images of this process."""
        training = self.settings.training
        transform = train_transform(self.settings.input, training.min_crop_area)
        dataset = ClassFolders(data, TRAIN, transform, training.seed, training.upright)
        dataset.check_classes(self.settings, class_names(data, VAL))
        return open_train_loader(dataset, self.settings, world)

    def open_validator(self, data: str | Path, world: World) -> ClassifierValidator:
        """Open the validator of `DATA/val`."""
        return open_validator(data, self.settings, world)

    def build(self, metadata: Metadata) -> ClassifierLoss:
        """Build the network with its loss."""
        return ClassifierLoss(Classifier(build_classifier(self.settings), self.settings.training.channels_last))

    def load_pretrained(self, net: nn.Module, specification: str, classes: ClassTable | None = None) -> LoadReport:
        """Load the weights of a checkpoint as far as they fit, for example those of other classes."""
        if classes is not None:
            raise InputError(f"`pretrain_classes={classes.table}`: classifiers have no table of classes")
        file = str(weights_at(specification))
        published_name(file)  # refuses files that no network can use
        weights = checkpoint_weights(load_tensors(file, file), file, averaged=True)
        report = load_module(net.get_submodule("body"), weights, "body")
        if not report.loaded:
            raise InputError(f"{specification}: holds no weights of {self.settings.network.arch}")
        check_finite(net, file)
        return report

    def build_optimizer(self, net: nn.Module) -> torch.optim.Optimizer:
        """Build the optimizer, with a second group of parameters if `classifier_lr` is set."""
        return build_optimizer(net, self.settings.optimizer)

    def build_schedule(self, base_lrs: Sequence[float], epoch_length: int) -> LRSchedule:
        """Build the schedule of the learning rates."""
        return ClassifierSchedule(self.settings.optimizer.schedule, base_lrs, epoch_length)

    def write_model(self, folder: RunFolder, metadata: Metadata) -> None:
        """Write `config.json` and `classes.json`, the names of the classes."""
        write_json(folder.path / CLASSIFIER_CONFIG_NAME, self.settings.to_json(), indent=2)
        write_json(folder.path / CLASSIFIER_CLASSES_NAME, metadata.categories, indent=1)

    def sample_images(self, metadata: Metadata) -> _TrainingImages:
        """Return what draws training images."""
        return _TrainingImages(self.settings.input)

    def step_callback(self, net: nn.Module, callbacks: Callbacks) -> StepCallback | None:
        """Return what reports histograms after a step, with `log_hist`."""
        if not self.settings.training.log_hist or not callbacks.active:
            return None
        shown = {name.removeprefix("body."): p for name, p in net.named_parameters() if any(w in name for w in _SHOWN)}

        def write(step: int) -> None:
            if step % HISTOGRAM_INTERVAL == 0:
                for tag, parameter in shown.items():
                    callbacks.histogram(step, tag, parameter.detach().float().cpu().numpy())

        return write


@dataclass(frozen=True)
class _TrainingImages(SampleImages):
    """Draws the first training images of an epoch."""

    options: InputConfig

    def targets(self, batch: TrainingBatch) -> np.ndarray:
        """Draw up to 16 images of a batch: uint8 `H x W x 3`."""
        from torchvision.utils import make_grid

        assert isinstance(batch, ImageBatch)
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.options.mean, self.options.std))
        images = (batch.images[:16].detach().cpu() * std + mean).clamp(0, 1)
        grid = (255 * make_grid(images, nrow=4)).round().to(torch.uint8)
        drawn: np.ndarray = grid.permute(1, 2, 0).contiguous().numpy()
        return drawn


def _differences(name: str, old: Any, new: Any) -> Iterator[str]:
    """Yield each key whose values differ, as `section.key: old -> new`."""
    if isinstance(old, dict) and isinstance(new, dict) and name.rpartition(".")[2] != "params":
        for key in new:
            yield from _differences(f"{name}.{key}".lstrip("."), old.get(key), new[key])
    elif old != new:
        yield f"{name}: {old} -> {new}"


def train_classifier(options: TrainingOptions) -> TrainResult:
    """Train a classifier; returns and raises as :func:`seamseg.training.run.run_training`.

    Parameters
    ----------
    options : arguments; `config` is a JSON file or the name of a packaged one, `data` holds `train/<class>/*` and
        `val/<class>/*`
    """
    settings = load_classifier_config(options.config, options.overrides)
    return run_training(options, ClassifierTask(settings))
