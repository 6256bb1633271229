"""Score a network on a split: predictions at native image size against the ground truth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from seamseg.config import KINDS, Config
from seamseg.data.dataset import PanopticDataset
from seamseg.data.input_size import InputSize, reference_size
from seamseg.data.loader import shard_loader
from seamseg.data.maps import declared_maps
from seamseg.data.reader import open_reader
from seamseg.data.transforms import Normalise
from seamseg.inference.images import equal_size_batches, input_size
from seamseg.inference.network import run_by_torch
from seamseg.inference.options import Thresholds
from seamseg.inference.predictor import Predictor
from seamseg.inference.results import RESULTS
from seamseg.inference.results.base import ImageResult
from seamseg.inference.results.detections import Detections, choose_detections, ranked_by_masks
from seamseg.inference.results.panoptic import Panoptic
from seamseg.inference.results.semantic import SemanticMap
from seamseg.maps.evaluation.coco_ap import ImageInstances, average_precision, image_instances
from seamseg.maps.evaluation.confusion import ConfusionMatrix
from seamseg.maps.evaluation.evaluator import PanopticEvaluator
from seamseg.maps.evaluation.scores import ClassIoU, DetectionScores, PanopticScores, Scores, SemanticScores
from seamseg.maps.formats.metadata import Metadata, class_infos
from seamseg.maps.idmaps.segments import resize_nearest
from seamseg.maps.panoptic_map import ClassInfo, PanopticResult
from seamseg.maps.predictions import ArrayPrediction
from seamseg.models.heads.semantic import semantic_target
from seamseg.models.network import Network
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.utils.parallel import threaded_map
from seamseg.utils.progress import progress
from seamseg.validation.class_mapping import ClassMapping
from seamseg.validation.items import (
    Observer,
    PanopticValidation,
    Scorer,
    ValidationItem,
    ValidationResult,
    ValidationTransform,
    item_of,
)
from seamseg.validation.metrics import CustomMetrics, scores_of_all


@dataclass(frozen=True)
class Validator:
    """Scores a network on one split of a data set, by the results that `predict` gives.

    Every image counts exactly once for any number of processes: with the same predictions the scores are bit-identical
    for any number of processes.

    `size` is the size of the network's input. With `legacy` it counts as the original. AP is of the detections that
    score above `least_score`. `mapping` maps the predicted classes to the classes of the data set; None if they are the
    same.
    """

    dataset: PanopticDataset
    size: InputSize
    config: Config
    world: World
    legacy: bool = False
    quiet: bool = False
    least_score: float = 0.0
    mapping: ClassMapping | None = None

    @staticmethod
    def open(
        root: str | Path,
        split: str,
        config: Config,
        world: World,
        legacy: bool = False,
        quiet: bool = False,
        size: InputSize | None = None,
    ) -> Validator:
        """Open a split of a data set; the other arguments are the attributes, `size` by default of the configuration.

        InputError if the data set or the split is missing or broken, or a semantic network is to be scored as the
        original, which does not score them.
        """
        scorer = scorer_of(config.kind)
        if legacy and scorer is SemanticScorer:
            raise InputError("`legacy=True`: the original has no evaluation of semantic networks")
        size = size or input_size(config)
        transform = ValidationTransform(size, declared_maps(config, "metric"))
        dataset = PanopticDataset(root, split, transform, open_reader=partial(open_reader, config))
        return Validator(dataset, size, config, world, legacy, quiet)

    def __call__(self, net: nn.Module, observer: Observer | None = None, desc: str = "validate") -> Scores:
        """Score a network as it is trained, on the device of this process, preserving its mode."""
        options, was_training = self.config.dataloader, net.training
        network = run_by_torch(cast(Network, net), Normalise(options.rgb_mean, options.rgb_std), self.world.device)
        reference = reference_size(options.shortest_size, options.longest_max_size)
        predictor = Predictor[Any](network, self.metadata, self.size, Thresholds.of(self.config), reference=reference)
        try:
            return self.score(predictor, observer, desc)
        finally:
            net.train(was_training)

    def score(self, predictor: Predictor[Any], observer: Observer | None = None, desc: str = "validate") -> Scores:
        """Score the results of a predictor; an image that cannot be read is an error.

        The predictor has the classes of the data set, or classes that `mapping` maps to them. `desc` is the label of
        the progress bar.
        """
        scorer: Scorer = scorer_of(self.config.kind)(self, predictor)
        metrics = CustomMetrics(self.config, self.metadata, self.world)
        # the original pads batches, so its predictions depend on the batch; single images avoid that
        size = 1 if self.legacy else self.config.dataloader.val_batch_size or 1
        groups = equal_size_batches(self._items(desc), size, lambda item: item.pixels.shape, tiling=predictor.tiling)

        def run(group: list[ValidationItem]) -> tuple[list[ValidationItem], list[ArrayPrediction]]:
            return group, predictor.raw([item.pixels for item in group])

        with (
            predictor.images_at_a_time() as (threads, begin),
            closing(threaded_map(run, groups, threads, begin=begin)) as results,
        ):
            for found, raw in results:
                for item, prediction in zip(found, raw):
                    validated = scorer.add(item, predictor.in_units(prediction, item.native_size))
                    if metrics:
                        result = validated.result
                        named = result if isinstance(result, ImageResult) else Panoptic.of_map(result, self.metadata)
                        metrics.add(replace(item, result=named), validated.prediction)
                    if observer is not None:
                        observer(validated)
        scores: Scores = metrics.added_to(scores_of_all(self.world, scorer))
        return scores

    def _items(self, desc: str) -> Iterator[ValidationItem]:
        workers = self.config.dataloader.num_workers
        loader = shard_loader(self.dataset, workers, self.world, batch_size=None, collate_fn=item_of)
        shown = self.world.is_main and not self.quiet
        return iter(progress(loader, len(loader), desc) if shown else loader)

    @property
    def map_only(self) -> bool:
        """Whether no AP of a panoptic network and no custom metric is scored, see :attr:`Predictor.map_only`."""
        return not self.config.general.eval_coco and not any(self.config.components("metric"))

    @property
    def metadata(self) -> Metadata:
        """Classes of the data set."""
        return self.dataset.metadata

    @property
    def classes(self) -> list[ClassInfo]:
        """Classes of the data set, stuff first."""
        return class_infos(self.dataset.metadata)


class PanopticScorer:
    """PQ and both mIoUs of the fused maps; with `general.eval_coco` also AP of the detections before fusion.

    At native size; with `legacy` at the size of the network, as in the original. The counts are integers.
    """

    result = Panoptic
    gathered = False
    of_maps, of_things = True, False

    def __init__(self, validator: Validator, predictor: Predictor[Panoptic]) -> None:
        options = validator.config.general
        self._validator, self._predictor = validator, predictor
        self._evaluator = PanopticEvaluator(validator.classes, validator.legacy)
        self._instances = InstanceScorer(validator, predictor, fused=True) if options.eval_coco else None

    def add(self, item: ValidationItem, prediction: ArrayPrediction) -> PanopticValidation:
        """See :class:`Scorer`."""
        size, mask = item.native_size, item.mask.numpy()
        if self._validator.legacy:
            size = prediction.size
            mask = resize_nearest(mask, size)
        result: PanopticResult = self._predictor.result(prediction, size)
        prediction = prediction.on_cpu()  # metrics and observers may keep it
        if self._validator.mapping is not None:
            result = self._validator.mapping.panoptic(result)
        counts = PanopticEvaluator(self._evaluator.classes, self._validator.legacy)
        comparison = counts.add_result(mask, item.cat, item.iscrowd, result, item.id)
        self._evaluator.merge(counts)
        if self._instances is not None:
            self._instances.add(item, prediction)
        return PanopticValidation(item, prediction, result, comparison, counts)

    def state(self) -> np.ndarray:
        """Return the counts of segments and pixels."""
        return self._evaluator.state()

    def scores(self, state: np.ndarray) -> PanopticScores:
        """See :class:`Scorer`; with AP a collective call."""
        self._evaluator.load_state(state)
        scores = self._evaluator.scores()
        if self._validator.config.general.eval_mode == "separate":
            scores = replace(scores, selector="mIoU")
        if self._instances is None:
            return scores
        found: DetectionScores = scores_of_all(self._validator.world, self._instances)
        return replace(scores, instances=found.instances)


class InstanceScorer:
    """COCO's AP of boxes and, with a mask branch, of masks, at native size.

    With `fused`, masks are sampled at native size, as for a panoptic map; by default as by the original's evaluation
    and `seamseg predict --format coco-results`.
    """

    result = Detections
    gathered = True
    of_maps, of_things = False, True

    def __init__(self, validator: Validator, predictor: Predictor[Any], fused: bool = False) -> None:
        self._validator = validator
        self._fused, self._images = fused, list[ImageInstances]()
        self._for_metrics = not fused and any(validator.config.components("metric"))

    def add(self, item: ValidationItem, prediction: ArrayPrediction) -> ValidationResult:
        """See :class:`Scorer`."""
        chosen = choose_detections(prediction, self._validator.dataset.num_stuff, self._validator.least_score)
        if prediction.queries is not None:
            chosen = ranked_by_masks(chosen)
        if self._validator.mapping is not None:
            chosen = self._validator.mapping.detections(chosen)
        if self._fused or not self._validator.legacy or len(chosen.scores):
            truth = self._validator.classes, item.mask, item.cat, item.iscrowd
            self._images.append(image_instances(*truth, chosen, item.id, by_nearest=not self._fused))
        result = Detections.of(chosen, item.native_size, self._validator.metadata) if self._for_metrics else None
        return ValidationResult(item, prediction, result)

    def state(self) -> list[ImageInstances]:
        """Return the instances of each image."""
        return self._images

    def scores(self, state: list[ImageInstances]) -> DetectionScores:
        """See :class:`Scorer`."""
        with_masks = KINDS[self._validator.config.kind].has_masks
        instances = average_precision(self._validator.classes, state, with_masks)
        return DetectionScores(instances, n_images=len(self._validator.dataset))


class SemanticScorer:
    """IoU of the class maps at native size; groups (crowds) count as pixels of their class."""

    result = SemanticMap
    gathered = False
    of_maps, of_things = False, False

    def __init__(self, validator: Validator, predictor: Predictor[SemanticMap]) -> None:
        self._validator, self._predictor = validator, predictor
        self._confusion = ConfusionMatrix(validator.metadata.num_classes)

    def add(self, item: ValidationItem, prediction: ArrayPrediction) -> ValidationResult:
        """See :class:`Scorer`."""
        truth = semantic_target(item.mask.long(), torch.as_tensor(item.cat))
        result = self._predictor.result(prediction, item.native_size)
        if self._validator.mapping is not None:
            classes, metadata = self._validator.mapping.class_map(result.classes), self._validator.metadata
            result = replace(result, classes=classes, metadata=metadata.without_images())
        self._confusion.add(truth.to(torch.uint8).numpy(), result.classes)
        return ValidationResult(item, prediction, result)

    def state(self) -> np.ndarray:
        """Return the counts of pixels."""
        return self._confusion.counts

    def scores(self, state: np.ndarray) -> SemanticScores:
        """See :class:`Scorer`."""
        confusion = self._confusion
        confusion.counts = state
        classes = [ClassIoU(info, iou) for info, iou in zip(self._validator.classes, confusion.iou().tolist())]
        n_images = len(self._validator.dataset)
        return SemanticScores(confusion.miou(), confusion.accuracy(), classes, n_images=n_images)


SCORERS = (PanopticScorer, InstanceScorer, SemanticScorer)


def scorer_of(kind: str) -> Any:
    """Return the class of the :class:`Scorer` of a kind of network; None if it is not scored on a data set."""
    return next((scorer for scorer in SCORERS if scorer.result is RESULTS[kind]), None)
