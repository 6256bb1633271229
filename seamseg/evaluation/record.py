"""The evaluation folder: all that is known of an evaluation, image by image and segment by segment, as files.

- `evaluation.json`: the scores, the classes, the confusion matrix, and where the maps and photos are
- `images.jsonl`: a line an image with its own scores, and the outcome of each segment

The maps are in the COCO panoptic format, so that the official tools can check the scores. docs/evaluation.md has the
keys. `seamseg report` makes a page of such a folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from seamseg.evaluation.evaluator import Comparison
from seamseg.evaluation.matching import Touch
from seamseg.evaluation.scores import PanopticScores, or_none
from seamseg.panoptic_map import ClassInfo
from seamseg.utils.errors import InputError
from seamseg.utils.files import read_bytes, replacing, write_json
from seamseg.utils.limits import EVALUATION_BYTES, LINE_BYTES, in_words, parse_json

FORMAT = "seamseg evaluation 1"
_UNFINISHED = "seamseg evaluation, not finished"
SUMMARY, IMAGES = "evaluation.json", "images.jsonl"
"""The files of the folder."""


@dataclass(frozen=True)
class SegmentRecord:
    """What became of a segment.

    Attributes
    ----------
    id : in the id PNG
    category : dense class
    area : pixels
    outcome : matched; of the ground truth also missed, crowd; of predictions false, forgiven (mostly on void or crowd)
    partner, iou : the segment of the same class on the other side that it shares most with; None if there is none
    iscrowd : only of the ground truth
    score : only of predictions, None if unknown
    """

    id: int
    category: int
    area: int
    outcome: str
    partner: int | None
    iou: float | None
    iscrowd: bool = False
    score: float | None = None

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> SegmentRecord:
        """A segment of a line of `images.jsonl`; TypeError or ValueError if it is not of the form."""
        segment = SegmentRecord(**entry)
        _expect_numbers(segment, int, "id", "category", "area")
        _expect_numbers(segment, (int, float, NoneType), "iou", "score")
        _expect_numbers(segment, (int, NoneType), "partner")
        if not isinstance(segment.outcome, str):
            raise ValueError(f"its outcome is {segment.outcome!r}")
        return segment


@dataclass(frozen=True)
class ImageRecord:
    """The scores of one image alone, as fractions, None where there is nothing to measure, and its segments.

    Attributes
    ----------
    image_id : as in the JSONs
    photo : file name below the folder of the photos, None if unknown
    width, height : of the maps
    ground_truth_png, prediction_png : file names below the folders of the maps
    PQ, SQ, RQ, mIoU : means over the classes that occur in the image
    ground_truth, prediction : the segments
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

    def to_json(self) -> dict[str, Any]:
        """A line of `images.jsonl`."""
        return asdict(self)

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> ImageRecord:
        """The inverse of :meth:`to_json`; KeyError, TypeError or ValueError if it is not of the form."""
        sides = {side: [SegmentRecord.from_json(s) for s in entry[side]] for side in ("ground_truth", "prediction")}
        image = ImageRecord(**{**entry, **sides})
        _expect_numbers(image, int, "width", "height")
        _expect_numbers(image, (int, float, NoneType), "PQ", "SQ", "RQ", "mIoU")
        names = image.ground_truth_png, image.prediction_png, image.photo or ""
        if not isinstance(image.image_id, (int, str)) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"its id is {image.image_id!r}, its files are {names}")
        if min(image.width, image.height) <= 0:
            raise ValueError(f"its size is {image.width} x {image.height}")
        return image


def _expect_numbers(record: SegmentRecord | ImageRecord, kinds: type | tuple[type, ...], *names: str) -> None:
    """ValueError for a value of another kind, or one that no evaluation writes."""
    for name in names:
        value: Any = getattr(record, name)
        fits = isinstance(value, kinds) and not isinstance(value, bool)
        if not fits or not (value is None or -1 << 63 < value < 1 << 63):
            raise ValueError(f"its {name} is {value!r}")


def image_record(
    comparison: Comparison,
    scores: PanopticScores,
    size: Sequence[int],
    image_id: int | str,
    photo: str | None,
    ground_truth_png: str,
    prediction_png: str,
) -> ImageRecord:
    """The record of an image.

    Parameters
    ----------
    comparison : of its segments
    scores : of this image alone
    size : `(height, width)`
    image_id, photo, ground_truth_png, prediction_png : see :class:`ImageRecord`
    """
    gt, pred = segment_records(comparison)
    means = {key: or_none(getattr(scores, key)) for key in ("PQ", "SQ", "RQ", "mIoU")}
    height, width = (int(n) for n in size)
    return ImageRecord(image_id, photo, width, height, ground_truth_png, prediction_png, **means,
                       ground_truth=gt, prediction=pred)  # fmt: skip


