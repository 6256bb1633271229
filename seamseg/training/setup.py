"""The parts of a training that depend on the kind of network, and the training of segmentation networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seamseg.checkpoints.class_table import ClassTable
from seamseg.checkpoints.pretrained import load_body_weights, load_pretrained, normalisation_problem
from seamseg.config import Config, config_from_string, config_to_string
from seamseg.config.components import Record
from seamseg.config.loader import differences
from seamseg.data.dataset import PanopticDataset
from seamseg.data.loader import BatchLoader, index_sampler, train_loader
from seamseg.data.maps import declared_maps
from seamseg.data.reader import open_reader
from seamseg.data.samplers import ClassUniformSampling, DistributedARBatchSampler
from seamseg.data.transforms import TrainTransform
from seamseg.maps.folder import void_warning
from seamseg.maps.formats.metadata import Metadata
from seamseg.models.backbones.base import Backbone
from seamseg.models.build import build_training_module
from seamseg.models.network import Network
from seamseg.training.callbacks import Callback
from seamseg.training.checkpointing.run_folder import RunFolder
from seamseg.training.logging.images import SampleRenderer
from seamseg.training.logging.reporter import TextLog
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.optim.schedule import LRSchedule, step_note
from seamseg.training.options import TrainerOptions, TrainingOptions
from seamseg.training.prefetch import TrainingBatch, prepare_batch
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError, instance_of
from seamseg.validation.validator import Validator

Validate = Any
"""Scores a network on a split: a function like :class:`Validator`, with the `metadata` of the data set; collective."""


@dataclass(frozen=True)
class Setup:
    """The parts of a training that depend on the kind of network: values, and functions that open and build the others.

    `config` is the configuration as text, `components` are the custom ones that it names; `changes` returns the keys
    that differ from the configuration in a snapshot. `run_folder` knows names and layout of the snapshots;
    `write_model` writes what else makes a run folder usable as a model.

    `open_loader` opens the training batches, by :func:`seamseg.data.loader.train_loader`, `open_validator` the
    validation, None if no split is configured. `log_notes` logs what the configuration ignores or does not fit the
    data; the loader is None for a scoring.

    `build` builds the training module for the classes of a data set, with random weights, in training mode. It maps a
    batch, to which `prepare` has applied the transforms that run on the device, to
    :class:`seamseg.models.network.Losses` with the names of `options.loss_weights`; its `net` is the network.
    `load_weights` loads what a new training starts from, or a scoring uses. `build_schedule` takes the base rates of
    the optimizer's groups and the steps of an epoch.
    """

    options: TrainerOptions
    config: str
    changes: Callable[[str], list[str]]
    open_loader: Callable[[str | Path, World], BatchLoader]
    open_validator: Callable[[str | Path, World], Validate | None]
    build: Callable[[Metadata], nn.Module]
    load_weights: Callable[[nn.Module, TrainingOptions, Metadata, TextLog], None]
    build_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    build_schedule: Callable[[Sequence[float], int], LRSchedule]
    write_model: Callable[[RunFolder, Metadata], None]
    components: tuple[Record, ...] = ()
    run_folder: Callable[[Path], RunFolder] = RunFolder
    log_notes: Callable[[BatchLoader | None, World, TextLog], None] = lambda loader, world, log: None
    prepare: Callable[[Any], TrainingBatch] | None = None
    callbacks: Callable[[], Mapping[str, Callback]] = dict
    sample_images: Callable[[Metadata], SampleRenderer | None] = lambda metadata: None


def segmentation(config: Config, source: str | Path = "config") -> Setup:
    """Return the training of a configuration; `source` is its name in errors."""
    curve, keys = config.component("scheduler")
    split = config.dataloader.val_set

    def changes(text: str) -> list[str]:
        try:
            return differences(config_from_string(text, config.general.kind), config)
        except InputError:
            # another release wrote the configuration
            return []

    return Setup(
        options=TrainerOptions.from_config(config),
        config=config_to_string(config),
        components=config.records(),
        changes=changes,
        open_loader=lambda data, world: open_loader(config, data, source, world),
        open_validator=lambda data, world: Validator.open(data, split, config, world) if split else None,
        log_notes=partial(_log_notes, config),
        prepare=partial(prepare_batch, options=config.dataloader),
        build=lambda metadata: build_training_module(config, metadata.num_stuff, metadata.num_thing),
        load_weights=partial(load_initial_weights, config),
        build_optimizer=partial(build_optimizer, config=config),
        build_schedule=partial(LRSchedule, curve.make, keys, config.scheduler),
        write_model=lambda folder, metadata: folder.describe(config, metadata),
        sample_images=partial(SampleRenderer, config=config),
        callbacks=lambda: {
            component.name: instance_of(Callback, component.build(keys), f"{component.section} ({component.file})")
            for component, keys in config.components("callback")
        },
    )


def _log_notes(config: Config, loader: BatchLoader | None, world: World, log: TextLog) -> None:
    """Warn of a learning rate for another number of images per step, ignored keys, and images that are mostly void."""
    if loader is not None:
        images = index_sampler(loader).batch_size * config.optimizer.accumulate * world.size
        if (note := step_note(config, images, -(-len(loader) // config.optimizer.accumulate))) is not None:
            log.warning(note)
    kind = config.parts_of_kind
    if config.dataloader.coco_gt and (config.general.eval_coco or not kind.uses("general", "eval_coco")):
        log.info("[dataloader] coco_gt is ignored: average precision uses the ground truth of the data set")
    if loader is not None and world.rank == 0 and (kind.has_masks or kind.has_classes):
        dataset = loader.dataset
        assert isinstance(dataset, PanopticDataset)
        if (problem := void_warning(dataset.void_share())) is not None:
            log.warning(problem)


def open_loader(config: Config, data: str | Path, source: str | Path, world: World) -> BatchLoader:
    """Open the loader of the training batches of this process; `source` is the name of the configuration.

    InputError if the split or the batch size is not given, or the data set is missing or broken.
    """
    loading, seed = config.dataloader, config.general.seed
    if not loading.train_set:
        raise InputError(f"{source}: [dataloader] train_set is required: the name of a list in {data}/lst")
    if not loading.train_batch_size:
        raise InputError(f"{source}: [dataloader] train_batch_size is required: images per batch and process")
    transform = TrainTransform(
        loading,
        {c.name: partial(c.make, keys=keys) for c, keys in config.components("augmentation")},
        declared_maps(config, "head", "network"),
    )
    dataset = PanopticDataset(
        data,
        loading.train_set,
        transform,
        seed,
        loading.fast_decode,
        open_reader=partial(open_reader, config),
    )
    sampler = DistributedARBatchSampler(
        dataset.img_sizes, loading.train_batch_size, world.size, world.rank, loading.drop_last, seed=seed
    )
    if loading.class_uniform:
        sampler.replace = ClassUniformSampling(dataset.images, loading.class_uniform, seed)
    return train_loader(dataset, sampler, loading, world)


def load_initial_weights(
    config: Config, net: Network, options: TrainingOptions, metadata: Metadata, log: TextLog
) -> None:
    """Load the weights of `[body]` and of `pretrain` into a network with random weights, and check that all are loaded.

    InputError if a file does not fit, or weights are missing that must not be random.
    """
    complete, backbone = options.evaluate, net.backbone
    frozen: list[tuple[str, nn.Parameter, int]] = []
    # others may leave the rest random; a body that loads its weights itself is not asked
    if not complete and config.parts_of_kind.uses("body", "num_frozen") and config.body.num_frozen:
        assert isinstance(backbone, Backbone)
        named = [] if backbone.pretrained else backbone.named_parameters()
        # torch counts the writes to a tensor
        frozen = [(name, p, p._version) for name, p in named if not p.requires_grad]
    _load_body(config, net, metadata, log)
    table = None if options.pretrain_classes is None else ClassTable(metadata, options.pretrain_classes)
    for specification in options.pretrain:
        report = load_pretrained(net, specification, table)
        log.info(f"pre-trained {specification}: {report}")
        if report.classes and report.classes != tuple(metadata.categories):
            log.warning(
                f"pre-trained {specification}: its classes are not those of the data set; "
                f"`pretrain_classes=TABLE` copies weights by the names of classes"
            )
        for line in report.fresh:
            log.info(f"pre-trained {specification}: {line}")
        if complete and (report.skipped or report.fresh):
            problem = str(report) if report.skipped else report.fresh[0]
            raise InputError(f"`evaluate=True` `pretrain={specification}`: does not fill the network: {problem}")
    parts = config.parts_of_kind.modules
    if complete and all(":" in s and s.split(":")[0] in parts for s in options.pretrain):
        filled = {s.split(":")[0] for s in options.pretrain}
        if missing := [part for part in parts if part not in filled]:
            raise InputError(f"`evaluate=True`: `pretrain` gives no weights for {', '.join(missing)}")
    if fresh := [name for name, parameter, version in frozen if parameter._version == version]:
        problem = (
            f"[body] num_frozen freezes weights that were not loaded ({len(fresh)} tensors, the first {fresh[0]}): "
            "set body.num_frozen=0, or load weights with `pretrain=body:F`"
        )
        if not options.legacy:
            raise InputError(problem)
        log.warning(problem)


def _load_body(config: Config, net: Network, metadata: Metadata, log: TextLog) -> None:
    if not config.parts_of_kind.uses("body", "weights"):
        if line := net.initialise(metadata.categories):
            log.info(line)
    elif weights := config.body.weights:
        log.info(f"body weights {weights}: {load_body_weights(net, weights)}")
        if (problem := normalisation_problem(net, config.dataloader)) is not None:
            log.warning(problem)
