"""The numbers an evaluation ends with, all of them fractions; NaN where there was nothing to measure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from seamseg.panoptic_map import ClassInfo


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class; PQ, SQ, RQ are NaN if it has neither ground truth nor predictions, IoU if it has no pixel.

    `PQ_dagger` is PQ for things; for stuff it is the sum of the IoUs of the pairs of segments of the class that
    share a pixel over the number of ground-truth segments, NaN if there are none.
    """

    info: ClassInfo
    PQ: float
    SQ: float
    RQ: float
    PQ_dagger: float
    IoU: float
    TP: int
    FP: int
    FN: int

    def to_json(self) -> dict[str, Any]:
        """The scores under their names; null for NaN."""
        out: dict[str, Any] = {"id": self.info.id, "isthing": self.info.isthing}
        for key in ("PQ", "SQ", "RQ", "PQ_dagger", "IoU"):
            out[key] = or_none(getattr(self, key))
        return {**out, "TP": self.TP, "FP": self.FP, "FN": self.FN}


@dataclass(frozen=True)
class ClassAP:
    """Average precision of one class of things; NaN if it does not occur."""

    info: ClassInfo
    AP: float


@dataclass(frozen=True)
class APScores:
    """COCO's average precision: of IoU .5 to .95, .5, .75, and of instances of up to 32², up to 96² and more pixels."""

    AP: float
    AP50: float
    AP75: float
    AP_small: float
    AP_medium: float
    AP_large: float
    per_class: list[ClassAP]

    def to_json(self) -> dict[str, Any]:
        """The scores under their names, null for NaN; AP of each class under `per_class`."""
        out: dict[str, Any] = {key: or_none(getattr(self, key)) for key in AP_NUMBERS}
        out["per_class"] = dict(zip(_unique_names(self.per_class), (or_none(c.AP) for c in self.per_class)))
        return out


AP_NUMBERS = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")
"""Keys of the numbers of :class:`APScores`, in the order of pycocotools."""


@dataclass(frozen=True)
class InstanceScores:
    """Average precision of boxes and of masks; None without masks."""

    box: APScores
    mask: APScores | None

    @property
    def kinds(self) -> dict[str, APScores]:
        """`box` and `mask`, as far as there are scores"""
        return {"box": self.box} if self.mask is None else {"box": self.box, "mask": self.mask}


@dataclass(frozen=True)
class PanopticScores:
    """Means over classes, and the classes themselves.

    Attributes
    ----------
    PQ, SQ, RQ : panoptic, segmentation and recognition quality, of all classes; also of things and of stuff alone
    PQ_dagger : PQ with the mean IoU in the place of PQ for stuff (Porzi et al., CVPR 2019)
    mIoU : mean IoU of the pixels of the classes
    n_images : images that were compared
    per_class : one entry a class
    instances : average precision of the detections, None if it was not measured
    """

    PQ: float
    SQ: float
    RQ: float
    PQ_things: float
    SQ_things: float
    RQ_things: float
    PQ_stuff: float
    SQ_stuff: float
    RQ_stuff: float
    PQ_dagger: float
    mIoU: float
    n_images: int
    per_class: list[ClassScores]
    instances: InstanceScores | None = None

    def to_json(self) -> dict[str, Any]:
        """What `--json` writes: fractions 0-1, null where there was nothing to measure; `per_class` by name.

        With `instances` also `box` and `mask`, each with its AP numbers and `per_class`.
        """
        out: dict[str, Any] = {key: or_none(getattr(self, key)) for key in HEADLINE}
        out["n_images"] = self.n_images
        out["per_class"] = dict(zip(_unique_names(self.per_class), (c.to_json() for c in self.per_class)))
        if self.instances is not None:
            out.update({kind: scores.to_json() for kind, scores in self.instances.kinds.items()})
        return out


HEADLINE = (
    "PQ", "SQ", "RQ",
    "PQ_things", "SQ_things", "RQ_things",
    "PQ_stuff", "SQ_stuff", "RQ_stuff",
    "PQ_dagger", "mIoU",
)  # fmt: skip
"""Keys of the headline numbers, in the order of the JSON."""


def summarise(per_class: Sequence[ClassScores], n_images: int) -> PanopticScores:
    """Average over the classes that have something to measure.

    Parameters
    ----------
    per_class : scores of each class
    n_images : images that were compared
    """
    things = [c for c in per_class if c.info.isthing]
    stuff = [c for c in per_class if not c.info.isthing]
    means: dict[str, Any] = {
        f"{key}{suffix}": mean(getattr(c, key) for c in group)
        for suffix, group in (("", per_class), ("_things", things), ("_stuff", stuff))
        for key in ("PQ", "SQ", "RQ")
    }
    return PanopticScores(
        **means,
        PQ_dagger=mean(c.PQ_dagger for c in per_class),
        mIoU=mean(c.IoU for c in per_class),
        n_images=n_images,
        per_class=list(per_class),
    )


def mean(values: Iterable[float]) -> float:
    """Mean of the values that are not NaN, NaN if there are none."""
    known = [v for v in values if not math.isnan(v)]
    return math.fsum(known) / len(known) if known else math.nan


def or_none(value: float) -> float | None:
    """The value as JSON has it: None for NaN."""
    return None if math.isnan(value) else value


def _unique_names(per_class: Sequence[ClassScores] | Sequence[ClassAP]) -> list[str]:
    infos = [c.info for c in per_class]
    names = [info.name for info in infos]
    return [n if names.count(n) == 1 else f"{n} ({info.id})" for n, info in zip(names, infos)]
