"""Scores of an evaluation, as fractions, NaN if undefined; their JSON and their table in percent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from seamseg.evaluation.mapped_classes import MappedClasses, ScoresByClass
from seamseg.evaluation.metric import KindScores, Selection, known, or_none
from seamseg.panoptic_map import ClassInfo
from seamseg.utils.errors import counted, one_line


class Scores(Protocol):
    """The scores of a validation, of any kind of network."""

    @property
    def n_images(self) -> int:
        """Number of images."""

    @property
    def best(self) -> float:
        """The value of the selection."""

    @property
    def selection(self) -> Selection:
        """The score that selects the best snapshot; of built-in kinds of network a fraction, 0 if it is undefined."""

    def to_json(self) -> dict[str, Any]:
        """Return the content of the JSON file and of a line of `metrics.jsonl`."""

    def scalars(self) -> dict[str, float]:
        """Return the scores by TensorBoard tag, without those that are NaN."""

    def line(self) -> str:
        """Format the main scores in percent, for the text log."""

    def table(self) -> str:
        """Format all scores as a plain-text table in percent."""


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class; PQ, SQ, RQ are NaN without ground truth and predictions, IoU without pixels.

    `PQ_dagger` is PQ for things; for stuff, the sum of the IoUs of all overlapping pairs of segments of the class
    divided by the number of ground-truth segments, NaN if there are none.
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
        """Return the scores by name, None for NaN."""
        out: dict[str, Any] = {"id": self.info.id, "isthing": self.info.isthing}
        for key in ("PQ", "SQ", "RQ", "PQ_dagger", "IoU"):
            out[key] = or_none(getattr(self, key))
        return {**out, "TP": self.TP, "FP": self.FP, "FN": self.FN}


@dataclass(frozen=True)
class ClassAP:
    """Average precision of one thing class; NaN if it does not occur."""

    info: ClassInfo
    AP: float


@dataclass(frozen=True)
class APScores:
    """COCO's average precision: IoU .5 to .95, .5, .75; instances of up to 32², up to 96² and more pixels."""

    AP: float
    AP50: float
    AP75: float
    AP_small: float
    AP_medium: float
    AP_large: float
    per_class: list[ClassAP]

    def to_json(self) -> dict[str, Any]:
        """Return the scores by name, None for NaN; the AP of each class under `per_class`."""
        out: dict[str, Any] = {key: or_none(getattr(self, key)) for key in AP_NUMBERS}
        out["per_class"] = dict(zip(_unique_names(self.per_class), (or_none(c.AP) for c in self.per_class)))
        return out


AP_NUMBERS = ("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large")
"""Fields of :class:`APScores`, in the order of pycocotools."""


@dataclass(frozen=True)
class InstanceScores:
    """Average precision of boxes and masks; `mask` is None without masks."""

    box: APScores
    mask: APScores | None

    @property
    def kinds(self) -> dict[str, APScores]:
        """The available scores: `box`, and `mask` if not None."""
        return {"box": self.box} if self.mask is None else {"box": self.box, "mask": self.mask}

    def by_class(self) -> ScoresByClass:
        """Return the AP of each thing class, as `box AP` and `mask AP`."""
        return {f"{kind} AP": [(c.info, c.AP) for c in ap.per_class] for kind, ap in self.kinds.items()}

    def scalars(self) -> dict[str, float]:
        """See :meth:`Scores.scalars`."""
        values: dict[str, float] = {}
        for kind, ap in self.kinds.items():
            values |= {f"val/{kind}_{name}": getattr(ap, name) for name in AP_NUMBERS}
            values |= {f"val_{kind}_AP/{c.info.name}": c.AP for c in ap.per_class}
        return known(values)

    def line(self) -> str:
        """See :meth:`Scores.line`."""
        words = (
            f"{kind} AP {100 * ap.AP:.2f} (AP50 {100 * ap.AP50:.2f}, AP75 {100 * ap.AP75:.2f})"
            for kind, ap in self.kinds.items()
        )
        return "  ".join(words)


