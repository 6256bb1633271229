"""The summary block of the report: headline, training, classes, confusion matrix, histograms and list of images."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from seamseg.maps.evaluation.record import Evaluation, ImageRecord
from seamseg.maps.evaluation.scores import pixel_iou_titles
from seamseg.maps.metrics_file import METRICS_NAME, read_metrics
from seamseg.maps.visualize.overlay import distinct_colors
from seamseg.utils.errors import printable

BINS = 20
"""Bins of scores and of PQ, both from 0 to 1."""

MATCHED, MISSED, FALSE = 1, 2, 4
"""Bits of the outcomes of a class in an image."""


@dataclass(frozen=True)
class ImageEntry:
    """Summary of an image; `pq` is a fraction, None if nothing was measured."""

    image_id: int | str
    width: int
    height: int
    pq: float | None
    missed: int
    """Unmatched segments of the ground truth."""
    false: int
    """Unmatched segments of the prediction."""
    classes: dict[int, int]
    """Bits of :data:`MATCHED`, :data:`MISSED`, :data:`FALSE` by dense class."""


@dataclass
class ReportRun:
    """An evaluation and counts over all of its images.

    `counts` are by bin: `pq` of images and `score_...` of predictions, in `BINS` bins; `area_...` of segments of the
    ground truth, by floor(log2(area)); `unscored` matched or false predictions have no score. `maps` are the names of
    the maps of custom heads.
    """

    evaluation: Evaluation
    images: list[ImageEntry] = field(default_factory=list)
    counts: defaultdict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    unscored: int = 0
    maps: set[str] = field(default_factory=set)

    def add(self, image: ImageRecord) -> None:
        """Count an image."""
        self.maps.update(image.maps)
        classes: defaultdict[int, int] = defaultdict(int)
        truth = [s for s in image.ground_truth if s.outcome != "crowd"]
        predicted = [s for s in image.prediction if s.outcome != "forgiven"]
        if image.PQ is not None:
            self.counts["pq"][_bin(image.PQ)] += 1
        for segment in truth:
            classes[segment.category] |= MATCHED if segment.outcome == "matched" else MISSED
            self.counts[f"area_{segment.outcome}"][int(math.log2(max(segment.area, 1)))] += 1
        for segment in predicted:
            classes[segment.category] |= MATCHED if segment.outcome == "matched" else FALSE
            if segment.score is None:
                self.unscored += 1
            else:
                self.counts[f"score_{segment.outcome}"][_bin(segment.score)] += 1
        missed, false = (sum(s.outcome != "matched" for s in side) for side in (truth, predicted))
        self.images.append(ImageEntry(image.image_id, image.width, image.height, image.PQ, missed, false, classes))

    def histograms(self) -> dict[str, Any]:
        """Return the histograms; areas as lists from bin `area_from` on."""
        areas = "area_matched", "area_missed"
        powers = [power for name in areas for power in self.counts[name]]
        span = range(min(powers), max(powers) + 1) if powers else range(0)
        return {
            **{name: [self.counts[name][k] for k in range(BINS)] for name in ("pq", "score_matched", "score_false")},
            "unscored": self.unscored,
            "area_from": span.start,
            **{name: [self.counts[name][power] for power in span] for name in areas},
        }


def _bin(value: float) -> int:
    """Return the bin of a fraction; 1 belongs to the last bin."""
    return min(max(int(value * BINS), 0), BINS - 1)


HEADLINE = {
    "PQ": "PQ", "SQ": "SQ", "RQ": "RQ", "PQ_things": "PQ things", "PQ_stuff": "PQ stuff",
    "PQ_dagger": "PQ†",
}  # fmt: skip
"""Title of each score of the headline, but for the pixel IoUs."""

CLASS_FRACTIONS, CLASS_COUNTS = ("PQ", "SQ", "RQ", "IoU"), ("TP", "FP", "FN")
AP_KINDS = ("mask", "box")


def summary_block(runs: Sequence[ReportRun], chosen: Sequence[tuple[ImageEntry, ...]], unpaired: int) -> dict[str, Any]:
    """Build the summary block.

    `chosen` has the entries of the images in the report, one per run, in the order of the image blocks; `unpaired` is
    the number of images in only one of the runs.
    """
    evaluations = [run.evaluation for run in runs]
    return {
        "titles": run_titles(evaluations),
        "training": [training_of(one.folder) for one in evaluations],
        "headline": _headline([one.scores for one in evaluations]),
        "n_images": [len(run.images) for run in runs],
        "unpaired": unpaired,
        "maps": sorted(set().union(*(run.maps for run in runs))),
        "classes": _classes(evaluations),
        "confusion": evaluations[0].confusion.tolist(),
        "histograms": [run.histograms() for run in runs],
        "total": (sum(len(run.images) for run in runs) - unpaired) // len(runs),
        "images": [
            {
                "name": printable(str(entries[0].image_id)),
                "size": [entries[0].width, entries[0].height],
                "pq": [e.pq for e in entries],
                "missed": [e.missed for e in entries],
                "false": [e.false for e in entries],
                "classes": [[[c, bits] for c, bits in sorted(e.classes.items())] for e in entries],
            }
            for entries in chosen
        ],
    }


def run_titles(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the titles of the runs, or their folder names if the titles are not unique."""
    titles = [e.title for e in evaluations]
    if len(set(titles)) < len(titles):
        folders = [e.folder.resolve() for e in evaluations]
        titles = [f.parent.name if f.name == "evaluation" and f.parent.name else f.name for f in folders]
    return list(map(printable, titles))


