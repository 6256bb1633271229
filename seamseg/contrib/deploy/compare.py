"""How far the outputs of an exported file differ from those of the network; no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
    probability : largest difference, of 255
    values : largest difference of logits and features, as a fraction of the largest value of the output
    maps : largest difference of each map of custom heads, by name
    """

    detections: tuple[int, int, int] | None = None
    box: float | None = None
    score: float | None = None
    mask_logit: float | None = None
    equal_pixels: float | None = None
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
            "probability": "probability {}/255",
            "values": "values {:.2g} of the largest",
        }
        for name, text in texts.items():
            if (value := getattr(self, name)) is not None:
                parts.append(text.format(100 * value if name == "equal_pixels" else value))
        parts += [f"{name} {value:.2g}" for name, value in self.maps.items()]
        return ", ".join(parts)


def compare(
    wanted: Mapping[str, np.ndarray],
    found: Mapping[str, np.ndarray],
    inputs: Mapping[str, np.ndarray],
    maps: Iterable[str] = (),
) -> Agreement:
    """Compare the outputs of network and file for the same inputs, by name; `maps` are further outputs."""
    if "size" not in inputs or not {"count", "classmap"} & wanted.keys():
        return Agreement(values=max(_relative(wanted[name], found[name]) for name in wanted))
    height, width = (int(side) for side in inputs["size"])
    gaps = {name: np.abs(wanted[name].astype(np.float64) - found[name])[..., :height, :width] for name in maps}
    differences: dict[str, Any] = {"maps": {name: float(gap.max()) for name, gap in gaps.items()}}
    if "classmap" in wanted:
        ours, theirs = (values["classmap"][:height, :width] for values in (wanted, found))
        differences["equal_pixels"] = float((ours == theirs).mean())
    if "probability" in wanted:
        ours, theirs = (values["probability"][:height, :width].astype(np.int64) for values in (wanted, found))
        differences["probability"] = int(np.abs(ours - theirs).max())
    return Agreement(**(_detections(wanted, found) if "count" in wanted else {}), **differences)


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
