"""Score a network on a split: predictions at native image size against the ground truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seamseg.config import Config
from seamseg.data.dataset import PanopticDataset
from seamseg.data.loader import BatchLoader
from seamseg.data.samplers import ShardSampler
from seamseg.data.transforms import TestTransform
from seamseg.data.workers import ignore_foreign_signals
from seamseg.evaluation.coco_ap import InstanceEvaluator, average_precision, require_pycocotools
from seamseg.evaluation.evaluator import Comparison, PanopticEvaluator
from seamseg.evaluation.scores import InstanceScores, PanopticScores
from seamseg.idmaps.resize import resize_nearest
from seamseg.inference.images import equal_size_batches, test_transform
from seamseg.models.fusion import fuse, to_result
from seamseg.models.panoptic import PanopticNet
from seamseg.panoptic_map import PanopticResult, class_infos
from seamseg.structures import PackedSequence, Prediction
from seamseg.utils.distributed import World, broadcast_object, gather_to_main, sum_over_processes
from seamseg.utils.parallel import available_cores
from seamseg.utils.progress import progress


@dataclass(frozen=True)
class ValidationItem:
    """An image of a split: network input `3 x H x W`, instance ids `L x h x w` at native size, and their classes."""

    id: str
    image: Tensor
    mask: Tensor
    cat: Sequence[int]
    iscrowd: Sequence[int]

    @property
    def native_size(self) -> tuple[int, int]:
        """Native size `(h, w)` of the image."""
        return int(self.mask.shape[-2]), int(self.mask.shape[-1])


@dataclass(frozen=True)
class _ValidationTransform:
    """Transforms the image as in prediction and leaves the ground truth unchanged."""

    image: TestTransform

    def __call__(
        self, image: Image.Image, mask: np.ndarray, cat: Sequence[int], iscrowd: Sequence[int], rng: Random | None
    ) -> dict[str, Any]:
        return {"img": self.image(image), "msk": torch.from_numpy(mask), "cat": cat, "iscrowd": iscrowd}


@dataclass(frozen=True)
class ValidationResult:
    """An image with its prediction, and how that matches the ground truth.

    Attributes
    ----------
    item : the image and its ground truth
    prediction, result : of the network; the result at native size
    comparison : match of the segments
    counts : of this image only
    """

    item: ValidationItem
    prediction: Prediction
    result: PanopticResult
    comparison: Comparison
    counts: PanopticEvaluator


Observer = Callable[[ValidationResult], None]
"""Called with each image of this process."""


@dataclass(frozen=True)
class Validator:
    """Scores a network on one split of a data set.

    Every image counts exactly once for any number of processes, and the counts are integers: with the same predictions
    the scores are bit-identical for any number of processes.

    Parameters
    ----------
    dataset : split; opened by :meth:`open`
    config : thresholds of the fusion, batch size, workers, `general.eval_mode`; `general.eval_coco` adds the
        average precision of the detections before fusion, at native size
    world : the processes, among which the images are divided; :meth:`__call__` is a collective call
    legacy : compare at network size and count as the original
    quiet : show no progress
    """

    dataset: PanopticDataset
    config: Config
    world: World
    legacy: bool = False
    quiet: bool = False

    @staticmethod
    def open(
        root: str | Path, split: str, config: Config, world: World, legacy: bool = False, quiet: bool = False
    ) -> Validator:
        """Open a split of a dataset folder; the other arguments are the attributes.

        Raises
        ------
        InputError
            if the folder or the split is missing or broken, or `general.eval_coco` needs pycocotools, which is missing
        """
        if config.general.eval_coco:
            require_pycocotools()
        options = config.dataloader
        # the original has no limit of the longest side
        transform = (
            TestTransform(options.shortest_size, None, options.rgb_mean, options.rgb_std)
            if legacy
            else test_transform(config)
        )
        return Validator(PanopticDataset(root, split, _ValidationTransform(transform)), config, world, legacy, quiet)

    def __call__(self, net: PanopticNet, observer: Observer | None = None, desc: str = "validate") -> PanopticScores:
        """Score a network, preserving its training or evaluation mode.

        Parameters
        ----------
        net : on the device of this process
        observer : see :data:`Observer`
        desc : label of the progress bar
        """
        classes = class_infos(self.dataset.metadata)
        evaluator = PanopticEvaluator(classes, self.legacy)
        instances = InstanceEvaluator(classes) if self.config.general.eval_coco else None
        was_training = net.training
        net.eval()
        try:
            with torch.inference_mode():
                for group in equal_size_batches(self._items(desc), self._batch_size, lambda item: item.image):
                    self._compare(net, group, evaluator, instances, observer)
        finally:
            net.train(was_training)
        evaluator.load_state_tensor(sum_over_processes(self.world, evaluator.state_tensor()))
        scores = evaluator.scores()
        return scores if instances is None else replace(scores, instances=self._average_precision(instances))

    def _average_precision(self, instances: InstanceEvaluator) -> InstanceScores:
        """Compute the scores over the images of all processes; a collective call."""
        parts = gather_to_main(self.world, instances.images)
        images = None if parts is None else [image for part in parts for image in part]
        return broadcast_object(self.world, None if images is None else average_precision(instances.classes, images))

    def best_by(self, scores: PanopticScores) -> float:
        """Return the score that selects the best snapshot: PQ, or mIoU with `general.eval_mode = separate`."""
        score = scores.mIoU if self.config.general.eval_mode == "separate" else scores.PQ
        return 0.0 if math.isnan(score) else score

    @property
    def _batch_size(self) -> int:
        # the original pads batches, so its predictions depend on the batch; single images avoid that
        return 1 if self.legacy else self.config.dataloader.val_batch_size or 1

    def _items(self, desc: str) -> Any:
        sampler = ShardSampler(len(self.dataset), self.world.size, self.world.rank)
        loader = BatchLoader(
            self.dataset,
            batch_size=None,
            sampler=sampler,
            collate_fn=_item,
            num_workers=min(self.config.dataloader.num_workers, available_cores(), len(sampler)),
            worker_init_fn=ignore_foreign_signals,
        )
        return progress(loader, len(sampler), desc) if self.world.is_main and not self.quiet else loader

    def _compare(
        self,
        net: PanopticNet,
        group: list[ValidationItem],
        evaluator: PanopticEvaluator,
        instances: InstanceEvaluator | None,
        observer: Observer | None,
    ) -> None:
        options = self.config.general
        num_stuff = self.dataset.num_stuff
        images = PackedSequence([item.image.to(self.world.device, non_blocking=True) for item in group])
        for item, prediction in zip(group, net.predict(images)):
            fused = fuse(
                prediction, num_stuff, options.score_threshold, options.overlap_threshold, options.min_stuff_area
            )
            size, mask = item.native_size, item.mask.numpy()
            if self.legacy:
                size = prediction.size
                mask = resize_nearest(mask, size)
            result = to_result(fused, size, num_stuff)
            counts = PanopticEvaluator(evaluator.classes, self.legacy)
            comparison = counts.add_result(mask, item.cat, item.iscrowd, result, item.id)
            evaluator.merge(counts)
            if instances is not None:
                instances.add(item.mask, item.cat, item.iscrowd, prediction, item.id)
            if observer is not None:
                observer(ValidationResult(item, prediction, result, comparison, counts))


def _item(data: Any) -> ValidationItem:
    return ValidationItem(data["id"], data["img"], data["msk"], data["cat"], data["iscrowd"])