@dataclass(frozen=True, repr=False)
class DetectionScores(KindScores):
    """Scores of a detection or instance segmentation network.

    Attributes
    ----------
    instances : average precision of boxes and, with masks, of masks
    n_images : number of images
    mapped : which classes of the model were scored; None if it has those of the data set
    """

    instances: InstanceScores
    n_images: int
    mapped: MappedClasses | None = None

    @property
    def maps(self) -> dict[str, float]:
        """AP under the names of the original: `det_map` of boxes and, with masks, `msk_map`."""
        return {_MAPS[kind]: ap.AP for kind, ap in self.instances.kinds.items()}

    def _selection(self) -> Selection:
        name, value = list(self.maps.items())[-1]
        return Selection(name, zero_if_nan(value))

    def _to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {name: or_none(value) for name, value in self.maps.items()}
        out["n_images"] = self.n_images
        out |= {kind: ap.to_json() for kind, ap in self.instances.kinds.items()}
        return out if self.mapped is None else {**out, "class_table": self.mapped.to_json(self.instances.by_class())}

    def _scalars(self) -> dict[str, float]:
        return known({f"val/{name}": value for name, value in self.maps.items()}) | self.instances.scalars()

    def _line(self) -> str:
        return self.instances.line()

    def _table(self) -> str:
        lines = [*_instance_lines(self.instances, True), "", _image_count(self.n_images)]
        return "\n".join(lines if self.mapped is None else [*lines, self.mapped.line(self.instances.by_class())])


@dataclass(frozen=True)
class ClassIoU:
    """Pixel IoU of one class; NaN if it neither occurs nor is predicted."""

    info: ClassInfo
    IoU: float


@dataclass(frozen=True, repr=False)
class SemanticScores(KindScores):
    """Scores of a semantic segmentation network.

    Attributes
    ----------
    mIoU : mean pixel IoU of the classes that occur or are predicted
    accuracy : fraction of the pixels, without void, of correct class; NaN without pixels
    per_class : one entry per class
    n_images : number of images
    mapped : see :class:`DetectionScores`
    """

    mIoU: float
    accuracy: float
    per_class: list[ClassIoU]
    n_images: int
    mapped: MappedClasses | None = None

    def _selection(self) -> Selection:
        return Selection("mIoU", zero_if_nan(self.mIoU))

    def _to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"mIoU": or_none(self.mIoU), "accuracy": or_none(self.accuracy)}
        classes = [{"id": c.info.id, "isthing": c.info.isthing, "IoU": or_none(c.IoU)} for c in self.per_class]
        out |= {"n_images": self.n_images, "per_class": dict(zip(_unique_names(self.per_class), classes))}
        return out if self.mapped is None else {**out, "class_table": self.mapped.to_json(self.by_class())}

    def _scalars(self) -> dict[str, float]:
        values = {"val/mIoU": self.mIoU, "val/accuracy": self.accuracy}
        return known(values | {f"val_IoU/{c.info.name}": c.IoU for c in self.per_class})

    def _line(self) -> str:
        return f"mIoU {100 * self.mIoU:.2f}  accuracy {100 * self.accuracy:.2f}"

    def _table(self) -> str:
        occurring = [c for c in self.per_class if not math.isnan(c.IoU)]
        width = max([len("class"), *(len(c.info.name) for c in occurring)])
        lines = [f"{'':<{width}}{'IoU':>7}", f"{'mean':<{width}}{percent(self.mIoU)}"]
        lines += [f"{'pixels':<{width}}{percent(self.accuracy)}", "", f"{'class':<{width}}{'IoU':>7}"]
        lines += [f"{c.info.name:<{width}}{percent(c.IoU)}" for c in occurring]
        lines += ["", _image_count(self.n_images)]
        return "\n".join(lines if self.mapped is None else [*lines, self.mapped.line(self.by_class())])

    def by_class(self) -> ScoresByClass:
        """Return the IoU of each class, as `mIoU`."""
        return {"mIoU": [(c.info, c.IoU) for c in self.per_class]}


