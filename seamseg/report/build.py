"""Builds the page: counts all images first, then writes picture after picture to the file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from seamseg.evaluation.record import IMAGES, SUMMARY, Evaluation, ImageRecord, read_evaluation
from seamseg.report.picture import picture
from seamseg.report.statistics import ImageEntry, gather
from seamseg.report.summary import Side, labels, summary
from seamseg.utils.errors import InputError
from seamseg.utils.files import replacing
from seamseg.utils.parallel import threaded_map

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


SCRIPTS = (
    "elements", "format", "colours", "data", "tooltip", "theme", "headline", "table", "charts", "confusion",
    "errors", "paint", "panel", "filters", "cards", "segments", "viewer", "start",
)  # fmt: skip
"""The script files in the order in which they are joined; each has one idea."""


def frame(title: str) -> tuple[str, str]:
    """The page up to the data, and from the data on.

    Nothing that is loaded or run is outside the page: the policy names the hashes of its one style and one script, and
    pictures may come from the page itself only.
    """
    style = _asset("style.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(f"script_{name}.js") for name in SCRIPTS) + "})();\n"
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    before, _, after = _asset("page.html").partition("{{data}}")
    before = before.replace("{{policy}}", html.escape(policy)).replace("{{style}}", style)
    return before.replace("{{title}}", html.escape(title)), after.replace("{{script}}", script)


def block(kind: str, content: Any) -> Iterator[str]:
    """A block of inert JSON, which the script looks up by its class."""
    yield f'<script type="application/json" class="{kind}">'
    # no `<` in it, so that nothing in a name can end the block or begin a comment
    yield json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    yield "</script>\n"


def _asset(name: str) -> str:
    return (resources.files("seamseg.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


INSIDE_A_RUN = "evaluation"
"""Folder of the evaluation within a run folder."""


def find_evaluation(run: str | Path) -> Evaluation:
    """The evaluation in `run`, or in its sub-folder `evaluation`.

    Raises
    ------
    InputError
        if there is none, with the command that makes one; or if it is broken
    """
    run = Path(run)
    for folder in (run, run / INSIDE_A_RUN):
        if (folder / SUMMARY).is_file():
            return read_evaluation(folder)
    if not run.is_dir():
        raise InputError(f"{run}: no such folder; name a run or what `seamseg evaluate ... --out {run}` has written")
    raise InputError(
        f"{run}: holds no {SUMMARY}; make one with `seamseg evaluate {run} DATA --out {run / INSIDE_A_RUN}` (a model) "
        f"or `seamseg evaluate --gt GT.json --pred PRED.json --out {run}` (files)"
    )


def change(image: ImageEntry, other: ImageEntry) -> float | None:
    """PQ of an image in the first run minus that in the second; None if one of them has none."""
    return None if image.pq is None or other.pq is None else image.pq - other.pq


def choose(values: Sequence[float | None], most: int) -> list[int]:
    """Positions of the lowest and the highest values, half and half, in their order; all if there are few.

    Positions without a value come in last, when there is room.

    Parameters
    ----------
    values : PQ of the images, or the change of it
    most : positions to return at most
    """
    if len(values) <= most:
        return list(range(len(values)))
    known = sorted((value, k) for k, value in enumerate(values) if value is not None)
    order = [k for _, k in known]
    if len(order) <= most:
        unknown = [k for k, value in enumerate(values) if value is None]
        return sorted([*order, *unknown[: most - len(order)]])
    low = (most + 1) // 2
    return sorted([*order[:low], *order[len(order) - (most - low) :]])
