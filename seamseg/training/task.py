"""What a training needs to know about the kind of network it trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.data import DataLoader

from seamseg.checkpoints.class_table import ClassTable
from seamseg.checkpoints.pretrained import load_body_weights, load_pretrained, normalisation_problem
from seamseg.checkpoints.snapshot import LoadReport
from seamseg.config import Config, config_from_string, config_to_string
from seamseg.config.kinds import KINDS
from seamseg.config.loader import differences
from seamseg.evaluation.scores import Scores
from seamseg.formats.metadata import Metadata
from seamseg.models.build import build_training_module
from seamseg.training.checkpointing.run_folder import SNAPSHOT_FILES, RunFolder, SnapshotFiles
from seamseg.training.logging.images import SampleImages, SampleRenderer
from seamseg.training.logging.logs import TensorBoardWriter, TextLog
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.optim.schedule import LRSchedule
from seamseg.training.prefetch import open_loader
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.utils.progress import is_quiet
from seamseg.validation.validator import Validator


@dataclass(frozen=True)
class Task:
    """The parts of a training that depend on the kind of network; those of the kinds of `[general] kind`.

    Another kind of training overrides what differs:

    - a training module is an `nn.Module` whose `net` is the network, and which maps a batch to
      :class:`seamseg.models.criterion.Losses` with the weights of `[optimizer] loss_weights` in order. The parts of the
      network (:data:`seamseg.checkpoints.snapshot.NETWORK_MODULES`) are attributes, whose state snapshots hold;
      `net.compile_parts(backend)` compiles it.
    - a batch has `ids` (one an image), `to(...)`, `pin_memory()`, `tensors()`, `unreadable` and `deferred` as
      :class:`seamseg.structures.Batch`. The sampler of a loader is an
      :class:`seamseg.data.samplers.ARBatchSampler`, so that a training can resume in the middle of an epoch.
    - the data set of loader or validator has `metadata`, the classes.
    - a validator maps `(net, observer, desc)` to :class:`seamseg.evaluation.scores.Scores`; a collective call.

    Attributes
    ----------
    config : of the training
    source : name of the configuration, for errors
    """

    config: Config
    source: str | Path = "config"

    rate_names: ClassVar[tuple[str, str]] = ("lr_norm", "lr_other")
    """Names of the learning rates of the first and the last group of the optimizer, in `metrics.jsonl`."""

    replayable: ClassVar[bool] = True
    """Whether a failed step leaves a dump for `seamseg doctor --replay`."""

    @property
    def files(self) -> SnapshotFiles:
        """Names and layout of the snapshots."""
        return SNAPSHOT_FILES

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts of the network, which `PART:FILE` of `pretrain` fills."""
        return KINDS[self.config.kind].modules

    @property
    def config_text(self) -> str:
        """The configuration as text, for TensorBoard."""
        return config_to_string(self.config)

    def changes(self, text: str) -> list[str]:
        """Return the keys whose values differ from those of the configuration in a snapshot."""
        try:
            return differences(config_from_string(text, self.config.kind), self.config)
        except InputError:
            return []  # the configuration of another release; that of this run is valid

    def open_log(self, folder: RunFolder, world: World) -> TextLog:
        """Open the text log of this process."""
        return TextLog(folder.path if world.is_main else None, is_quiet(), enabled=world.is_main)

    def describe_classes(self, metadata: Metadata) -> str:
        """Return the number of classes, for the log."""
        return f"{metadata.num_stuff} stuff and {metadata.num_thing} thing classes"

    def open_loader(self, data: str | Path, world: World) -> DataLoader:
        """Open the loader of the training batches of this process; InputError if the data set is missing or wrong."""
        return open_loader(self.config, data, self.source, world)

    def open_validator(self, data: str | Path, world: World, quiet: bool) -> Callable[..., Scores] | None:
        """Open the validator; None if no split is configured. InputError if the data set is missing or wrong."""
        split = self.config.dataloader.val_set
        return Validator.open(data, split, self.config, world, quiet=quiet) if split else None

    def build(self, metadata: Metadata) -> Any:
        """Build the training module for a data set's classes, with random weights, in training mode."""
        return build_training_module(self.config, metadata.num_stuff, metadata.num_thing)

    def load_body(self, net: nn.Module) -> LoadReport | None:
        """Load the weights of the backbone that the configuration names; None if it names none."""
        weights = self.config.body.weights
        return load_body_weights(net, weights) if weights else None

    def body_problem(self, net: nn.Module) -> str | None:
        """Return a warning about the weights that :meth:`load_body` has loaded; None for none."""
        return normalisation_problem(net, self.config.dataloader)

    def load_pretrained(self, net: nn.Module, specification: str, classes: ClassTable | None = None) -> LoadReport:
        """Load a file of `pretrain`, `[PART:]FILE`, of the classes of the data set, or of others with their table."""
        return load_pretrained(net, specification, classes)

    def build_optimizer(self, net: nn.Module) -> torch.optim.Optimizer:
        """Build the optimizer of a network on its device; its first group has norm layers, its last others."""
        return build_optimizer(net, self.config)

    def build_schedule(self, base_lrs: Sequence[float], epoch_length: int) -> LRSchedule:
        """Build the schedule of the learning rates of the optimizer's groups, for so many steps per epoch."""
        options = self.config.scheduler
        return LRSchedule(
            options.type,
            options.params,
            list(base_lrs),
            options.epochs,
            epoch_length,
            options.update_mode,
            options.burn_in_steps,
            options.burn_in_start,
        )

    def describe(self, folder: RunFolder, metadata: Metadata) -> None:
        """Write what makes the run folder usable as a model, besides the snapshots."""
        folder.describe(self.config, metadata)

    def sample_images(self, metadata: Metadata) -> SampleImages:
        """Return what draws the sample images for TensorBoard."""
        return SampleRenderer(metadata, self.config)

    def watch(self, net: nn.Module, tensorboard: TensorBoardWriter) -> Callable[[int], None] | None:
        """Return a function that is called with the number of each finished step; None for none."""
        return None
