"""Scores of an evaluation, as fractions, NaN if undefined; their JSON and their table in percent."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from seamseg.maps.evaluation.metric import Selection
from seamseg.maps.panoptic_map import ClassInfo
from seamseg.utils.errors import counted, one_line

ScoresByClass: TypeAlias = Mapping[str, Sequence[tuple[ClassInfo, float]]]
"""The scores of each class, by the name of their mean."""


@dataclass(frozen=True)
class MappedClasses:
    """The classes of a model that each scored class of the data set stands for."""

    table: str
    """Table of the classes, as given."""
    sources: Mapping[ClassInfo, Sequence[str]]
    """Names of the classes of the model; a class without any counts as missed where it occurs."""
    void: Sequence[str]
    """Classes of the model whose predictions are void."""

    @property
    def missing(self) -> list[str]:
        """Classes of the data set that the model has no class for."""
        return [info.name for info, names in self.sources.items() if not names]

    def means(self, by_class: ScoresByClass) -> dict[str, float]:
        """Return the means over the classes that the model has one for."""
        return {
            name: mean(value for info, value in values if self.sources.get(info)) for name, values in by_class.items()
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Scores(ABC):
    """The scores of a network of any kind.

    Attributes
    ----------
    n_images : number of images
    metrics : numbers of custom metrics by name
    selected : what selects the best snapshot instead of the score of the kind; None for that
    mapped : which classes of the model were scored; None if it has the classes of the data set
    """

    n_images: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    selected: Selection | None = None
    mapped: MappedClasses | None = None

    @property
    def selection(self) -> Selection:
        """The score that selects the best snapshot; of built-in kinds of network a fraction, 0 if it is undefined."""
        if self.selected is not None:
            return self.selected
        name, value = self._selection()
        return Selection(name, 0.0 if math.isnan(value) else value)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the JSON file and of a line of `metrics.jsonl`: fractions, None for NaN."""
        out = self._to_json()
        if self.mapped is not None:
            out["class_table"] = {
                "table": self.mapped.table,
                "classes": [{"name": info.name, "model": list(names)} for info, names in self.mapped.sources.items()],
                "missing": self.mapped.missing,
                "void": list(self.mapped.void),
                "without_missing": {n: or_none(value) for n, value in self.mapped.means(self.by_class()).items()},
            }
        return out | {name: or_none(value) for name, value in self.metrics.items()}

    def scalars(self) -> dict[str, float]:
        """Return the scores by TensorBoard tag, without those that are NaN."""
        values = self._scalars() | {f"val/{name}": value for name, value in self.metrics.items()}
        return {name: value for name, value in values.items() if not math.isnan(value)}

    def line(self) -> str:
        """Format the main scores in percent, for the text log."""
        return "  ".join([self._line(), *(f"{name} {value:.4g}" for name, value in self.metrics.items())])

    def __repr__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Format all scores as a plain-text table in percent, `-` for NaN, without absent classes."""
        lines = self._table()
        if self.mapped is not None:
            void = f"{len(self.mapped.void)} of them are void"
            lines.append(f"classes of the model mapped by {self.mapped.table}; {void}")
            if self.mapped.missing:
                means = ", ".join(f"{n} {100 * value:.2f}" for n, value in self.mapped.means(self.by_class()).items())
                missing = ", ".join(self.mapped.missing)
                lines.append(f"it has none for {missing}, which count as missed; without these: {means}")
        if self.metrics:
            lines += ["not in percent:", *(f"{name}: {value:.4g}" for name, value in self.metrics.items())]
        return "\n".join(lines)

    def by_class(self) -> ScoresByClass:
        """Return the scores of each class, by the name of their mean."""
        return {}

    def advice(self) -> str:
        """Return a line for who sees these scores in a training; empty for none."""
        return ""

    @abstractmethod
    def _selection(self) -> tuple[str, float]: ...

    @abstractmethod
    def _to_json(self) -> dict[str, Any]: ...

    @abstractmethod
    def _scalars(self) -> dict[str, float]: ...

    @abstractmethod
    def _line(self) -> str: ...

    @abstractmethod
    def _table(self) -> list[str]: ...


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
        info = {"id": self.info.id, "isthing": self.info.isthing}
        numbers = numbers_of(self, ("PQ", "SQ", "RQ", "PQ_dagger", "IoU"))
        return {**info, **numbers, "TP": self.TP, "FP": self.FP, "FN": self.FN}


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
        return numbers_of(self, AP_NUMBERS) | {"per_class": _by_name(self.per_class, lambda c: or_none(c.AP))}


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
        """Return the scores by TensorBoard tag."""
        values: dict[str, float] = {}
        for kind, ap in self.kinds.items():
            values |= {f"val/{kind}_{name}": getattr(ap, name) for name in AP_NUMBERS}
            values |= {f"val_{kind}_AP/{c.info.name}": c.AP for c in ap.per_class}
        return values

    def line(self) -> str:
        """Format the main scores in percent."""
        words = (
            f"{kind} AP {100 * ap.AP:.2f} (AP50 {100 * ap.AP50:.2f}, AP75 {100 * ap.AP75:.2f})"
            for kind, ap in self.kinds.items()
        )
        return "  ".join(words)

    def lines(self) -> list[str]:
        """Format all scores as lines of a table."""
        titles = {"box": "boxes", "mask": "masks"}
        rows = [(titles[kind], [getattr(ap, key) for key in AP_NUMBERS]) for kind, ap in self.kinds.items()]
        classes = zip(*(ap.per_class for ap in self.kinds.values()))
        of_classes = [
            (one_line(row[0].info.name), [c.AP for c in row])
            for row in classes
            if not all(math.isnan(c.AP) for c in row)
        ]
        heads = [f"{kind} AP" for kind in self.kinds]
        return [
            *percent_lines("", [name.removeprefix("AP_") for name in AP_NUMBERS], rows, 8),
            "",
            *percent_lines("thing", heads, of_classes, _width("thing", self.box.per_class), 9),
        ]


@dataclass(frozen=True, repr=False)
class DetectionScores(Scores):
    """Scores of a detection or instance segmentation network.

    Attributes
    ----------
    instances : average precision of boxes and, with masks, of masks
    """

    instances: InstanceScores

    @property
    def maps(self) -> dict[str, float]:
        """AP under the names of the original: `det_map` of boxes and, with masks, `msk_map`."""
        names = {"box": "det_map", "mask": "msk_map"}
        return {names[kind]: ap.AP for kind, ap in self.instances.kinds.items()}

    def by_class(self) -> ScoresByClass:
        """Return the AP of each thing class, as `box AP` and `mask AP`."""
        return self.instances.by_class()

    def _selection(self) -> tuple[str, float]:
        return list(self.maps.items())[-1]

    def _to_json(self) -> dict[str, Any]:
        maps = {name: or_none(value) for name, value in self.maps.items()}
        kinds = {kind: ap.to_json() for kind, ap in self.instances.kinds.items()}
        return {**maps, "n_images": self.n_images, **kinds}

    def _scalars(self) -> dict[str, float]:
        return {f"val/{name}": value for name, value in self.maps.items()} | self.instances.scalars()

    def _line(self) -> str:
        return self.instances.line()

    def _table(self) -> list[str]:
        return [*self.instances.lines(), "", _image_count(self.n_images)]


@dataclass(frozen=True)
class ClassIoU:
    """Pixel IoU of one class; NaN if it neither occurs nor is predicted."""

    info: ClassInfo
    IoU: float


@dataclass(frozen=True, repr=False)
class SemanticScores(Scores):
    """Scores of a semantic segmentation network.

    Attributes
    ----------
    mIoU : mean pixel IoU of the classes that occur or are predicted
    accuracy : fraction of the pixels, without void, of correct class; NaN without pixels
    per_class : one entry per class
    """

    mIoU: float
    accuracy: float
    per_class: list[ClassIoU]

    def by_class(self) -> ScoresByClass:
        """Return the IoU of each class, as `mIoU`."""
        return {"mIoU": [(c.info, c.IoU) for c in self.per_class]}

    def _selection(self) -> tuple[str, float]:
        return "mIoU", self.mIoU

    def _to_json(self) -> dict[str, Any]:
        per_class = _by_name(
            self.per_class, lambda c: {"id": c.info.id, "isthing": c.info.isthing, "IoU": or_none(c.IoU)}
        )
        return numbers_of(self, ("mIoU", "accuracy")) | {"n_images": self.n_images, "per_class": per_class}

    def _scalars(self) -> dict[str, float]:
        values = {"val/mIoU": self.mIoU, "val/accuracy": self.accuracy}
        return values | {f"val_IoU/{c.info.name}": c.IoU for c in self.per_class}

    def _line(self) -> str:
        return f"mIoU {100 * self.mIoU:.2f}  accuracy {100 * self.accuracy:.2f}"

    def _table(self) -> list[str]:
        occurring = [c for c in self.per_class if not math.isnan(c.IoU)]
        width = _width("class", occurring)
        means = [("mean", [self.mIoU]), ("pixels", [self.accuracy])]
        return [
            *percent_lines("", ["IoU"], means, width),
            "",
            *percent_lines("class", ["IoU"], [(one_line(c.info.name), [c.IoU]) for c in occurring], width),
            "",
            _image_count(self.n_images),
        ]


@dataclass(frozen=True, repr=False)
class PanopticScores(Scores):
    """Means over the classes, and the scores of each class.

    Attributes
    ----------
    PQ, SQ, RQ : panoptic, segmentation and recognition quality of all classes, of things and of stuff
    PQ_dagger : PQ with another term for stuff (Porzi et al., CVPR 2019), see :class:`ClassScores`
    mIoU : mean pixel IoU of the class map, in which things of the semantic map that no detection covers have their
        class, as in the original. Files have no such pixels: of them it is `mIoU_segments`
    per_class : one entry per class; `IoU` is of the class map
    mIoU_segments : mean pixel IoU of the segments; other pixels are void, as in COCO panoptic files
    instances : average precision of the detections, None if not computed
    selector : name of the score that selects the best snapshot
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
    per_class: list[ClassScores]
    mIoU_segments: float = math.nan
    instances: InstanceScores | None = None
    selector: str = "PQ"

    def by_class(self) -> ScoresByClass:
        """Return PQ and IoU of each class, as `PQ` and `mIoU`, and the AP of the detections if computed."""
        values = {"PQ": [(c.info, c.PQ) for c in self.per_class], "mIoU": [(c.info, c.IoU) for c in self.per_class]}
        return values if self.instances is None else {**values, **self.instances.by_class()}

    def advice(self) -> str:
        """See :meth:`Scores.advice`: no thing at all was predicted."""
        if any(c.TP + c.FP for c in self.per_class if c.info.isthing):
            return ""
        return (
            "no detection is above [general] score_threshold yet: usual in the first epochs; if it stays so, look at "
            "the losses, and at the sample images of the validation"
        )

    def _selection(self) -> tuple[str, float]:
        return self.selector, getattr(self, self.selector)

    def _to_json(self) -> dict[str, Any]:
        kinds = {} if self.instances is None else self.instances.kinds
        per_class = _by_name(self.per_class, ClassScores.to_json)
        out = numbers_of(self, HEADLINE) | {"n_images": self.n_images, "per_class": per_class}
        return out | {kind: scores.to_json() for kind, scores in kinds.items()}

    def _scalars(self) -> dict[str, float]:
        values = {f"val/{name}": getattr(self, name) for name in HEADLINE}
        for key in ("PQ", "SQ", "RQ", "IoU"):
            values |= {f"val_{key}/{c.info.name}": getattr(c, key) for c in self.per_class}
        return values | ({} if self.instances is None else self.instances.scalars())

    def _line(self) -> str:
        shown = ("PQ", "PQ_things", "PQ_stuff", "SQ", "RQ", "PQ_dagger", "mIoU", "mIoU_segments")
        words = [f"{name} {100 * getattr(self, name):.2f}" for name in shown]
        return "  ".join(words if self.instances is None else [*words, self.instances.line()])

    def _table(self) -> list[str]:
        instances = [] if self.instances is None else ["", *self.instances.lines()]
        miou = "mIoU counts pixels without a segment as wrong"
        if self.mIoU != self.mIoU_segments and not math.isnan(self.mIoU_segments):
            segments = _percent(self.mIoU_segments).strip()
            miou = f"mIoU is of each pixel's class; where pixels without a segment count as wrong, it is {segments}"
        means: list[tuple[str, list[float | str]]] = []
        things, stuff = ([c for c in self.per_class if c.info.isthing == kind] for kind in (True, False))
        groups = (("all", "", self.per_class), ("things", "_things", things), ("stuff", "_stuff", stuff))
        for title, suffix, members in groups:
            quality = [getattr(self, key + suffix) for key in ("PQ", "SQ", "RQ")]
            overall = ("", "") if suffix else (self.PQ_dagger, self.mIoU)
            found = f"{sum(c.TP + c.FP + c.FN > 0 for c in members)}/{len(members)}"
            means.append((title, [*quality, *overall, f"{found:>9}"]))
        occurring = [c for c in self.per_class if c.TP + c.FP + c.FN > 0 or not math.isnan(c.IoU)]
        width = _width("class", occurring)
        classes: list[tuple[str, list[float | str]]] = []
        for c in occurring:
            name = f"{one_line(c.info.name):<{width}}  {'thing' if c.info.isthing else 'stuff'}"
            classes.append((name, [c.PQ, c.SQ, c.RQ, c.IoU, *(f"{n:>8}" for n in (c.TP, c.FP, c.FN))]))
        heads = ("PQ", "SQ", "RQ", "IoU", *(f"{count:>8}" for count in ("TP", "FP", "FN")))
        return [
            *percent_lines("", ("PQ", "SQ", "RQ", "PQ†", "mIoU", "  classes"), means, 8),
            "",
            miou,
            *instances,
            "",
            *percent_lines(f"{'class':<{width}}  kind", heads, classes, width + 7),
            "",
            _image_count(self.n_images),
        ]