def segment_records(comparison: Comparison) -> tuple[list[SegmentRecord], list[SegmentRecord]]:
    """What became of the segments of the ground truth and of those of the prediction."""
    matches = comparison.matches
    best_gt: dict[int, Touch] = {}
    best_pred: dict[int, Touch] = {}
    for touch in matches.touching:
        for best, identity in ((best_gt, touch.gt), (best_pred, touch.pred)):
            if identity not in best or touch.iou > best[identity].iou:
                best[identity] = touch
    found = {touch.gt for touch in matches.matched}
    used = {touch.pred for touch in matches.matched}
    wrong = {s.id for s in matches.false_positives}
    gt = []
    for s in comparison.gt:
        outcome = "crowd" if s.iscrowd else "matched" if s.id in found else "missed"
        gt.append(
            _segment(s.id, s.category, round(matches.gt_areas[s.id]), outcome, best_gt.get(s.id), "pred", s.iscrowd)
        )
    pred = []
    for s in comparison.pred:
        outcome = "matched" if s.id in used else "false" if s.id in wrong else "forgiven"
        area = matches.pred_areas[s.id]
        pred.append(_segment(s.id, s.category, area, outcome, best_pred.get(s.id), "gt", False, s.score))
    return gt, pred


def _segment(
    identity: int,
    category: int,
    area: int,
    outcome: str,
    touch: Touch | None,
    other: str,
    iscrowd: bool,
    score: float | None = None,
) -> SegmentRecord:
    partner, iou = (None, None) if touch is None else (getattr(touch, other), touch.iou)
    return SegmentRecord(identity, category, area, outcome, partner, iou, iscrowd, score)


@dataclass(frozen=True)
class MapFiles:
    """A COCO panoptic JSON and the folder of its PNGs."""

    json: Path
    folder: Path


@dataclass(frozen=True)
class Evaluation:
    """An evaluation folder.

    Attributes
    ----------
    folder : where it is
    title : what was evaluated
    scores : as :meth:`PanopticScores.to_json` writes them
    classes, colours : in dense order; a colour is None where the files have none
    confusion : `C x (C + 1)` pixel counts; row = ground truth, the last column = predicted void
    ground_truth, prediction : the maps
    photos : folder of the photos, None if unknown
    own_maps : whether the evaluation has written the maps; else they were there before
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
    own_maps: bool = False

    def images(self) -> Iterator[ImageRecord]:
        """The images, read line by line.

        Raises
        ------
        InputError
            if the file is missing or a line is broken
        """
        path = self.folder / IMAGES
        try:
            with open(path, "rb") as lines:
                for number, line in enumerate(iter(partial(lines.readline, LINE_BYTES + 1), b""), start=1):
                    if len(line) > LINE_BYTES:
                        raise InputError(f"{path}, line {number}: is longer than {in_words(LINE_BYTES)}")
                    try:
                        yield ImageRecord.from_json(parse_json(line, _no_number))
                    except (ValueError, KeyError, TypeError) as error:
                        raise InputError(f"{path}, line {number}: not the record of an image: {error}") from error
        except FileNotFoundError:
            raise InputError(f"{path}: no such file (a line for each image); evaluate again with --out") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error}") from error


def begin_evaluation(folder: Path, own_maps: bool) -> bool:
    """Say that what the folder holds is not whole, until :func:`write_summary`.

    Parameters
    ----------
    folder : of the evaluation
    own_maps : whether it will write the maps, too

    Returns
    -------
    bool
        whether the maps that lie there were written by an evaluation, too; else they are somebody's own
    """
    path = folder / SUMMARY
    try:
        had_maps = parse_json(read_bytes(path, "summary", EVALUATION_BYTES)).get("own_maps") is True
    except (InputError, ValueError, AttributeError):
        had_maps = False
    write_json(path, {"format": _UNFINISHED, "own_maps": own_maps})
    return had_maps


def write_images(folder: Path, records: Iterable[ImageRecord]) -> None:
    """Write `images.jsonl` line by line, whole or not at all."""
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
        "own_maps": evaluation.own_maps,
    }
    write_json(folder / SUMMARY, content)
    return folder / SUMMARY


def read_evaluation(folder: str | Path) -> Evaluation:
    """Read the `evaluation.json` of a folder; the images are read later, one by one.

    Raises
    ------
    InputError
        if it is missing or not of the form
    """
    folder = Path(folder)
    path = folder / SUMMARY
    raw = read_bytes(path, "summary that `seamseg evaluate --out` writes", EVALUATION_BYTES)
    try:
        content = parse_json(raw, _no_number)
        if content["format"] == _UNFINISHED:
            raise InputError(f"{folder}: this evaluation was interrupted or failed; run `seamseg evaluate` again")
        if content["format"] != FORMAT:
            raise InputError(f"{path}: its format is {content['format']!r}, this program reads {FORMAT!r}")

        def files(of: Mapping[str, str]) -> MapFiles:
            return MapFiles(folder / of["json"], folder / of["folder"])

        classes = [ClassInfo(str(c["name"]), int(c["id"]), bool(c["isthing"])) for c in content["classes"]]
        confusion = np.array(content["confusion"], np.int64).reshape(len(classes), len(classes) + 1)
        return Evaluation(
            folder,
            str(content["title"]),
            dict(content["scores"]),
            classes,
            [_colour(c.get("color")) for c in content["classes"]],
            confusion,
            files(content["ground_truth"]),
            files(content["prediction"]),
            None if content["photos"] is None else folder / content["photos"],
            content.get("own_maps") is True,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"{path}: not the summary of an evaluation ({type(error).__name__}: {error})") from error


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _colour(value: Any) -> tuple[int, int, int] | None:
    if value is None:
        return None
    red, green, blue = (int(v) for v in value)
    return red, green, blue


def _portable(path: Path, folder: Path) -> str:
    inside = os.path.relpath(path, folder)
    return str(path.resolve()) if inside.startswith("..") else Path(inside).as_posix()
