"""What a training needs of the kind of network that it trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import nn

from seamseg.checkpoints.class_table import ClassTable
from seamseg.checkpoints.pretrained import load_body_weights, load_pretrained, normalisation_problem
from seamseg.checkpoints.snapshot import LoadReport
from seamseg.config import Config, config_from_string, config_to_string
from seamseg.config.components import Record
from seamseg.config.kinds import PANOPTIC
from seamseg.config.loader import differences
from seamseg.data.dataset import PanopticDataset
from seamseg.data.folder import void_warning
from seamseg.data.loader import BatchLoader, LoaderOptions, collate, index_sampler, train_loader
from seamseg.data.maps import declared_maps
from seamseg.data.reader import open_reader
from seamseg.data.samplers import DistributedARBatchSampler
from seamseg.data.transforms import AugmentationOptions, Normalise, TrainTransform, without_things
from seamseg.evaluation.scores import Scores
from seamseg.formats.metadata import Metadata
from seamseg.inference.network import TorchNetwork
from seamseg.models.build import build_training_module, without_quantisation
from seamseg.models.custom_network import WholeNetwork
from seamseg.models.folding import fold_layers
from seamseg.models.network import Losses
from seamseg.models.panoptic import PanopticNet
from seamseg.models.quantised import choosing_ranges
from seamseg.models.semantic import SemanticNet
from seamseg.structures import Batch
from seamseg.training.averaging import buffers_restored
from seamseg.training.callbacks import Callback, Callbacks
from seamseg.training.checkpointing.rank_state import rng_state, set_rng_state
from seamseg.training.checkpointing.run_folder import SNAPSHOT_FILES, RunFolder, SnapshotFiles
from seamseg.training.logging.images import SampleImages, SampleRenderer
from seamseg.training.logging.logs import TextLog
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.optim.schedule import CurveSchedule, LRSchedule, step_note
from seamseg.training.options import TrainerOptions
from seamseg.training.prefetch import TrainingBatch, prepare_batch
from seamseg.training.step import autocast, named_backward_error, weighted_sum
from seamseg.utils.component_errors import instance_of
from seamseg.utils.device_memory import lacks_memory
from seamseg.utils.distributed import World, broadcast_buffers
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.progress import is_quiet
from seamseg.validation.validator import Observer, Validator

CALIBRATION_IMAGES = 64
"""Maximum number of training images by which the ranges of int8 are chosen."""

StepCallback = Callable[[int], None]
"""Called with the number of each finished step."""


class Validate(Protocol):
    """Scores a network on a split, and preserves its training or evaluation mode."""

    @property
    def metadata(self) -> Metadata:
        """Classes of the data set."""

    def __call__(self, net: nn.Module, observer: Observer | None = None, desc: str = "validate") -> Scores:
        """Score a network on the device of this process; a collective call."""


class Task(ABC):
    """What differs between trainings of different kinds of networks. Its methods may be called in any order."""

    @property
    @abstractmethod
    def options(self) -> TrainerOptions:
        """Options of the trainer."""

    @property
    @abstractmethod
    def files(self) -> SnapshotFiles:
        """Names and layout of the snapshots."""

    @property
    @abstractmethod
    def parts(self) -> tuple[str, ...]:
        """Parts of the network, which `PART:FILE` of `pretrain` fills."""

    @property
    @abstractmethod
    def config_text(self) -> str:
        """The configuration as text, for snapshots and callbacks."""

    @property
    def components(self) -> tuple[Record, ...]:
        """The custom components that the configuration names."""
        return ()

    @property
    @abstractmethod
    def quantised(self) -> bool:
        """Whether the network is one for int8, which starts from a trained one of :meth:`build_float`."""

    @abstractmethod
    def changes(self, text: str) -> list[str]:
        """Return the keys whose values differ from those of the configuration in a snapshot."""

    @abstractmethod
    def open_log(self, folder: RunFolder, world: World) -> TextLog:
        """Open the text log of this process."""

    @abstractmethod
    def open_loader(self, data: str | Path, world: World) -> BatchLoader:
        """Open the loader of the training batches of this process; InputError if the data set is missing or wrong.

        It is from :func:`seamseg.data.loader.train_loader`, with a
        :class:`seamseg.data.samplers.DistributedARBatchSampler`: a training can resume in the middle of an epoch.
        Its batches are of :class:`seamseg.training.prefetch.TrainingBatch`, its data set has `metadata`, the classes.
        """

    @abstractmethod
    def open_validator(self, data: str | Path, world: World) -> Validate | None:
        """Open the validator; None if no split is configured. InputError if the data set is missing or wrong."""

    def prepare(self, batch: TrainingBatch) -> TrainingBatch:
        """Apply the transforms of a batch that run on its device."""
        return batch

    @abstractmethod
    def describe(self, metadata: Metadata) -> list[str]:
        """Return lines for the log: first the classes, then what the configuration ignores."""

    def step_note(self, images: int, epoch_length: int) -> str | None:
        """Return a warning if the learning rate is for another number of images a step; None if not."""
        return None

    def data_problem(self, loader: BatchLoader) -> str | None:
        """Return a warning about the training images, by some of them; None if there is nothing to say."""
        return None

    @abstractmethod
    def build(self, metadata: Metadata) -> nn.Module:
        """Build the training module for a data set's classes, with random weights, in training mode.

        It maps a batch to :class:`seamseg.models.network.Losses` with the names of `options.loss_weights`. Its `net`
        is the network; the parts of that (:data:`seamseg.checkpoints.snapshot.NETWORK_MODULES`) are attributes, whose
        state snapshots hold.
        """

    def build_float(self, metadata: Metadata) -> nn.Module | None:
        """Build the network of which :meth:`quantise` makes the one to train; None unless `quantised`."""
        return None

    def quantise(self, net: nn.Module, start: nn.Module, data: str | Path, world: World, log: TextLog) -> None:
        """Fill a network, on its device, from one of :meth:`build_float` with trained weights."""
        return

    def load_start(self, net: nn.Module, metadata: Metadata, log: TextLog) -> None:
        """Load the weights that the configuration names, such as those of the backbone, if any."""
        return

    def frozen(self, net: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters, by name, that are not trained and must be loaded."""
        return {}

    @abstractmethod
    def load_pretrained(self, net: nn.Module, specification: str, classes: ClassTable | None = None) -> LoadReport:
        """Load a file of `pretrain`, `[PART:]FILE`, of the classes of the data set, or of others with their table."""

    def try_parts(self, module: nn.Module, loader: BatchLoader, validator: Validate | None, world: World) -> list[str]:
        """Run what a training runs late before it begins, without a trace; return warnings. A collective call.

        SeamsegError if that fails.
        """
        return []

    @abstractmethod
    def build_optimizer(self, net: nn.Module) -> torch.optim.Optimizer:
        """Build the optimizer of a network on its device."""

    @abstractmethod
    def build_schedule(self, base_lrs: Sequence[float], epoch_length: int) -> LRSchedule:
        """Build the schedule of the learning rates of the optimizer's groups, for so many steps per epoch."""

    @abstractmethod
    def write_model(self, folder: RunFolder, metadata: Metadata) -> None:
        """Write what makes the run folder usable as a model, besides the snapshots."""

    @abstractmethod
    def sample_images(self, metadata: Metadata) -> SampleImages:
        """Return what draws the sample images."""

    def step_callback(self, net: nn.Module, callbacks: Callbacks) -> StepCallback | None:
        """Return a function that is called after each step; None for none."""
        return None

    def build_callbacks(self) -> dict[str, Callback]:
        """Make the callbacks of the configuration, by name."""
        return {}