HEADLINE = (
    "PQ", "SQ", "RQ",
    "PQ_things", "SQ_things", "RQ_things",
    "PQ_stuff", "SQ_stuff", "RQ_stuff",
    "PQ_dagger", "mIoU", "mIoU_segments",
)  # fmt: skip
"""Fields of the headline scores, in the order of the JSON."""


def pixel_iou_titles(scores: Mapping[str, Any]) -> dict[str, str]:
    """Return the titles of the mean pixel IoUs in the JSON of a panoptic evaluation, by key, without repetitions."""
    segments = scores.get("mIoU_segments")
    if segments is None:
        # scores of another program, which does not distinguish them
        return {"mIoU": "mIoU"}
    titles = {"mIoU": "mIoU (class map)", "mIoU_segments": "mIoU (segments)"}
    if scores.get("mIoU") == segments:
        del titles["mIoU"]
    return titles


def mean(values: Iterable[float]) -> float:
    """Compute the mean of the values that are not NaN; NaN if there are none."""
    known = [v for v in values if not math.isnan(v)]
    return math.fsum(known) / len(known) if known else math.nan


def or_none(value: float) -> float | None:
    """Convert NaN to None, for JSON."""
    return None if math.isnan(value) else value


def numbers_of(scores: object, names: Iterable[str]) -> dict[str, Any]:
    """Return attributes by name, None for NaN."""
    return {name: or_none(getattr(scores, name)) for name in names}


