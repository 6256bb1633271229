"""The report's page of a folder of predictions, without ground truth: overlays, and counts by class."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seamseg.maps.evaluation.record import SUMMARY
from seamseg.maps.predictions import MANIFEST
from seamseg.maps.report.build import ReportSummary, select_extremes, write_page
from seamseg.maps.report.images import jpeg_text, reduced_shape
from seamseg.utils.errors import InputError, printable
from seamseg.utils.limits import parse_json
from seamseg.utils.progress import ProgressCallback, no_progress

_COUNTED = ("segments", "detections", "classes")


@dataclass(frozen=True)
class _Predicted:
    name: str
    size: tuple[int, int]
    """Width and height."""
    counts: dict[str, int]
    overlay: str | None


def is_gallery(folder: Path) -> bool:
    """Return whether a folder holds predictions, and no evaluation."""
    return (folder / MANIFEST).is_file() and not any((folder / sub / SUMMARY).is_file() for sub in ("", "evaluation"))


def write_gallery(
    path: str | Path, folder: Path, progress: ProgressCallback = no_progress, images: int = 500, size: int = 640
) -> ReportSummary:
    """Write the page of a folder of `seamseg predict`; arguments as of :func:`write_report`.

    Of more than `images`, those with the most and the fewest segments are shown. InputError if no image is done, or
    none has an overlay.
    """
    done, failed = _read_manifest(folder / MANIFEST)
    names = list(dict.fromkeys(name for one in done for name in one.counts))
    found = sum((Counter(one.counts) for one in done), Counter[str]())
    held = Counter(name for one in done for name in one.counts)
    chosen = [done[k] for k in select_extremes([sum(one.counts.values()) for one in done], images)]
    number = {name: k for k, name in enumerate(names)}
    summary = {
        "titles": [printable(folder.resolve().name)],
        "scored": False,
        "training": [None],
        "headline": [],
        "n_images": [len(done)],
        **({"failed": [failed]} if failed else {}),
        "maps": [],
        "classes": [
            {"name": printable(name), "color": [0, 0, 0], "Images": [held[name]], "Found": [found[name]]}
            for name in names
        ],
        "total": len(done),
        "images": [
            {
                "name": printable(one.name),
                "size": one.size,
                "classes": [[[number[name], count] for name, count in one.counts.items()]],
            }
            for one in chosen
        ],
    }
    return write_page(Path(path), summary, chosen, partial(_block, folder=folder, size=size), progress)


def _block(one: _Predicted, folder: Path, size: int) -> tuple[dict[str, Any], bool, list[str]]:
    height, width = shape = reduced_shape(one.size[1], one.size[0], size)
    photo = jpeg_text(folder, one.overlay, shape)
    return {"width": width, "height": height, "photo": photo, "results": []}, photo is not None, []


def _read_manifest(path: Path) -> tuple[list[_Predicted], int]:
    done: dict[str, _Predicted | None] = {}
    with open(path, "rb") as file:
        next(file, None)  # the settings
        for number, text in enumerate(file, 2):
            try:
                line = parse_json(text)
            except ValueError:
                continue  # written in part: the process was killed
            try:
                done[line["name"]] = None
                if line["status"] == "ok":
                    counts: dict[str, int] = next((line[key] for key in _COUNTED if key in line), {})
                    overlay = next((name for name in line["outputs"] if name.lower().endswith(".jpg")), None)
                    size = line["width"], line["height"]
                    done[line["name"]] = _Predicted(line["name"], size, counts, overlay)
            except (ValueError, LookupError, TypeError) as error:
                raise InputError(f"{path}, line {number}: not a line of `seamseg predict`: {error}") from None
    found = sorted((one for one in done.values() if one is not None), key=lambda one: one.name)
    if not any(one.overlay for one in found):
        raise InputError(f"{path.parent}: holds no overlay; predict with --format overlay, also beside other formats")
    return found, len(done) - len(found)