@dataclass(frozen=True)
class SegmentationTask(Task):
    """The task of the kinds of `[general] kind`; see :class:`Task` for its methods.

    Attributes
    ----------
    config : configuration of the training
    source : name of the configuration, for errors
    """

    config: Config
    source: str | Path = "config"

    files = SNAPSHOT_FILES

    @cached_property
    def options(self) -> TrainerOptions:
        """The options of the trainer."""
        return TrainerOptions.from_config(self.config)

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts of the network."""
        return self.config.parts_of_kind.modules

    @property
    def quantised(self) -> bool:
        """Whether `[general] qat` is set."""
        return self.config.general.qat

    @property
    def config_text(self) -> str:
        """The configuration as an INI file."""
        return config_to_string(self.config)

    @property
    def components(self) -> tuple[Record, ...]:
        """The custom components that the configuration names."""
        return self.config.records()

    def changes(self, text: str) -> list[str]:
        """Return the changed keys; none if the configuration is that of another release."""
        try:
            return differences(config_from_string(text, self.config.kind), self.config)
        except InputError:
            return []

    def open_log(self, folder: RunFolder, world: World) -> TextLog:
        """Open `training.log`, which the main process writes."""
        return TextLog(folder.path if world.is_main else None, is_quiet(), enabled=world.is_main)

    def open_loader(self, data: str | Path, world: World) -> BatchLoader:
        """Open the loader of `[dataloader] train_set`."""
        return open_loader(self.config, data, self.source, world)

    def open_validator(self, data: str | Path, world: World) -> Validate | None:
        """Open the validator of `[dataloader] val_set`."""
        split = self.config.dataloader.val_set
        return Validator.open(data, split, self.config, world) if split else None

    def prepare(self, batch: TrainingBatch) -> TrainingBatch:
        """Apply the transforms of `[dataloader] device_transforms`."""
        assert isinstance(batch, Batch)
        return prepare_batch(batch, self.config.dataloader)

    def describe(self, metadata: Metadata) -> list[str]:
        """Return the number of classes, and whether `coco_gt` is ignored."""
        lines = [f"{metadata.num_stuff} stuff and {metadata.num_thing} thing classes"]
        if self.config.dataloader.coco_gt and (self.config.kind != PANOPTIC or self.config.general.eval_coco):
            lines.append("[dataloader] coco_gt is ignored: average precision uses the ground truth of the data set")
        return lines

    def step_note(self, images: int, epoch_length: int) -> str | None:
        """Compare with `[optimizer] step_images`."""
        return step_note(self.config, images, epoch_length)

    def data_problem(self, loader: BatchLoader) -> str | None:
        """Return a warning if most pixels of some images are void."""
        dataset = loader.dataset
        assert isinstance(dataset, PanopticDataset)
        return None if self.config.kind == "detection" else void_warning(dataset.void_share())

    def build(self, metadata: Metadata) -> nn.Module:
        """Build network and losses."""
        module: nn.Module = build_training_module(self.config, metadata.num_stuff, metadata.num_thing)
        return module

    def build_float(self, metadata: Metadata) -> nn.Module | None:
        """Build the float network with `[general] qat`."""
        if not self.quantised:
            return None
        return replace(self, config=without_quantisation(self.config)).build(metadata).get_submodule("net")

    def quantise(self, net: nn.Module, start: nn.Module, data: str | Path, world: World, log: TextLog) -> None:
        """Copy the folded weights; the ranges of int8 are those of training images."""
        assert isinstance(net, (PanopticNet, SemanticNet))
        net.load_state_dict(fold_layers(start).state_dict(), strict=False)
        images = Validator.open(data, self.config.dataloader.train_set, self.config, world).dataset
        count = min(CALIBRATION_IMAGES, len(images))
        log.info(f"[general] qat: choosing the ranges of int8 by {count} training images")
        loading = self.config.dataloader
        network = TorchNetwork(net, Normalise(loading.rgb_mean, loading.rgb_std), world.device)
        # each process does the same, so that none waits for the others
        with choosing_ranges(net):
            for number in np.linspace(0, len(images) - 1, count).round().astype(int):
                network.run([images[int(number)]["img"].numpy()])
        net.train()
        broadcast_buffers(world, net)

    def load_start(self, net: nn.Module, metadata: Metadata, log: TextLog) -> None:
        """Load `[body] weights`, or those of another network; warn if they need another normalisation of the images."""
        if isinstance(net, WholeNetwork):
            with net.errors():
                line = net.network.initialise(metadata.categories)
            if line:
                log.info(line)
        elif (weights := self.config.body.weights) and not self.quantised:
            log.info(f"body weights {weights}: {load_body_weights(net, weights)}")
            if (problem := normalisation_problem(net, self.config.dataloader)) is not None:
                log.warning(problem)

    def frozen(self, net: nn.Module) -> dict[str, nn.Parameter]:
        """Return the parameters that `[body] num_frozen` freezes; none of a body that loads them itself."""
        if not isinstance(net, (PanopticNet, SemanticNet)) or self.config.body.num_frozen == 0:
            return {}
        backbone = net.body if isinstance(net, SemanticNet) else net.body.backbone
        named = [] if getattr(backbone, "pretrained", False) else backbone.named_parameters()
        return {name: parameter for name, parameter in named if not parameter.requires_grad}

    def load_pretrained(self, net: nn.Module, specification: str, classes: ClassTable | None = None) -> LoadReport:
        """Load `[PART:]FILE`."""
        return load_pretrained(net, specification, classes)

    def try_parts(self, module: nn.Module, loader: BatchLoader, validator: Validate | None, world: World) -> list[str]:
        """Train on an image without things and score one image, if there are parts of the user, as in all processes."""
        if not self.components:
            return []
        random, net = rng_state(world.device), module.get_submodule("net")
        try:
            with buffers_restored(module):
                lines = self._train_without_things(module, loader, world)
                if isinstance(validator, Validator):
                    lines += validator.try_one(net)
                return lines
        except Exception as error:
            # the training reports it, with the images of a whole batch
            if not lacks_memory(error):
                raise
            return []
        finally:
            module.zero_grad(set_to_none=True)
            set_rng_state(random, world.device)

    def _train_without_things(self, module: nn.Module, loader: BatchLoader, world: World) -> list[str]:
        """Run forward and backward pass on an image without things, twice where batches have several."""
        dataset, settings = loader.dataset, self.options
        assert isinstance(dataset, PanopticDataset)
        item = without_things(dataset[0], dataset.num_stuff)
        batch = collate([item] * min(2, index_sampler(loader).batch_size)).to(world.device)

        def run() -> Losses:
            with autocast(settings.precision, world.device):
                losses: Losses = module(self.prepare(batch))
            weighted_sum(losses.means, settings.loss_weights).backward()
            return losses

        where = f"image {item['id']} without its things"
        try:
            means = run().means
        except SeamsegError as error:
            raise type(error)(f"{where}: {error}") from error
        except RuntimeError as error:
            named = named_backward_error(error, module, None if world.is_distributed else run)
            if named is None:
                raise
            raise SeamsegError(f"{where}: {named}") from error
        invalid = [name for name, mean in means.items() if not torch.isfinite(mean)]
        return [f"{where}: {name} is not finite, which ends a training" for name in invalid]

    def build_optimizer(self, net: nn.Module) -> torch.optim.Optimizer:
        """Build the optimizer; its first group has norm layers, its last others."""
        return build_optimizer(net, self.config)

    def build_schedule(self, base_lrs: Sequence[float], epoch_length: int) -> LRSchedule:
        """Build the schedule of `[scheduler]`."""
        curve, keys = self.config.component("scheduler")
        return CurveSchedule(curve.make, keys, self.config.scheduler, base_lrs, epoch_length)

    def build_callbacks(self) -> dict[str, Callback]:
        """Make the callbacks of the configuration, by name."""
        made = {}
        for component, keys in self.config.components("callback"):
            where = f"{component.section} ({component.file})"
            made[component.name] = instance_of(Callback, component.build(keys), where)
        return made

    def write_model(self, folder: RunFolder, metadata: Metadata) -> None:
        """Write `config.ini` and `metadata.bin`."""
        folder.describe(self.config, metadata)

    def sample_images(self, metadata: Metadata) -> SampleImages:
        """Return what draws training and validation images."""
        return SampleRenderer(metadata, self.config)


def open_loader(config: Config, data: str | Path, source: str | Path, world: World) -> BatchLoader:
    """Open the loader of the training batches of this process.

    Parameters
    ----------
    config : `[dataloader]`, seed
    data : data set
    source : name of the configuration, for errors
    world : the processes, among which the images are divided

    Raises
    ------
    InputError
        if the split or the batch size is not given, or the data set is missing or broken
    """
    loading, seed = config.dataloader, config.general.seed
    if not loading.train_set:
        raise InputError(f"{source}: [dataloader] train_set is required: the name of a list in {data}/lst")
    if not loading.train_batch_size:
        raise InputError(f"{source}: [dataloader] train_batch_size is required: images per batch and process")
    transform = TrainTransform(
        loading.shortest_size,
        loading.longest_max_size,
        loading.rgb_mean,
        loading.rgb_std,
        AugmentationOptions(loading.random_flip, loading.random_scale, loading.crop_size, loading.color_jitter),
        loading.device_transforms,
        {c.name: partial(c.make, keys=keys) for c, keys in config.components("augmentation")},
        declared_maps(config, "head", "network"),
    )
    dataset = PanopticDataset(
        data,
        loading.train_set,
        transform,
        seed,
        loading.fast_decode,
        replace_unreadable=loading.broken_limit > 0,
        open_reader=partial(open_reader, config),
    )
    sampler = DistributedARBatchSampler(
        dataset.img_sizes, loading.train_batch_size, world.size, world.rank, loading.drop_last, seed=seed
    )
    return train_loader(dataset, sampler, LoaderOptions.of(loading, seed, world, loading.class_uniform))
