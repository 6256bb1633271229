"""The figures of the page as JSON: headline, classes, confusion, histograms, list of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seamseg.evaluation.record import SUMMARY, Evaluation
from seamseg.report.statistics import ImageEntry, Statistics
from seamseg.utils.errors import InputError
from seamseg.visualize.palette import spread_palette

HEADLINE = {
    "PQ": "PQ", "SQ": "SQ", "RQ": "RQ", "PQ_things": "PQ things", "PQ_stuff": "PQ stuff",
    "PQ_dagger": "PQ†", "mIoU": "mIoU",
}  # fmt: skip
"""Key in the scores -> what the page calls it."""

CLASS_FRACTIONS, CLASS_COUNTS = ("PQ", "SQ", "RQ", "IoU"), ("TP", "FP", "FN")
AP_KINDS = ("mask", "box")


@dataclass(frozen=True)
class Side:
    """One evaluation and what was counted of its images."""

    evaluation: Evaluation
    statistics: Statistics


def summary(sides: Sequence[Side], chosen: Sequence[tuple[ImageEntry, ...]], lost: int) -> dict[str, Any]:
    """What the script of the page reads first.

    Parameters
    ----------
    sides : the run, and the one that it is compared with, if any
    chosen : entries of the images with a picture, one a side, in the order of the picture blocks
    lost : images that only one of two runs has
    """
    first = sides[0].evaluation
    return {
        "titles": labels([side.evaluation for side in sides]),
        "headline": _headline([side.evaluation.scores for side in sides]),
        "n_images": [len(side.statistics.images) for side in sides],
        "lost": lost,
        "classes": _classes([side.evaluation for side in sides]),
        "confusion": first.confusion.tolist(),
        "histograms": [side.statistics.to_json() for side in sides],
        "total": (sum(len(side.statistics.images) for side in sides) - lost) // len(sides),
        "images": [
            {
                "name": str(entries[0].image_id),
                "size": [entries[0].width, entries[0].height],
                "pq": [e.pq for e in entries],
                "missed": [e.missed for e in entries],
                "false": [e.false for e in entries],
                "classes": [[[c, bits] for c, bits in sorted(e.classes.items())] for e in entries],
            }
            for entries in chosen
        ],
    }


def labels(evaluations: Sequence[Evaluation]) -> list[str]:
    """What the page calls the runs: their titles, or their folders if the titles do not tell them apart."""
    titles = [e.title for e in evaluations]
    if len(set(titles)) == len(titles):
        return titles
    folders = [e.folder.resolve() for e in evaluations]
    return [f.parent.name if f.name == "evaluation" and f.parent.name else f.name for f in folders]


def _headline(scores: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = [{"name": name, "values": [s.get(key) for s in scores]} for key, name in HEADLINE.items()]
    for kind in AP_KINDS:
        if isinstance(scores[0].get(kind), Mapping):
            rows.append({"name": f"{kind} AP", "values": [(s.get(kind) or {}).get("AP") for s in scores]})
    return rows


def _classes(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    first = evaluations[0]
    spread = spread_palette(len(first.classes)).tolist()
    # per_class is in dense order, by names that are unique; classes in the same order may share a name
    scored = [list(_per_class(e).values()) for e in evaluations]
    average = [_average_precision(e) for e in evaluations]
    rows = []
    for k, info in enumerate(first.classes):
        colour = first.colours[k]
        row: dict[str, Any] = {
            "name": info.name,
            "thing": info.isthing,
            "color": spread[k] if colour is None else list(colour),
        }
        for key in (*CLASS_FRACTIONS, *CLASS_COUNTS):
            row[key] = [of[k].get(key) for of in scored]
        if any(average):
            things = [c.isthing for c in first.classes]
            row["AP"] = [of[sum(things[:k])] if info.isthing and of else None for of in average]
        rows.append(row)
    return rows


def _per_class(evaluation: Evaluation) -> Mapping[str, Any]:
    per_class = evaluation.scores.get("per_class")
    if (
        not isinstance(per_class, Mapping)
        or len(per_class) != len(evaluation.classes)
        or not all(isinstance(scores, Mapping) for scores in per_class.values())
    ):
        raise InputError(
            f"{evaluation.folder / SUMMARY}: its scores are not those of its {len(evaluation.classes)} classes; "
            "evaluate again with --out"
        )
    return per_class


def _average_precision(evaluation: Evaluation) -> list[float | None]:
    """AP of the things, of masks if there are any, else of boxes; empty if it was not measured."""
    things = sum(c.isthing for c in evaluation.classes)
    for kind in AP_KINDS:
        found = (evaluation.scores.get(kind) or {}).get("per_class")
        if isinstance(found, Mapping) and len(found) == things:
            return list(found.values())
    return []
