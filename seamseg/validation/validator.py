"""Score a network on a split: predictions at native image size against the ground truth.

A scorer has the life cycle of a :class:`Metric`, `result`, the type of the results that it scores, `of_maps`, whether
these are panoptic maps, and `of_things`, whether stuff does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from seamseg.config import Config
from seamseg.data.dataset import PanopticDataset
from seamseg.data.input_size import InputSize, reference_size
from seamseg.data.loader import shard_loader
from seamseg.data.maps import declared_maps
from seamseg.data.reader import open_reader
from seamseg.inference.images import equal_size_batches, network_input
from seamseg.inference.network import run_by_torch
from seamseg.inference.options import InferenceOptions
from seamseg.inference.predictor import Predictor
from seamseg.maps.evaluation.coco_ap import ImageInstances, average_precision, image_instances
from seamseg.maps.evaluation.confusion import ConfusionMatrix
from seamseg.maps.evaluation.evaluator import Comparison, PanopticEvaluator
from seamseg.maps.evaluation.metric import Metric, Selection
from seamseg.maps.evaluation.scores import ClassIoU, DetectionScores, PanopticScores, Scores, SemanticScores
from seamseg.maps.folder import ReadMap
from seamseg.maps.formats.metadata import ImageInfo, Metadata, class_infos
from seamseg.maps.idmaps.segments import resize_nearest
from seamseg.maps.panoptic_map import ClassInfo, PanopticResult
from seamseg.maps.predictions import ArrayPrediction
from seamseg.models.heads.semantic import semantic_target
from seamseg.models.network import Network
from seamseg.results import Detections, ImageResult, Panoptic, SemanticMap
from seamseg.results.detections import choose_detections, ranked_by_masks
from seamseg.structures import Normalise
from seamseg.utils.distributed import World, gather_objects, sum_over_processes
from seamseg.utils.errors import InputError, SeamsegError, instance_of, named_errors
from seamseg.utils.parallel import threaded_map
from seamseg.utils.progress import progress
from seamseg.validation.class_mapping import ClassMapping


@dataclass(frozen=True)
class ValidationItem:
    """An image: network input `H x W x 3` uint8, ids `L x h x w` at native size, classes, maps of metrics."""

    id: str
    pixels: np.ndarray
    mask: Tensor
    cat: Sequence[int]
    iscrowd: Sequence[int]
    maps: Mapping[str, np.ndarray] = field(default_factory=dict)
    result: ImageResult | None = None

    @property
    def native_size(self) -> tuple[int, int]:
        """Native size `(h, w)` of the image."""
        return int(self.mask.shape[-2]), int(self.mask.shape[-1])


@dataclass(frozen=True)
class ValidationResult:
    """An image with its prediction and its ground truth, as a validation passes it to an :data:`Observer`.

    The prediction is the network's own, in its classes. `result` is what is scored, at native size and in the classes
    of the data set: the panoptic map, the class map, or, for custom metrics only, the detections that count.
    """

    item: ValidationItem
    prediction: ArrayPrediction
    result: Any


@dataclass(frozen=True)
class PanopticValidation(ValidationResult):
    """An image of a panoptic validation, with the match of the segments and the counts of this image only."""

    result: PanopticResult
    comparison: Comparison
    counts: PanopticEvaluator


Observer = Callable[[Any], None]
"""Called with the :class:`ValidationResult` of each image of this process."""


@dataclass(frozen=True)
class ValidationTransform:
    """Transforms the image as in prediction and leaves the ground truth unchanged."""

    size: InputSize
    maps: Mapping[str, ReadMap]

    def __call__(self, image: Image.Image, mask: np.ndarray, info: ImageInfo) -> dict[str, Any]:
        """Return what :func:`item_of` takes."""
        # a tensor, which the processes of a loader share
        pixels = torch.from_numpy(network_input(image, self.size))
        return {"img": pixels, "msk": torch.from_numpy(mask), "cat": info.cat, "iscrowd": info.iscrowd}


def item_of(data: Any) -> ValidationItem:
    """Return the item of what a :class:`ValidationTransform` has made."""
    maps = {name: values.numpy() for name, values in data.get("maps", {}).items()}
    return ValidationItem(data["id"], data["img"].numpy(), data["msk"], data["cat"], data["iscrowd"], maps)


@dataclass(frozen=True)
class Validator:
    """Scores a network on one split of a data set, by the results that `predict` gives.

    The scores of the same predictions are bit-identical for any number of processes. `size` is the size of the
    network's input. With `legacy` it counts as the original. AP is of the detections that score above `least_score`.
    `mapping` maps the predicted classes to those of the data set; None if they are the same.
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
        """Open a split of a data set; the others are attributes, `size` by default that of the configuration."""
        if legacy and not scorer_of(config.general.kind).of_original:
            raise InputError("`legacy=True`: the original has no evaluation of semantic networks")
        size = size or InferenceOptions().input_size(config)
        transform = ValidationTransform(size, declared_maps(config, "metric"))
        dataset = PanopticDataset(root, split, transform, open_reader=partial(open_reader, config))
        return Validator(dataset, size, config, world, legacy, quiet)

    def __call__(self, net: nn.Module, observer: Observer | None = None, desc: str = "validate") -> Scores:
        """Score a network as it is trained, on the device of this process, preserving its mode."""
        options, was_training = self.config.dataloader, net.training
        device = self.world.device
        normalise = Normalise(options.rgb_mean, options.rgb_std, device)
        network = run_by_torch(cast(Network, net), normalise, device)
        reference = reference_size(options.shortest_size, options.longest_max_size)
        predictor = Predictor[Any](
            network, self.metadata, self.size, InferenceOptions().thresholds(self.config), reference=reference
        )
        try:
            return self.score(predictor, observer, desc)
        finally:
            net.train(was_training)

    def score(self, predictor: Predictor[Any], observer: Observer | None = None, desc: str = "validate") -> Scores:
        """Score the results of a predictor, in the classes of the data set or those of `mapping`."""
        scorer = scorer_of(self.config.general.kind)(self, predictor)
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
                        metrics.add(replace(item, result=validated.result), validated.prediction)
                    if observer is not None:
                        observer(validated)
        scores: Scores = metrics.added_to(scores_of_all(self.world, scorer))
        return scores

    def _items(self, desc: str) -> Iterator[ValidationItem]:
        workers = self.config.dataloader.num_workers
        loader = shard_loader(self.dataset, workers, self.world, batch_size=None, collate_fn=item_of)
        shown = self.world.rank == 0 and not self.quiet
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
    """PQ and mIoUs of the fused maps, with `legacy` at network size; with `eval_coco` AP before fusion."""

    result = Panoptic
    gathered = False
    of_maps, of_things, of_original = True, False, True

    def __init__(self, validator: Validator, predictor: Predictor[Panoptic]) -> None:
        options = validator.config.general
        self._validator, self._predictor = validator, predictor
        self._evaluator = PanopticEvaluator(validator.classes, validator.legacy)
        self._instances = InstanceScorer(validator, predictor, fused=True) if options.eval_coco else None

    def add(self, item: ValidationItem, prediction: ArrayPrediction) -> PanopticValidation:
        """See :class:`Metric`."""
        size, mask = item.native_size, item.mask.numpy()
        if self._validator.legacy:
            size = prediction.size
            mask = resize_nearest(mask, size)
        result = self._predictor.result(prediction, size)
        prediction = prediction.on_cpu()  # metrics and observers may keep it
        if self._validator.mapping is not None:
            result = Panoptic.of_map(self._validator.mapping.panoptic(result), self._validator.metadata)
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
        """See :class:`Metric`; with AP a collective call."""
        self._evaluator.load_state(state)
        scores = self._evaluator.scores()
        if self._validator.config.general.eval_mode == "separate":
            scores = replace(scores, selector="mIoU")
        if self._instances is None:
            return scores
        found: DetectionScores = scores_of_all(self._validator.world, self._instances)
        return replace(scores, instances=found.instances)


