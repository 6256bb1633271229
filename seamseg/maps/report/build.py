"""Building the report: counts over all images first, then the images are written one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seamseg.maps.evaluation.record import IMAGES, SUMMARY, Evaluation, ImageRecord, read_evaluation
from seamseg.maps.report.images import image_block
from seamseg.maps.report.page import Page, page_frame
from seamseg.maps.report.summary import ImageEntry, ReportRun, summary_block
from seamseg.utils.errors import InputError
from seamseg.utils.files import nearest_path, replacing
from seamseg.utils.parallel import threaded_map
from seamseg.utils.progress import ProgressCallback, no_progress

_THREADS = 2
"""That read maps and images."""


@dataclass(frozen=True)
class ReportSummary:
    """Number of images in a report, number without a readable image file, and a line for each broken map."""

    images: int
    without_image: int
    problems: list[str]


def write_report(
    path: str | Path,
    evaluation: Evaluation,
    against: Evaluation | None = None,
    progress: ProgressCallback = no_progress,
    images: int = 500,
    photos: Path | None = None,
    size: int = 640,
) -> ReportSummary:
    """Write the HTML file atomically, with one image in memory at a time; missing folders are created.

    `against` is a baseline for a comparison, image by image; `progress(iterable, total, description)` wraps the images.
    Of more than `images`, the worst and the best are shown, with `size` pixels along their longest side. `photos` is
    their folder, None for the one that the evaluation names.

    InputError if the two differ in their classes or have no image in common, or if an evaluation is broken.
    """
    evaluations = [evaluation] if against is None else [evaluation, against]
    if against is not None:
        names = [[(c.name, c.isthing) for c in run.classes] for run in evaluations]
        if names[0] != names[1]:
            other = next((b for a, b in zip(*names) if a != b), None)
            detail = f", for example {other[0]!r}" if other else f": {len(names[1])}, not {len(names[0])}"
            raise InputError(
                f"{against.folder}: its classes differ from {evaluation.folder}{detail}; compare runs on one data set"
            )
    runs = [ReportRun(one) for one in evaluations]
    for run in runs:
        for image in run.evaluation.images():
            run.add(image)
        if not run.images:
            raise InputError(
                f"{run.evaluation.folder / IMAGES}: contains no image; evaluate again with `seamseg evaluate --out`"
            )
    joined, unpaired = _join(runs)
    values = [first.pq for first, *_ in joined]
    if against is not None:
        values = [None if a.pq is None or b.pq is None else a.pq - b.pq for a, b in joined]
    chosen = [joined[k] for k in select_extremes(values, images)]
    build = partial(image_block, photos=photos or evaluation.photos, size=size)
    return write_page(Path(path), summary_block(runs, chosen, unpaired), _records(evaluations, chosen), build, progress)


def write_page(
    path: Path,
    summary: dict[str, Any],
    records: Iterable[Any],
    build: Callable[[Any], tuple[dict[str, Any], bool, list[str]]],
    progress: ProgressCallback,
) -> ReportSummary:
    """Write the HTML file of a summary block; `build` returns of each record what :func:`image_block` returns."""
    without, problems, count = 0, list[str](), len(summary["images"])
    before, after = page_frame(" vs. ".join(summary["titles"]), PAGE)
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", errors="replace") as file:
        file.write(before)
        file.writelines(_json_block("summary", summary))
        for content, has_image, found in progress(threaded_map(build, records, _THREADS), count, "drawing"):
            without += not has_image
            problems += found
            file.writelines(_json_block("image", content))
        file.writelines(_json_block("ending", {"without_photo": without}))
        file.write(after)
    return ReportSummary(count, without, problems)


def _join(runs: Sequence[ReportRun]) -> tuple[list[tuple[ImageEntry, ...]], int]:
    """Pair the images of all runs, in the order of the first run, and count those without a partner."""
    first = runs[0].images
    if len(runs) == 1:
        return [(entry,) for entry in first], 0
    other = {entry.image_id: entry for entry in runs[1].images}
    joined: list[tuple[ImageEntry, ...]] = [
        (entry, other[entry.image_id]) for entry in first if entry.image_id in other
    ]
    if not joined:
        folders = [run.evaluation.folder for run in runs]
        raise InputError(f"{folders[0]} and {folders[1]} have no image in common; compare runs on one data set")
    return joined, len(first) + len(other) - 2 * len(joined)


def _records(
    evaluations: Sequence[Evaluation], chosen: Sequence[tuple[ImageEntry, ...]]
) -> Iterator[list[tuple[Evaluation, ImageRecord]]]:
    first, *others = evaluations
    ids = {entries[0].image_id for entries in chosen}
    by_id = [{image.image_id: image for image in other.images() if image.image_id in ids} for other in others]
    for image in first.images():
        if image.image_id in ids:
            yield [(first, image), *((other, found[image.image_id]) for other, found in zip(others, by_id))]


PAGE = Page("seamseg.maps.report", ("helpers", "maps", "data", "summary", "images", "gallery", "viewer", "page"))


def _json_block(kind: str, content: Any) -> Iterator[str]:
    """Write a JSON block, which the script finds by its class."""
    yield f'<script type="application/json" class="{kind}">'
    # without `<`, no name can end the block or start a comment
    yield json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    yield "</script>\n"


def find_evaluation(run: str | Path) -> Evaluation:
    """Read the evaluation in `run` or in its subfolder `evaluation`; InputError if there is none or it is broken."""
    run = Path(run)
    for folder in (run, run / "evaluation"):
        if (folder / SUMMARY).is_file():
            return read_evaluation(folder)
    if not run.is_dir():
        meant = nearest_path(run) or "; name a run or the folder of `seamseg evaluate --out`"
        raise InputError(f"{run}: no such folder{meant}")
    raise InputError(
        f"{run}: has no {SUMMARY}; use `seamseg evaluate {run} DATA --out {run / 'evaluation'}` (panoptic model) "
        f"or `seamseg evaluate --gt GT.json --pred PRED.json --out {run}` (files)"
    )


def select_extremes(values: Sequence[float | None], count: int) -> list[int]:
    """Select the positions of the lowest and the highest values, half each, at most `count`, in rising order.

    Positions without a value are only used if there are fewer than `count` values.
    """
    if len(values) <= count:
        return list(range(len(values)))
    known = sorted((value, k) for k, value in enumerate(values) if value is not None)
    order = [k for _, k in known]
    if len(order) <= count:
        unknown = [k for k, value in enumerate(values) if value is None]
        return sorted([*order, *unknown[: count - len(order)]])
    low = (count + 1) // 2
    return sorted([*order[:low], *order[len(order) - (count - low) :]])