@dataclass(frozen=True, repr=False)
class PanopticScores(KindScores):
    """Means over the classes, and the scores of each class.

    Attributes
    ----------
    PQ, SQ, RQ : panoptic, segmentation and recognition quality of all classes, of things and of stuff
    PQ_dagger : PQ with another term for stuff (Porzi et al., CVPR 2019), see :class:`ClassScores`
    mIoU : mean pixel IoU of the class map, in which things of the semantic map that no detection covers have their
        class, as in the original. Files have no such pixels: of them it is `mIoU_segments`
    n_images : number of images
    per_class : one entry per class; `IoU` is that of the class map
    mIoU_segments : mean pixel IoU of the segments; other pixels are void, as in COCO panoptic files
    instances : average precision of the detections, None if not computed
    selector : name of the score that selects the best snapshot
    mapped : see :class:`DetectionScores`
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
    mIoU_segments: float = math.nan
    instances: InstanceScores | None = None
    selector: str = "PQ"
    mapped: MappedClasses | None = None

    def _selection(self) -> Selection:
        return Selection(self.selector, zero_if_nan(getattr(self, self.selector)))

    def _to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {key: or_none(getattr(self, key)) for key in HEADLINE}
        out["n_images"] = self.n_images
        out["per_class"] = dict(zip(_unique_names(self.per_class), (c.to_json() for c in self.per_class)))
        if self.instances is not None:
            out.update({kind: scores.to_json() for kind, scores in self.instances.kinds.items()})
        return out if self.mapped is None else {**out, "class_table": self.mapped.to_json(self.by_class())}

    def by_class(self) -> ScoresByClass:
        """Return PQ and IoU of each class, as `PQ` and `mIoU`, and the AP of the detections if computed."""
        values = {"PQ": [(c.info, c.PQ) for c in self.per_class], "mIoU": [(c.info, c.IoU) for c in self.per_class]}
        return values if self.instances is None else {**values, **self.instances.by_class()}

    def _scalars(self) -> dict[str, float]:
        values = {f"val/{name}": getattr(self, name) for name in HEADLINE}
        for key in ("PQ", "SQ", "RQ", "IoU"):
            values |= {f"val_{key}/{c.info.name}": getattr(c, key) for c in self.per_class}
        return known(values) | ({} if self.instances is None else self.instances.scalars())

    def _line(self) -> str:
        words = [f"{name} {100 * getattr(self, name):.2f}" for name in _SHOWN]
        return "  ".join(words if self.instances is None else [*words, self.instances.line()])

    def _table(self) -> str:
        return format_table(self)


HEADLINE = (
    "PQ", "SQ", "RQ",
    "PQ_things", "SQ_things", "RQ_things",
    "PQ_stuff", "SQ_stuff", "RQ_stuff",
    "PQ_dagger", "mIoU", "mIoU_segments",
)  # fmt: skip
"""Fields of the headline scores, in the order of the JSON."""


def pixel_iou_titles(scores: Mapping[str, Any]) -> dict[str, str]:
    """Return the titles of the mean pixel IoUs in the JSON of a panoptic evaluation, by key; without repetitions."""
    segments = scores.get("mIoU_segments")
    if segments is None:
        # scores of another program, which does not distinguish them
        return {"mIoU": "mIoU"}
    titles = {"mIoU": "mIoU (class map)", "mIoU_segments": "mIoU (segments)"}
    if scores.get("mIoU") == segments:
        del titles["mIoU"]
    return titles


_SHOWN = ("PQ", "PQ_things", "PQ_stuff", "SQ", "RQ", "PQ_dagger", "mIoU", "mIoU_segments")

_MAPS = {"box": "det_map", "mask": "msk_map"}


def average_classes(per_class: Sequence[ClassScores], n_images: int) -> PanopticScores:
    """Average over the classes, without NaN.

    Parameters
    ----------
    per_class : scores of each class; their IoU is taken for that of the segments, too
    n_images : number of images
    """
    things = [c for c in per_class if c.info.isthing]
    stuff = [c for c in per_class if not c.info.isthing]
    means: dict[str, Any] = {
        f"{key}{suffix}": mean(getattr(c, key) for c in group)
        for suffix, group in (("", per_class), ("_things", things), ("_stuff", stuff))
        for key in ("PQ", "SQ", "RQ")
    }
    iou = mean(c.IoU for c in per_class)
    return PanopticScores(
        **means,
        PQ_dagger=mean(c.PQ_dagger for c in per_class),
        mIoU=iou,
        mIoU_segments=iou,
        n_images=n_images,
        per_class=list(per_class),
    )


def mean(values: Iterable[float]) -> float:
    """Compute the mean of the values that are not NaN; NaN if there are none."""
    known = [v for v in values if not math.isnan(v)]
    return math.fsum(known) / len(known) if known else math.nan


def zero_if_nan(value: float) -> float:
    """Convert NaN to 0, to compare scores."""
    return 0.0 if math.isnan(value) else value


def _unique_names(per_class: Sequence[ClassScores] | Sequence[ClassAP] | Sequence[ClassIoU]) -> list[str]:
    infos = [c.info for c in per_class]
    names = [info.name for info in infos]
    return [n if names.count(n) == 1 else f"{n} ({info.id})" for n, info in zip(names, infos)]


def format_table(scores: PanopticScores, per_class: bool = True) -> str:
    """Format scores as a plain-text table in percent, `-` for NaN, without absent classes.

    Parameters
    ----------
    scores : scores as fractions
    per_class : list the classes, too
    """
    lines = [f"{'':<8}{'PQ':>7}{'SQ':>7}{'RQ':>7}{'PQ†':>7}{'mIoU':>7}{'classes':>9}"]
    groups = (
        ("all", "", scores.per_class),
        ("things", "_things", [c for c in scores.per_class if c.info.isthing]),
        ("stuff", "_stuff", [c for c in scores.per_class if not c.info.isthing]),
    )
    for title, suffix, members in groups:
        values = [getattr(scores, key + suffix) for key in ("PQ", "SQ", "RQ")]
        overall = [scores.PQ_dagger, scores.mIoU] if not suffix else []
        cells = "".join(percent(v) for v in values) + ("".join(percent(v) for v in overall) or " " * 14)
        occurring = sum(c.TP + c.FP + c.FN > 0 for c in members)
        lines.append(f"{title:<8}{cells}{f'{occurring}/{len(members)}':>9}")
    lines += ["", _which_iou(scores)]
    if scores.instances is not None:
        lines += ["", *_instance_lines(scores.instances, per_class)]
    occurring_classes = [c for c in scores.per_class if c.TP + c.FP + c.FN > 0 or not math.isnan(c.IoU)]
    if per_class:
        width = max([len("class"), *(len(one_line(c.info.name)) for c in occurring_classes)])
        lines += [
            "",
            f"{'class':<{width}}  {'kind':<5}{'PQ':>7}{'SQ':>7}{'RQ':>7}{'IoU':>7}{'TP':>8}{'FP':>8}{'FN':>8}",
        ]
        for c in occurring_classes:
            cells = "".join(percent(v) for v in (c.PQ, c.SQ, c.RQ, c.IoU))
            kind = "thing" if c.info.isthing else "stuff"
            lines.append(f"{one_line(c.info.name):<{width}}  {kind:<5}{cells}{c.TP:>8}{c.FP:>8}{c.FN:>8}")
    lines += ["", _image_count(scores.n_images)]
    return "\n".join(lines if scores.mapped is None else [*lines, scores.mapped.line(scores.by_class())])


def _which_iou(scores: PanopticScores) -> str:
    if scores.mIoU == scores.mIoU_segments or math.isnan(scores.mIoU_segments):
        return "mIoU is that of the segments; pixels of no segment are void"
    segments = percent(scores.mIoU_segments).strip()
    return f"mIoU is that of the class map; {segments} is that of the segments, pixels of no segment are void"


def _image_count(count: int) -> str:
    return f"{counted(count, 'image')}; in percent; means are over the classes that occur"


_PLURALS = {"box": "boxes", "mask": "masks"}


def _instance_lines(scores: InstanceScores, per_class: bool) -> list[str]:
    lines = [f"{'':<8}" + "".join(f"{name.removeprefix('AP_'):>7}" for name in AP_NUMBERS)]
    lines += [
        f"{_PLURALS[kind]:<8}" + "".join(percent(getattr(ap, key)) for key in AP_NUMBERS)
        for kind, ap in scores.kinds.items()
    ]
    if per_class:
        width = max([len("thing"), *(len(one_line(c.info.name)) for c in scores.box.per_class)])
        lines += ["", f"{'thing':<{width}}" + "".join(f"{kind + ' AP':>9}" for kind in scores.kinds)]
        for row in zip(*(ap.per_class for ap in scores.kinds.values())):
            if not all(math.isnan(c.AP) for c in row):
                lines.append(f"{one_line(row[0].info.name):<{width}}" + "".join(f"{percent(c.AP):>9}" for c in row))
    return lines


def percent(value: float) -> str:
    """Format a fraction in percent, in seven characters."""
    return f"{'-':>7}" if math.isnan(value) else f"{100 * value:>7.2f}"