class InstanceScorer:
    """COCO AP of boxes and masks at native size; `fused` samples masks as for a panoptic map."""

    result = Detections
    gathered = True
    of_maps, of_things, of_original = False, True, True

    def __init__(self, validator: Validator, predictor: Predictor[Any], fused: bool = False) -> None:
        self._validator = validator
        self._fused, self._images = fused, list[ImageInstances]()
        self._for_metrics = not fused and any(validator.config.components("metric"))

    def add(self, item: ValidationItem, prediction: ArrayPrediction) -> ValidationResult:
        """See :class:`Metric`."""
        chosen = choose_detections(prediction, self._validator.metadata.num_stuff, self._validator.least_score)
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
        """See :class:`Metric`."""
        with_masks = self._validator.config.parts_of_kind.has_masks
        instances = average_precision(self._validator.classes, state, with_masks)
        return DetectionScores(instances, n_images=len(self._validator.dataset))


class SemanticScorer:
    """IoU of the class maps at native size; groups (crowds) count as pixels of their class."""

    result = SemanticMap
    gathered = False
    of_maps, of_things, of_original = False, False, False

    def __init__(self, validator: Validator, predictor: Predictor[SemanticMap]) -> None:
        self._validator, self._predictor = validator, predictor
        self._confusion = ConfusionMatrix(validator.metadata.num_classes)

    def add(self, item: ValidationItem, prediction: ArrayPrediction) -> ValidationResult:
        """See :class:`Metric`."""
        truth = semantic_target(item.mask.long(), torch.as_tensor(item.cat))
        result = self._predictor.result(prediction, item.native_size)
        if self._validator.mapping is not None:
            classes, metadata = self._validator.mapping.class_map(result.classes), self._validator.metadata
            result = replace(result, classes=classes, metadata=replace(metadata, images=[]))
        self._confusion.add(truth.to(torch.uint8).numpy(), result.classes)
        return ValidationResult(item, prediction, result)

    def state(self) -> np.ndarray:
        """Return the counts of pixels."""
        return self._confusion.counts

    def scores(self, state: np.ndarray) -> SemanticScores:
        """See :class:`Metric`."""
        confusion = self._confusion
        confusion.counts = state
        classes = [ClassIoU(info, iou) for info, iou in zip(self._validator.classes, confusion.iou().tolist())]
        n_images = len(self._validator.dataset)
        return SemanticScores(confusion.miou(), confusion.accuracy(), classes, n_images=n_images)


