"""Top-1 and top-5 accuracy of a classifier on the validation images of a data folder."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.contrib.classification.checkpoint import load_checkpoint
from seamseg.contrib.classification.config import ClassifierConfig, load_classifier_config
from seamseg.contrib.classification.data import (
    TEN_CROPS,
    VAL,
    ClassFolders,
    ImageBatch,
    collate_images,
    test_transform,
)
from seamseg.contrib.classification.network import TOP, correct
from seamseg.data.loader import shard_loader
from seamseg.maps.evaluation.scores import Scores, numbers_of
from seamseg.maps.formats.metadata import Metadata
from seamseg.ops.fused import autocast
from seamseg.utils.distributed import World, distributed, sum_over_processes
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.progress import progress


@dataclass(frozen=True, repr=False)
class ClassifierScores(Scores):
    """Scores of a classifier.

    `top1` and `top5` are the percentages of the images whose class has the highest score, or is among the five; `loss`
    is the mean cross entropy, `seconds` the time of the validation.
    """

    top1: float
    top5: float
    loss: float
    seconds: float = 0.0

    @property
    def images_per_second(self) -> float:
        """Throughput over all processes, reading the images included."""
        return self.n_images / max(self.seconds, 1e-9)

    def _selection(self) -> tuple[str, float]:
        return "top1", self.top1 / 100

    def _to_json(self) -> dict[str, Any]:
        return numbers_of(self, ("top1", "top5", "loss", "n_images", "seconds", "images_per_second"))

    def _scalars(self) -> dict[str, float]:
        return {"val/loss": self.loss, "val/top1": self.top1, "val/top5": self.top5}

    def _line(self) -> str:
        return f" * Prec@1 {self.top1:.3f} Prec@5 {self.top5:.3f}"

    def _table(self) -> list[str]:
        rate = f"{self.n_images} images in {self.seconds:.1f} s, {self.images_per_second:.1f} images/s"
        return [f"{rate}, loss {self.loss:.4f}", self._line()]


@dataclass(frozen=True)
class ClassifierValidator:
    """Scores a network on a split; every image counts once for any number of processes."""

    dataset: ClassFolders
    batch_size: int
    config: ClassifierConfig
    world: World

    @property
    def metadata(self) -> Metadata:
        """Classes of the data set."""
        return self.dataset.metadata

    def __call__(self, net: nn.Module, observer: Any = None, desc: str = "validate") -> ClassifierScores:
        """Score a network, which maps images to logits, preserving its mode; a collective call."""
        start = time.perf_counter()
        loader = shard_loader(
            self.dataset,
            self.config.training.num_workers,
            self.world,
            batch_size=self.batch_size,
            collate_fn=collate_images,
            pin_memory=self.world.device.type == "cuda",
        )
        shown = progress(loader, len(loader), desc) if self.world.rank == 0 else loader
        sums = torch.zeros(len(TOP) + 2, dtype=torch.float64, device=self.world.device)
        was_training = net.training
        net.eval()
        try:
            with torch.inference_mode():
                for batch in shown:
                    sums += self._sums(net, batch.to(self.world.device, non_blocking=True))
        finally:
            net.train(was_training)
        *hits, loss, count = sum_over_processes(self.world, sums.cpu()).tolist()
        top1, top5 = (100 * hit / count for hit in hits)
        return ClassifierScores(top1, top5, loss / count, time.perf_counter() - start, n_images=round(count))

    def _sums(self, net: nn.Module, batch: ImageBatch) -> Tensor:
        """Return the numbers of correct images, the sum of their losses, and their number."""
        images = batch.images
        crops = images.shape[1] if images.dim() == 5 else 1
        with autocast(self.config.training.precision, self.world.device):
            logits = net(images.flatten(0, 1) if crops > 1 else images).float()
        # as in the original, the mean of the logits of the crops
        logits = logits.unflatten(0, (-1, crops)).mean(1)
        loss = functional.cross_entropy(logits, batch.labels, reduction="sum")
        return torch.cat([correct(logits, batch.labels).sum(1), loss[None], loss.new_tensor([len(batch.ids)])]).double()


def open_validator(
    data: str | Path, config: ClassifierConfig, world: World, ten_crops: bool = False
) -> ClassifierValidator:
    """Open the validation images of a data folder; InputError if it is missing or has other classes."""
    transform = test_transform(config.input, ten_crops)
    dataset = ClassFolders(data, VAL, transform, config.training.seed, config.training.upright)
    dataset.check_classes(config)
    size = config.batch_per_process(world.size)
    # as many crops at a time as images otherwise
    return ClassifierValidator(dataset, max(1, size // TEN_CROPS) if ten_crops else size, config, world)


def validate_classifier(
    config: str | Path,
    checkpoint: str | Path,
    data: str | Path,
    ten_crops: bool = False,
    overrides: Sequence[str] = (),
    device: str = "auto",
) -> ClassifierScores:
    """Score a checkpoint of this project or of the original; joins the processes of torchrun if there are any.

    `config` is a JSON file or the name of a packaged one, and `data` holds `val/<class>/*`. With `ten_crops` the logits
    of ten crops are averaged. InputError if one of them is wrong; SeamsegError if logits are not finite.
    """
    settings = load_classifier_config(config, overrides)
    with distributed(device) as world:
        validator = open_validator(data, settings, world, ten_crops)
        net, names = load_checkpoint(checkpoint, settings, settings.training.channels_last)
        dataset = validator.dataset
        if names and names != dataset.classes:
            raise InputError(f"{dataset.folder}: its class folders are not those of {checkpoint}, in this order")
        scores = validator(net.to(world.device))
    if not math.isfinite(scores.loss):
        raise SeamsegError(f"{checkpoint}: the network returns logits that are not finite: its weights are broken")
    return scores
