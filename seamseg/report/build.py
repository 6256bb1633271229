"""Builds the page: counts all images first, then writes picture after picture to the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seamseg.errors import InputError
from seamseg.evaluation.record import IMAGES, Evaluation, ImageRecord
from seamseg.evaluation.threads import threaded_map
from seamseg.files import replacing
from seamseg.report.choose import change, choose
from seamseg.report.page import block, frame
from seamseg.report.picture import picture
from seamseg.report.statistics import ImageEntry, gather
from seamseg.report.summary import Side, labels, summary

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]


@dataclass(frozen=True)
class ReportOptions:
    """What may be chosen.

    Attributes
    ----------
    images : pictures at most; of more images, the worst and the best
    photos : folder of the photos, instead of the one that the evaluation names
    size : longest side of the pictures in pixels
    workers : threads that read maps and photos
    """

    images: int = 500
    photos: Path | None = None
    size: int = 640
    workers: int = 2


@dataclass(frozen=True)
class Written:
    """What became of a page: its pictures, and those of them without a photo."""

    pictures: int
    without_photo: int


def write_report(
    path: str | Path,
    evaluation: Evaluation,
    against: Evaluation | None = None,
    options: ReportOptions | None = None,
    progress: Progress | None = None,
) -> Written:
    """Write the page, whole or not at all, one image in memory at a time.

    Parameters
    ----------
    path : of the HTML file; its folder is made if need be
    evaluation : what the page is about
    against : what it is compared with, image by image
    options : see :class:`ReportOptions`
    progress : wraps the images, `progress(iterable, total, description)`

    Raises
    ------
    InputError
        if the two have other classes or no image in common; if an evaluation or a map is missing, broken or changed
    """
    options = options or ReportOptions()
    runs = [evaluation] if against is None else [evaluation, against]
    if against is not None:
        _check_same_classes(evaluation, against)
    sides = [Side(run, gather(_checked(run))) for run in runs]
    joined, lost = _join(sides)
    values = [entries[0].pq if against is None else change(*entries) for entries in joined]
    chosen = [joined[k] for k in choose(values, options.images)]
    photos = options.photos or evaluation.photos
    without = 0
    before, after = frame(" vs. ".join(labels(runs)))

    def draw(images: list[tuple[Evaluation, ImageRecord]]) -> tuple[dict[str, Any], bool]:
        return picture(images, photos, options.size)

    with replacing(Path(path)) as temporary, open(temporary, "w", encoding="utf-8", errors="replace") as file:
        file.write(before)
        file.writelines(block("summary", summary(sides, chosen, lost)))
        drawn: Iterable[Any] = threaded_map(draw, _records(runs, chosen), options.workers)
        for content, has_photo in drawn if progress is None else progress(drawn, len(chosen), "drawing"):
            without += not has_photo
            file.writelines(block("picture", content))
        file.writelines(block("ending", {"without_photo": without}))
        file.write(after)
    return Written(len(chosen), without)


def _checked(run: Evaluation) -> Iterator[ImageRecord]:
    """The images of an evaluation, each checked and met once."""
    seen: set[int | str] = set()
    for number, image in enumerate(run.images(), start=1):
        where = f"{run.folder / IMAGES}, line {number}"
        try:
            _check(image, len(run.classes))
        except ValueError as error:
            raise InputError(f"{where}: not the record of an image: {error}") from error
        if image.image_id in seen:
            raise InputError(f"{where}: image {image.image_id} comes twice")
        seen.add(image.image_id)
        yield image
    if not seen:
        raise InputError(f"{run.folder / IMAGES}: lists no image; evaluate again with --out")


def _check(image: ImageRecord, classes: int) -> None:
    """ValueError for a segment of a class that does not exist."""
    for segment in (*image.ground_truth, *image.prediction):
        if not 0 <= segment.category < classes:
            raise ValueError(f"segment {segment.id} is of class {segment.category}, there are {classes} classes")


def _check_same_classes(evaluation: Evaluation, against: Evaluation) -> None:
    names = [[(c.name, c.isthing) for c in run.classes] for run in (evaluation, against)]
    if names[0] != names[1]:
        other = next((b for a, b in zip(*names) if a != b), None)
        detail = f", for example {other[0]!r}" if other else f": {len(names[1])}, not {len(names[0])}"
        raise InputError(
            f"{against.folder}: its classes are not those of {evaluation.folder}{detail}; compare runs on one data set"
        )


def _join(sides: Sequence[Side]) -> tuple[list[tuple[ImageEntry, ...]], int]:
    """The images that all sides have, in the order of the first, and how many are not in all."""
    first = sides[0].statistics.images
    if len(sides) == 1:
        return [(entry,) for entry in first], 0
    other = {entry.image_id: entry for entry in sides[1].statistics.images}
    joined: list[tuple[ImageEntry, ...]] = [
        (entry, other[entry.image_id]) for entry in first if entry.image_id in other
    ]
    if not joined:
        folders = [side.evaluation.folder for side in sides]
        raise InputError(f"{folders[0]} and {folders[1]} have no image in common; compare runs on one data set")
    return joined, len(first) + len(other) - 2 * len(joined)


def _records(
    runs: Sequence[Evaluation], chosen: Sequence[tuple[ImageEntry, ...]]
) -> Iterator[list[tuple[Evaluation, ImageRecord]]]:
    """The records of the chosen images, a list with one a run; the chosen are in the order of the first run."""
    wanted = {entries[0].image_id for entries in chosen}
    others = [{image.image_id: image for image in run.images() if image.image_id in wanted} for run in runs[1:]]
    for image in runs[0].images():
        if image.image_id in wanted:
            partners = [(run, by_id[image.image_id]) for run, by_id in zip(runs[1:], others)]
            yield [(runs[0], image), *partners]