SCORERS = (PanopticScorer, InstanceScorer, SemanticScorer)


def scorer_of(kind: str) -> Any:
    """Return the class of the scorer of a kind of network; None if it is not scored on a data set."""
    return next((scorer for scorer in SCORERS if kind in scorer.result.kinds), None)


def scores_of_all(world: World, scorer: Any, errors: Callable[[], Any] = nullcontext) -> Any:
    """Return the scores of a scorer or :class:`Metric` over the images of all processes; a collective call.

    Arrays are summed, and each process computes the scores; lists are joined in the main process, which computes them.
    `errors` makes a context that names the scorer in errors of its code.
    """
    with errors():
        state: Any = scorer.state()
        array = np.asarray(state) if not scorer.gathered else None
        if array is None and not isinstance(state, list):
            raise TypeError(f"state() must return a list, returned {type(state).__name__}")
        if array is not None and array.dtype.kind not in "biuf":
            raise TypeError(f"state() must return a vector of numbers, returned {type(state).__name__}")
    if array is None:
        parts = gather_objects(world, state)
        with errors():
            scores = scorer.scores([x for part in parts for x in part]) if world.rank == 0 else None
        return gather_objects(world, scores)[0]
    # a process without images has zeros, which may be integers beside the fractions of another one
    shapes, integers = zip(*gather_objects(world, (array.shape, array.dtype.kind != "f")))
    with errors():
        if len(set(shapes)) > 1:
            raise ValueError(f"state() returned vectors of different shapes in the processes: {set(shapes)}")
    summed = sum_over_processes(world, torch.from_numpy(array.astype(np.int64 if all(integers) else np.float64)))
    with errors():
        return scorer.scores(summed.numpy())


class CustomMetrics:
    """The custom metrics of a configuration."""

    def __init__(self, config: Config, metadata: Metadata, world: World) -> None:
        self._world, self._options = world, config.general
        self._metrics: dict[str, Metric] = {}
        for component, keys in config.components("metric"):
            with named_errors(f"metric {component.name}", component.module):
                metric = instance_of(Metric, component.make(keys), f"{component.section} ({component.file})")
                if not isinstance(metric.higher_is_better, bool):
                    raise TypeError(f"higher_is_better must be True or False, is {metric.higher_is_better!r}")
                metric.begin(metadata.num_stuff, metadata.num_thing)
            self._metrics[component.name] = metric

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def add(self, item: ValidationItem, prediction: ArrayPrediction) -> None:
        """Add an image of this process."""
        for name, metric in self._metrics.items():
            with named_errors(f"metric {name}", type(metric).__module__):
                # a copy for each: one may change it
                metric.add(*(deepcopy((item, prediction)) if len(self._metrics) > 1 else (item, prediction)))

    def added_to(self, scores: Scores) -> Scores:
        """Add the scores of the metrics over all processes; SeamsegError if one fails or two share a name."""
        found: dict[str, float] = {}
        selected = None
        others = scores.to_json() if self._metrics else {}
        for name, metric in self._metrics.items():
            errors = partial(named_errors, f"metric {name}", type(metric).__module__)
            given = scores_of_all(self._world, metric, errors)
            with errors():
                own = {score: float(value) for score, value in given.items()}
                if not own:
                    raise ValueError("scores() returned no numbers")
            taken = [score for score in own if score in found or score in others]
            if taken:
                raise SeamsegError(f"metric {name}: there is another score {taken[0]}: rename it")
            found |= own
            if name == self._options.eval_mode:
                selected = Selection(*next(iter(own.items())), metric.higher_is_better, percent=False)
        if not found:
            return scores
        return replace(scores, metrics=found, selected=selected)