def _headline(scores: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = [{"name": name, "values": [s.get(key) for s in scores]} for key, name in HEADLINE.items()]
    # each run may have another of the two pixel IoUs
    titles = [pixel_iou_titles(s) for s in scores]
    for key, name in dict.fromkeys(item for of in titles for item in of.items()):
        rows.append(
            {"name": name, "values": [s.get(key) if of.get(key) == name else None for s, of in zip(scores, titles)]}
        )
    for kind in AP_KINDS:
        if scores[0].get(kind):
            rows.append({"name": f"{kind} AP", "values": [(s.get(kind) or {}).get("AP") for s in scores]})
    return rows


def _classes(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    first = evaluations[0]
    default_colors = distinct_colors(len(first.classes)).tolist()
    # by position: the keys of per_class are made unique, the names of the classes need not be
    scored = [list(e.scores["per_class"].values()) for e in evaluations]
    # of each thing class, of masks if available, else of boxes; empty if not measured
    measured = [next((e.scores[kind] for kind in AP_KINDS if e.scores.get(kind)), None) for e in evaluations]
    average = [[] if one is None else list(one["per_class"].values()) for one in measured]
    rows = []
    for k, info in enumerate(first.classes):
        colour = first.colours[k]
        row: dict[str, Any] = {
            "name": printable(info.name),
            "thing": info.isthing,
            "color": default_colors[k] if colour is None else list(colour),
        }
        for key in (*CLASS_FRACTIONS, *CLASS_COUNTS):
            row[key] = [of[k].get(key) for of in scored]
        if any(average):
            things = [c.isthing for c in first.classes]
            row["AP"] = [of[sum(things[:k])] if info.isthing and of else None for of in average]
        rows.append(row)
    return rows


_PEAKS = ("reserved_peak_gib", "rss_peak_gib")
"""Names of the peak memory, of a GPU first."""


def training_of(evaluation: Path) -> dict[str, Any] | None:
    """Summarise the training in an evaluation folder or the folder around it; None if neither has a `metrics.jsonl`."""
    for folder in (evaluation, evaluation.absolute().parent):
        if (folder / METRICS_NAME).is_file():
            return summarise_training(read_metrics(folder))
    return None


def summarise_training(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Summarise the lines of a `metrics.jsonl`; None if they report no step. Numbers that are null are left out.

    Speed is the median of the lines, memory the peak of the GPU or the process; epochs count from 1.
    """
    lines = [{name: value for name, value in line.items() if value is not None} for line in metrics]
    train, validations = ([line for line in lines if line["kind"] == kind] for kind in ("train", "validation"))
    if not train:
        return None
    steps = [line["step"] for line in train]
    spans = [after - before for before, after in pairwise(steps)]
    # a resumed training may begin a file at any step
    spans.insert(0, min(steps[0], max(spans, default=steps[0])))
    loss: dict[int, list[tuple[int, float]]] = {epoch: [] for epoch in sorted({line["epoch"] for line in lines})}
    seconds = math.fsum(line.get("seconds", 0) for line in validations)
    # a line has the means of the steps since the line before it
    for line, span in zip(train, spans):
        if "loss" in line:
            loss[line["epoch"]].append((span, line["loss"]))
        seconds += span * line.get("step_seconds", 0)
    pq = {line["epoch"]: line["PQ"] for line in validations if "PQ" in line}
    speeds = [line["images_per_second"] for line in train if "images_per_second" in line]
    peaks = [[line[name] for line in train if name in line] for name in _PEAKS]
    return {
        "steps": sum(spans),
        "seconds": seconds,
        "images_per_second": median(speeds) if speeds else None,
        "memory_gib": next((max(found) for found in peaks if found), None),
        "epochs": [epoch + 1 for epoch in loss],
        "loss": [
            math.fsum(span * value for span, value in values) / total if (total := sum(s for s, _ in values)) else None
            for values in loss.values()
        ],
        "PQ": [pq.get(epoch) for epoch in loss],
    }
