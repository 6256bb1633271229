"""The evaluation folder: the results of an evaluation as files, by image and by segment.

- `evaluation.json`: scores, classes, confusion matrix, paths of the maps and images
- `images.jsonl`: one line per image with its scores and the outcome of each segment
- `maps/NAME/`: images of the maps of custom heads

The maps are in the COCO panoptic format, so the official tools can verify the scores. The keys are described in
docs/how-to/evaluate.md. `seamseg report` creates an HTML page from such a folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.maps.evaluation.evaluator import Comparison
from seamseg.maps.evaluation.scores import PanopticScores, numbers_of
from seamseg.maps.formats.metadata import parse_colour
from seamseg.maps.panoptic_map import ClassInfo
from seamseg.utils.errors import InputError
from seamseg.utils.files import read_bytes, replacing, write_json
from seamseg.utils.limits import EVALUATION_BYTES, parse_json

FORMAT = "seamseg evaluation 1"
_UNFINISHED = "seamseg evaluation, not finished"
SUMMARY, IMAGES, MAPS = "evaluation.json", "images.jsonl", "maps"
"""The files of the folder, and the folder of the maps of custom heads."""


@dataclass(frozen=True)
class SegmentRecord:
    """A segment; its outcome is "matched", in the ground truth also "missed" or "crowd", else "false" or "forgiven".

    `partner` and `iou` are of the segment of the same class in the other map with the largest IoU.
    """

    id: int
    category: int
    area: int
    outcome: str
    partner: int | None
    iou: float | None
    iscrowd: bool = False
    score: float | None = None


@dataclass(frozen=True)
class ImageRecord:
    """Scores of one image, means over the classes that occur, None if undefined; its files, and its segments.

    `maps` are those of custom heads by name: image files in the folder `maps` of the evaluation.
    """

    image_id: int | str
    photo: str | None
    width: int
    height: int
    ground_truth_png: str
    prediction_png: str
    PQ: float | None
    SQ: float | None
    RQ: float | None
    mIoU: float | None
    ground_truth: list[SegmentRecord]
    prediction: list[SegmentRecord]
    maps: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the content of a line of `images.jsonl`."""
        return {name: value for name, value in asdict(self).items() if value or name != "maps"}

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> ImageRecord:
        """Create a record, the inverse of :meth:`to_json`; KeyError, TypeError or ValueError for other content."""
        segments = {key: [SegmentRecord(**s) for s in entry[key]] for key in ("ground_truth", "prediction")}
        return ImageRecord(**{**entry, **segments})


def image_record(
    comparison: Comparison,
    scores: PanopticScores,
    size: Sequence[int],
    image_id: int | str,
    photo: str | None,
    ground_truth_png: str,
    prediction_png: str,
) -> ImageRecord:
    """Create the record of an image of `size` (height, width) from its own matches and scores."""
    matches = comparison.matches
    matched_gt = {pair.gt for pair in matches.matched}
    matched_pred = {pair.pred for pair in matches.matched}
    false = {s.id for s in matches.false_positives}
    partner_of_gt: dict[int, tuple[int, float]] = {}
    partner_of_pred: dict[int, tuple[int, float]] = {}
    for pair in sorted(matches.overlapping, key=lambda pair: pair.iou, reverse=True):
        partner_of_gt.setdefault(pair.gt, (pair.pred, pair.iou))
        partner_of_pred.setdefault(pair.pred, (pair.gt, pair.iou))
    gt = []
    for s in comparison.gt:
        outcome = "crowd" if s.iscrowd else "matched" if s.id in matched_gt else "missed"
        partner, iou = partner_of_gt.get(s.id, (None, None))
        gt.append(SegmentRecord(s.id, s.category, round(matches.gt_areas[s.id]), outcome, partner, iou, s.iscrowd))
    pred = []
    for s in comparison.pred:
        outcome = "matched" if s.id in matched_pred else "false" if s.id in false else "forgiven"
        partner, iou = partner_of_pred.get(s.id, (None, None))
        pred.append(SegmentRecord(s.id, s.category, matches.pred_areas[s.id], outcome, partner, iou, score=s.score))
    files: dict[str, Any] = {"ground_truth_png": ground_truth_png, "prediction_png": prediction_png}
    means = numbers_of(scores, ("PQ", "SQ", "RQ", "mIoU"))
    return ImageRecord(image_id, photo, size[1], size[0], **files, **means, ground_truth=gt, prediction=pred)


