"""How far the outputs of an exported file differ from those of the network; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seamseg.fusion import FusedMap, merge_queries
from seamseg.inference.queries import prediction_of_queries
from seamseg.maps.formats.exported import QUERY_OUTPUTS, ExportedMetadata

_SAME_BOX = 1.0
"""Detections of a class whose corners differ by at most this many pixels are the same."""


@dataclass(frozen=True)
class Agreement:
    """Differences of the outputs for one image; None for those that the network does not have.

    Attributes
    ----------
    detections : number of detections of the network, of the file, and of both
    box, score, mask_logit : largest difference of the detections of both: pixels, score, logit
    equal_pixels : fraction of the pixels whose class is equal
    equal_segments : fraction of the pixels of the panoptic map that are void in both, or of the same segment: those of
        one class that have more than half of their union in common
    probability : largest difference, of 255
    values : largest difference of logits and features, as a fraction of the largest value of the output
    maps : largest difference of each map of custom heads, by name
    """

    detections: tuple[int, int, int] | None = None
    box: float | None = None
    score: float | None = None
    mask_logit: float | None = None
    equal_pixels: float | None = None
    equal_segments: float | None = None
    probability: int | None = None
    values: float | None = None
    maps: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = []
        if self.detections is not None:
            ours, theirs, both = self.detections
            parts.append(f"detections {both} of {ours} equal" + (f" ({theirs} in the file)" if theirs != ours else ""))
        texts = {
            "box": "box {:.2g} px",
            "score": "score {:.2g}",
            "mask_logit": "mask logit {:.2g}",
            "equal_pixels": "classes of {:.4g} % of pixels equal",
            "equal_segments": "segments of {:.4g} %",
            "probability": "probability {}/255",
            "values": "values {:.2g} of the largest",
        }
        for name, text in texts.items():
            if (value := getattr(self, name)) is not None:
                parts.append(text.format(100 * value if name.startswith("equal_") else value))
        parts += [f"{name} {value:.2g}" for name, value in self.maps.items()]
        return ", ".join(parts)


def compare(
    wanted: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    inputs: Mapping[str, np.ndarray],
    exported: ExportedMetadata | None = None,
) -> Agreement:
    """Compare the outputs of network and file for the same inputs, by name; `exported` is what the file states."""
    if exported is not None and exported.of_queries:
        return _queries(wanted, found, inputs, exported)
    if "size" not in inputs or not {"count", "classmap"} & wanted.keys():
        return Agreement(values=max(_relative(wanted[name], found[name]) for name in wanted))
    height, width = (int(side) for side in inputs["size"])
    differences: dict[str, Any] = {"maps": _map_differences(wanted, found, (height, width), exported)}
    if "classmap" in wanted:
        ours, theirs = (values["classmap"][:height, :width] for values in (wanted, found))
        differences["equal_pixels"] = float((ours == theirs).mean())
    if "probability" in wanted:
        ours, theirs = (values["probability"][:height, :width].astype(np.int64) for values in (wanted, found))
        differences["probability"] = int(np.abs(ours - theirs).max())
    return Agreement(**(_detections(wanted, found) if "count" in wanted else {}), **differences)


def _map_differences(
    wanted: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    size: tuple[int, int],
    exported: ExportedMetadata | None,
) -> dict[str, float]:
    """Return the largest difference of each map of custom heads in the valid part of the image."""
    height, width = size
    return {
        name: float(np.abs(wanted[name].astype(np.float64) - found[name])[..., :height, :width].max())
        for name in (() if exported is None else (*exported.maps, *("ids",) * exported.with_ids))
    }


def _queries(
    wanted: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    inputs: Mapping[str, np.ndarray],
    exported: ExportedMetadata,
) -> Agreement:
    """Return the differences of a network of queries, with those of its maps, as a predictor makes them."""
    size = int(inputs["size"][0]), int(inputs["size"][1])
    padded_size = int(inputs["image"].shape[2]), int(inputs["image"].shape[3])
    classes, num_stuff = np.array(exported.query_classes), exported.metadata.num_stuff
    thresholds = {name: exported.thresholds[name] for name in ("score_threshold", "overlap_threshold")}
    class_maps, panoptic_maps = [], []
    for outputs in (wanted, found):
        class_logits, mask_logits = (outputs[name] for name in QUERY_OUTPUTS)
        prediction = prediction_of_queries(class_logits, mask_logits, size, padded_size, classes, num_stuff)
        assert prediction.queries is not None
        class_maps.append(prediction.semantic)
        panoptic_maps.append(merge_queries(prediction.queries, size, size, num_stuff, **thresholds))
    return Agreement(
        equal_pixels=float(np.mean(class_maps[0] == class_maps[1])),
        equal_segments=_equal_segments(*panoptic_maps),
        values=max(_relative(wanted[name], found[name]) for name in wanted),
    )


def _equal_segments(ours: FusedMap, theirs: FusedMap) -> float:
    """Return the fraction :attr:`Agreement.equal_segments` of two maps of one size; ids may differ."""
    shape = len(ours.categories), len(theirs.categories)
    pairs = np.ravel_multi_index((ours.ids, theirs.ids), shape)
    common = np.bincount(pairs.ravel(), minlength=shape[0] * shape[1]).reshape(shape)
    union = common.sum(1, keepdims=True) + common.sum(0) - common
    equal = np.equal.outer(ours.categories, theirs.categories) & (2 * common > union)
    equal[0, 0] = True  # void is no segment, which needs no overlap
    return float(common[equal].sum() / common.sum())


def _relative(wanted: np.ndarray, found: np.ndarray) -> float:
    return float(np.abs(found.astype(np.float64) - wanted).max() / max(float(np.abs(wanted).max()), 1e-12))


def _detections(wanted: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the differences of detections, each with the nearest one of its class: equal scores may change places."""
    ours, theirs = int(wanted["count"]), int(found["count"])
    distance = np.abs(wanted["boxes"][:ours, None] - found["boxes"][None, :theirs]).max(axis=2)
    distance[wanted["classes"][:ours, None] != found["classes"][None, :theirs]] = np.inf
    pairs = []
    for row in range(ours):
        if theirs and distance[row].min() <= _SAME_BOX:
            column = int(distance[row].argmin())
            pairs.append((row, column))
            distance[:, column] = np.inf
    rows, columns = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    differences: dict[str, Any] = {"detections": (ours, theirs, len(pairs))}
    for name, key in (("box", "boxes"), ("score", "scores"), ("mask_logit", "mask_logits")):
        if key in wanted:
            gaps = np.abs(wanted[key][rows] - found[key][columns])
            differences[name] = float(gaps.max()) if gaps.size else 0.0
    return differences