def _by_name(per_class: Sequence[Any], to_json: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the content of entries with `info` by the names of their classes, which are made unique."""
    names = [c.info.name for c in per_class]
    unique = [n if names.count(n) == 1 else f"{n} ({c.info.id})" for n, c in zip(names, per_class)]
    return dict(zip(unique, map(to_json, per_class)))


def percent_lines(
    title: str, heads: Sequence[str], rows: Iterable[tuple[str, Sequence[float | str]]], width: int, column: int = 7
) -> list[str]:
    """Format rows of a name and fractions in percent, or texts, below a head, as lines of a table."""
    lines = [f"{title:<{width}}" + "".join(f"{head:>{column}}" for head in heads)]
    for name, values in rows:
        cells = (value if isinstance(value, str) else _percent(value) for value in values)
        lines.append(f"{name:<{width}}" + "".join(f"{cell:>{column}}" for cell in cells))
    return lines


def _percent(value: float) -> str:
    return f"{'-':>7}" if math.isnan(value) else f"{100 * value:>7.2f}"


def _image_count(count: int) -> str:
    return f"{counted(count, 'image')}; in percent; means are over the classes that occur"


def _width(title: str, per_class: Iterable[Any]) -> int:
    return max([len(title), *(len(one_line(c.info.name)) for c in per_class)])
