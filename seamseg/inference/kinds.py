"""What each kind of network makes of its outputs: the type of the result, and the options that apply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from seamseg.formats.metadata import Metadata
from seamseg.fusion import fuse, merge_queries, to_result
from seamseg.inference.classification import Classification
from seamseg.inference.detections import Detections
from seamseg.inference.options import InferenceOptions, Thresholds
from seamseg.inference.photo_result import PhotoResult
from seamseg.inference.result import Panoptic, only_classes
from seamseg.inference.semantic import SemanticMap
from seamseg.predictions import ArrayPrediction
from seamseg.utils.errors import InputError


@dataclass(frozen=True)
class ResultSettings:
    """What a result depends on besides the output of the network.

    Attributes
    ----------
    metadata : the classes of the model
    thresholds : thresholds of scores, and of the fusion
    classes : indices of the classes in results; None for all
    """

    metadata: Metadata
    thresholds: Thresholds
    classes: Sequence[int] | None = None


SPECIAL = ("score_threshold", "overlap_threshold", "min_stuff_area", "tta_fusion", "probabilities")
"""Options that not every kind of network uses."""


@dataclass(frozen=True)
class InferenceKind:
    """Inference with one kind of network.

    Attributes
    ----------
    name : name of the kind, as in `[general] kind`
    result : makes the result of an image of `(height, width)` from the output of the network
    options : names of those :class:`seamseg.inference.options.InferenceOptions` of :data:`SPECIAL` that it uses
    """

    name: str
    result: Callable[[ArrayPrediction, tuple[int, int], ResultSettings], PhotoResult]
    options: tuple[str, ...] = ()

    def check(self, options: InferenceOptions) -> None:
        """Raise InputError if an option has no effect on this kind of network."""
        defaults = {field.name: field.default for field in fields(InferenceOptions)}
        for name in SPECIAL:
            if getattr(options, name) != defaults[name] and name not in self.options:
                raise InputError(f"`{name}` has no effect: the model is of kind {self.name}")


def _panoptic(prediction: ArrayPrediction, size: tuple[int, int], settings: ResultSettings) -> Panoptic:
    t, num_stuff = settings.thresholds, settings.metadata.num_stuff
    if prediction.queries is None:
        thresholds = (t.score_threshold, t.overlap_threshold, t.min_stuff_area)
        fused = fuse(prediction, num_stuff, *thresholds, native_size=size)
    else:
        fused = merge_queries(
            prediction.queries, prediction.size, size, num_stuff, t.score_threshold, t.overlap_threshold
        )
    result = to_result(fused, size, num_stuff)
    return Panoptic.of(
        result if settings.classes is None else only_classes(result, settings.classes), settings.metadata
    )


def _detections(prediction: ArrayPrediction, size: tuple[int, int], settings: ResultSettings) -> Detections:
    return Detections.of(prediction, size, settings.metadata, settings.thresholds.score_threshold, settings.classes)


INFERENCE_KINDS = {
    kind.name: kind
    for kind in (
        InferenceKind("panoptic", _panoptic, ("score_threshold", "overlap_threshold", "min_stuff_area")),
        InferenceKind("instance_seg", _detections, ("score_threshold",)),
        InferenceKind("detection", _detections, ("score_threshold",)),
        InferenceKind("classification", lambda p, size, s: Classification.of(p, size, s.metadata, s.classes)),
        InferenceKind(
            "semantic",
            lambda p, size, s: SemanticMap.of(p, size, s.metadata, s.classes),
            ("tta_fusion", "probabilities"),
        ),
    )
}
"""By name."""