@dataclass(frozen=True)
class MapFiles:
    """A COCO panoptic JSON and the folder of its PNGs."""

    json: Path
    folder: Path


@dataclass(frozen=True)
class Evaluation:
    """An evaluation folder: `scores` of :meth:`PanopticScores.to_json`, classes and colours in dense order.

    `confusion` are `C x (C + 1)` pixel counts; row = ground truth, the last column = predicted void.
    """

    folder: Path
    title: str
    scores: dict[str, Any]
    classes: list[ClassInfo]
    colours: list[tuple[int, int, int] | None]
    confusion: np.ndarray
    ground_truth: MapFiles
    prediction: MapFiles
    photos: Path | None

    def images(self) -> Iterator[ImageRecord]:
        """Read the images line by line."""
        path = self.folder / IMAGES
        if not path.is_file():
            raise InputError(f"{path}: no such file (one line per image); evaluate again with `seamseg evaluate --out`")
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield ImageRecord.from_json(parse_json(line))
                except (ValueError, KeyError, TypeError) as error:
                    raise InputError(f"{path}, line {number}: invalid image record: {error}") from error


def begin_evaluation(folder: Path) -> None:
    """Mark a folder as unfinished until :func:`write_summary`."""
    write_json(folder / SUMMARY, {"format": _UNFINISHED})


def write_images(folder: Path, records: Iterable[ImageRecord]) -> None:
    """Write `images.jsonl` line by line, atomically."""
    with replacing(folder / IMAGES) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record.to_json(), allow_nan=False, separators=(",", ":")) + "\n")


def write_summary(evaluation: Evaluation) -> Path:
    """Write `evaluation.json`; paths inside the folder are relative to it."""
    folder = evaluation.folder

    def files(of: MapFiles) -> dict[str, str]:
        return {"json": _portable(of.json, folder), "folder": _portable(of.folder, folder)}

    content = {
        "format": FORMAT,
        "title": evaluation.title,
        "scores": evaluation.scores,
        "classes": [
            {"id": c.id, "name": c.name, "isthing": c.isthing, "color": None if rgb is None else list(rgb)}
            for c, rgb in zip(evaluation.classes, evaluation.colours)
        ],
        "confusion": evaluation.confusion.tolist(),
        "ground_truth": files(evaluation.ground_truth),
        "prediction": files(evaluation.prediction),
        "photos": None if evaluation.photos is None else _portable(evaluation.photos, folder),
    }
    write_json(folder / SUMMARY, content)
    return folder / SUMMARY


def read_evaluation(folder: str | Path) -> Evaluation:
    """Read the `evaluation.json` of a folder, InputError if it is missing or invalid; images are read one by one."""
    folder = Path(folder)
    path = folder / SUMMARY
    raw = read_bytes(path, "summary that `seamseg evaluate --out` writes", EVALUATION_BYTES)
    try:
        content = parse_json(raw)
        if content["format"] == _UNFINISHED:
            raise InputError(f"{folder}: the evaluation was interrupted or failed; run `seamseg evaluate` again")
        if content["format"] != FORMAT:
            raise InputError(f"{path}: has the format {content['format']!r}, expected {FORMAT!r}")

        def files(of: Mapping[str, str]) -> MapFiles:
            return MapFiles(folder / of["json"], folder / of["folder"])

        classes = [ClassInfo(c["name"], c["id"], c["isthing"]) for c in content["classes"]]
        confusion = np.array(content["confusion"], np.int64).reshape(len(classes), len(classes) + 1)
        return Evaluation(
            folder,
            content["title"],
            content["scores"],
            classes,
            [None if (rgb := c.get("color")) is None else parse_colour(rgb) for c in content["classes"]],
            confusion,
            files(content["ground_truth"]),
            files(content["prediction"]),
            None if content["photos"] is None else folder / content["photos"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not an evaluation summary ({type(error).__name__}: {error})") from error


def _portable(path: Path, folder: Path) -> str:
    inside = os.path.relpath(path, folder)
    return str(path.resolve()) if inside.startswith("..") else Path(inside).as_posix()
