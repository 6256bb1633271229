"""Training of classifiers, by the trainer of :mod:`seamseg.training`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seamseg.checkpoints.model_path import CLASSIFIER_CLASSES_NAME, CLASSIFIER_CONFIG_NAME
from seamseg.checkpoints.snapshot import load_into
from seamseg.config.sections import Scheduler
from seamseg.contrib.classification.checkpoint import checkpoint_folder, read_checkpoint
from seamseg.contrib.classification.config import (
    KEYS,
    ClassifierConfig,
    OptimizerConfig,
    ScheduleConfig,
    load_classifier_config,
    parse_classifier_config,
)
from seamseg.contrib.classification.data import (
    TRAIN,
    VAL,
    ClassFolders,
    class_names,
    collate_images,
    train_transform,
)
from seamseg.contrib.classification.network import Classifier, build_classifier
from seamseg.contrib.classification.validate import open_validator
from seamseg.data.loader import BatchLoader, train_loader
from seamseg.data.samplers import DistributedARBatchSampler
from seamseg.maps.formats.metadata import Metadata
from seamseg.models.network import BatchOptions, TrainingModule
from seamseg.training.checkpointing.run_folder import RunFolder
from seamseg.training.logging.reporter import TextLog
from seamseg.training.optim.optimizer import can_fuse, fill_state, sgd
from seamseg.training.optim.schedule import Curve, LRSchedule, multistep, step
from seamseg.training.options import TrainerOptions, TrainingOptions, TrainResult
from seamseg.training.run import run_training
from seamseg.training.setup import Setup
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.utils.files import write_json

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
    return TrainerOptions.of(
        config.training,
        config.optimizer.schedule,
        loss_weights={"loss": 1.0},
        clip_norm=config.optimizer.clip,
        rate_names=("lr", "lr_classifier"),
        histograms=("fc", "bn_out") if config.training.log_hist else (),
        key_names=KEY_NAMES,
    )


def classifier_setup(config: ClassifierConfig) -> Setup:
    """Return the training of a classifier."""
    optimizer, channels_last = config.optimizer, config.training.channels_last

    def changes(text: str) -> list[str]:
        try:
            old = parse_classifier_config(json.loads(text))
        except (ValueError, InputError):
            return []
        pairs = ((key, attrgetter(key)(old), attrgetter(key)(config)) for key in KEYS)
        return [f"{key}: {was} -> {now}" for key, was, now in pairs if was != now]

    def open_loader(data: str | Path, world: World) -> BatchLoader:
        transform = train_transform(config.input, config.training.min_crop_area)
        dataset = ClassFolders(data, TRAIN, transform, config.training.seed, config.training.upright)
        dataset.check_classes(config, class_names(data, VAL))
        # all images have the size of the crop, so that the aspect ratios do not matter
        sizes, training = [(1, 1)] * len(dataset), config.training
        sampler = DistributedARBatchSampler(
            sizes, config.batch_per_process(world.size), world.size, world.rank, training.drop_last, seed=training.seed
        )
        return train_loader(dataset, sampler, training, world, collate_images)

    def load_weights(net: nn.Module, options: TrainingOptions, metadata: Metadata, log: TextLog) -> None:
        for name in options.pretrain:
            report = load_into(net, read_checkpoint(name), strict=False, name=name)
            if not report.loaded:
                raise InputError(f"{name}: holds no weights of {config.network.arch}")
            log.info(f"pre-trained {name}: {report}")

    def write_model(folder: RunFolder, metadata: Metadata) -> None:
        write_json(folder.path / CLASSIFIER_CONFIG_NAME, config.to_json(), indent=2)
        write_json(folder.path / CLASSIFIER_CLASSES_NAME, metadata.categories, indent=1)

    return Setup(
        options=trainer_options(config),
        config=json.dumps(config.to_json(), indent=2),
        changes=changes,
        run_folder=partial(checkpoint_folder, config),
        open_loader=open_loader,
        open_validator=lambda data, world: open_validator(data, config, world),
        build=lambda metadata: TrainingModule(Classifier(build_classifier(config), BatchOptions(channels_last))),
        load_weights=load_weights,
        build_optimizer=partial(build_optimizer, options=optimizer),
        build_schedule=partial(build_schedule, optimizer.schedule),
        write_model=write_model,
    )


def build_optimizer(net: nn.Module, options: OptimizerConfig) -> torch.optim.Optimizer:
    """Build SGD or Adam; with `classifier_lr` parameters named `fc` are a second group, in the original's order."""
    named, split = [(name, p) for name, p in net.named_parameters() if p.requires_grad], options.classifier_lr >= 0
    rates = [options.learning_rate, *([options.classifier_lr] if split else [])]
    groups: list[dict[str, Any]] = [{"params": [], "lr": rate, "weight_decay": options.weight_decay} for rate in rates]
    for name, parameter in named:
        groups[split and "fc" in name]["params"].append(parameter)
    optimizer = sgd(groups, options) if options.type == "SGD" else torch.optim.Adam(groups, fused=can_fuse(groups))
    fill_state(optimizer)
    return optimizer


CURVES: dict[str, Curve] = {
    "constant": lambda t, total, keys: 1.0,
    "step": step,
    "multistep": multistep,
    "exponential": lambda t, total, keys: float(keys.params["gamma"] ** t),
    # the rate of the original becomes negative
    "linear": lambda t, total, keys: max(0.0, keys.params["alpha"] * t + keys.params["beta"]),
}
"""The curves of a schedule over the number of finished epochs (`mode` epoch) or steps (`mode` step)."""


def build_schedule(options: ScheduleConfig, base_lrs: Sequence[float], epoch_length: int) -> LRSchedule:
    """Build the schedule from the base rates of the groups of parameters and the number of steps of an epoch."""
    by_epoch = options.mode == "epoch"
    params = {"gamma": 0.1, **options.params}
    keys = Scheduler(options.epochs, options.type, "epoch" if by_epoch else "batch", params, 0, 1.0)

    def curve(t: int, total: int, keys: Scheduler) -> float:
        # steps count from 1
        return CURVES[options.type](t if by_epoch else max(0, t - 1), total, keys)

    return LRSchedule(curve, keys, keys, base_lrs, epoch_length)


def train_classifier(options: TrainingOptions) -> TrainResult:
    """Train a classifier on `train/<class>/*` and `val/<class>/*`; see :func:`seamseg.training.run.run_training`."""
    settings = load_classifier_config(options.config, options.overrides)
    return run_training(options, classifier_setup(settings))
