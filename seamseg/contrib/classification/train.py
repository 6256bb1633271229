"""Training of classifiers, by the trainer of :mod:`seamseg.training`."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from seamseg.checkpoints.imagenet import refuse_old_release
from seamseg.checkpoints.model_path import weights_at
from seamseg.checkpoints.names import CLASSIFIER_CLASSES_NAME, CLASSIFIER_CONFIG_NAME
from seamseg.checkpoints.snapshot import check_finite, load_module, load_tensors
from seamseg.contrib.classification.checkpoint import checkpoint_folder, checkpoint_weights
from seamseg.contrib.classification.config import (
    ClassifierConfig,
    InputConfig,
    OptimizerConfig,
    ScheduleConfig,
    load_classifier_config,
    parse_classifier_config,
)
from seamseg.contrib.classification.data import TRAIN, VAL, ClassFolders, ImageBatch, class_names, open_train_loader
from seamseg.contrib.classification.network import Classifier, ClassifierLoss, build_classifier
from seamseg.contrib.classification.transforms import train_transform
from seamseg.contrib.classification.validate import open_validator
from seamseg.data.loader import BatchLoader
from seamseg.maps.formats.metadata import Metadata
from seamseg.training.checkpointing.run_folder import RunFolder
from seamseg.training.logging.images import SampleImages
from seamseg.training.logging.logs import TextLog
from seamseg.training.optim.optimizer import fill_state
from seamseg.training.optim.schedule import LRSchedule
from seamseg.training.options import TrainerOptions, TrainingOptions
from seamseg.training.prefetch import TrainingBatch
from seamseg.training.result import TrainResult
from seamseg.training.run import run_training
from seamseg.training.setup import Setup
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.utils.files import write_json

_GAMMA = 0.1

KEY_NAMES = {
    "optimizer.lr": "optimizer.learning_rate",
    "scheduler.burn_in_steps": "optimizer.schedule",
    "scheduler.epochs": "optimizer.schedule.epochs",
    "general.seed": "training.seed",
    "general.loss_limit": "training.loss_limit",
    "optimizer.ema": "training.ema",
    "body.num_frozen": "",
    "optimizer.layer_decay": "optimizer.classifier_lr",
    "dataloader.train_batch_size": "optimizer.batch_size",
    "dataloader.shortest_size": "input.crop_train",
    "dataloader.longest_max_size": "",
}
"""Names of the keys of the JSON that messages of the trainer mention, by the names in an INI file."""


def trainer_options(config: ClassifierConfig) -> TrainerOptions:
    """Return the options of the trainer."""
    training, optimizer = config.training, config.optimizer
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
        histograms=("fc", "bn_out") if training.log_hist else (),
        key_names=KEY_NAMES,
    )


def classifier_setup(config: ClassifierConfig) -> Setup:
    """Return the training of a classifier."""
    optimizer, channels_last = config.optimizer, config.training.channels_last
    return Setup(
        options=trainer_options(config),
        config=json.dumps(config.to_json(), indent=2),
        changes=partial(_changes, config),
        run_folder=partial(checkpoint_folder, config),
        log_name="training_{rank}.log",
        open_loader=partial(_open_loader, config),
        open_validator=lambda data, world: open_validator(data, config, world),
        describe=lambda metadata: f"{metadata.num_classes} classes, {config.network.arch}",
        build=lambda metadata: ClassifierLoss(Classifier(build_classifier(config), channels_last)),
        load_weights=partial(_load_weights, config),
        build_optimizer=partial(build_optimizer, options=optimizer),
        build_schedule=lambda base_lrs, length: ClassifierSchedule(optimizer.schedule, base_lrs, length),
        write_model=partial(_write_model, config),
        sample_images=lambda metadata: _TrainingImages(config.input),
    )


def _changes(config: ClassifierConfig, text: str) -> list[str]:
    """Return the keys whose values differ from the configuration in a checkpoint."""
    try:
        old = parse_classifier_config(json.loads(text)).to_json()
    except (ValueError, InputError):
        return []
    return list(_differences("", old, config.to_json()))


def _open_loader(config: ClassifierConfig, data: str | Path, world: World) -> BatchLoader:
    transform = train_transform(config.input, config.training.min_crop_area)
    dataset = ClassFolders(data, TRAIN, transform, config.training.seed, config.training.upright)
    dataset.check_classes(config, class_names(data, VAL))
    return open_train_loader(dataset, config, world)


def _load_weights(
    config: ClassifierConfig, net: nn.Module, options: TrainingOptions, metadata: Metadata, world: World, log: TextLog
) -> None:
    """Load the weights of checkpoints as far as they fit, for example for other classes."""
    if options.pretrain_classes is not None:
        raise InputError(f"`pretrain_classes={options.pretrain_classes}`: classifiers have no table of classes")
    for specification in options.pretrain:
        file = str(weights_at(specification))
        refuse_old_release(file)
        weights = checkpoint_weights(load_tensors(file, file), file, averaged=True)
        report = load_module(net.get_submodule("body"), weights, "body")
        if not report.loaded:
            raise InputError(f"{specification}: holds no weights of {config.network.arch}")
        check_finite(net, file)
        log.info(f"pre-trained {specification}: {report}")


def _write_model(config: ClassifierConfig, folder: RunFolder, metadata: Metadata) -> None:
    """Write `config.json` and `classes.json`, the names of the classes."""
    write_json(folder.path / CLASSIFIER_CONFIG_NAME, config.to_json(), indent=2)
    write_json(folder.path / CLASSIFIER_CLASSES_NAME, metadata.categories, indent=1)


def build_optimizer(net: nn.Module, options: OptimizerConfig) -> torch.optim.Optimizer:
    """Build SGD or Adam over all parameters, norms included.

    With `classifier_lr`, the parameters with `fc` in their name are a second group with that rate. The order of the
    groups and of their parameters is that of the original, whose optimizer states refer to it.
    """
    named = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    groups = [{"params": [p for _, p in named], "lr": options.learning_rate}]
    if options.classifier_lr != -1:
        groups = [
            {"params": [p for name, p in named if "fc" not in name], "lr": options.learning_rate},
            {"params": [p for name, p in named if "fc" in name], "lr": options.classifier_lr},
        ]
    fused = all(p.device.type in ("cpu", "cuda") for _, p in named)
    optimizer: torch.optim.Optimizer
    if options.type == "Adam":
        optimizer = torch.optim.Adam(groups, lr=options.learning_rate, weight_decay=options.weight_decay, fused=fused)
    else:
        optimizer = torch.optim.SGD(
            groups,
            lr=options.learning_rate,
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            nesterov=options.nesterov and options.momentum > 0,
            fused=fused,
        )
    fill_state(optimizer)
    return optimizer


class ClassifierSchedule(LRSchedule):
    """Learning rates of all parameter groups at a step.

    The curve runs over `t`, the number of finished epochs (`mode` epoch) or steps (`mode` step): factor 1 (constant),
    `gamma ** (t // step_size)` (step), `gamma` to the number of milestones up to t (multistep), `gamma ** t`
    (exponential), or `alpha * t + beta`, at least 0 (linear).
    """

    def __init__(self, options: ScheduleConfig, base_lrs: Sequence[float], epoch_length: int) -> None:
        super().__init__(base_lrs, options.epochs, epoch_length, options.mode == "epoch")
        self.kind = options.type
        self.params = dict(options.params)

    def factor(self, step: int, epoch: int) -> float:
        """See :meth:`LRSchedule.factor`."""
        t, params = epoch if self.by_epoch else step - 1, self.params
        gamma = params.get("gamma", _GAMMA)
        if self.kind == "step":
            return float(gamma ** (t // params["step_size"]))
        if self.kind == "multistep":
            return float(gamma ** bisect_right(sorted(params["milestones"]), t))
        if self.kind == "exponential":
            return float(gamma**t)
        # the rate of the original becomes negative
        return max(0.0, params["alpha"] * t + params["beta"]) if self.kind == "linear" else 1.0


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
    return run_training(options, classifier_setup(settings))
