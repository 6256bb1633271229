"""Pixel and instance level of the Cityscapes benchmark by the official tools (`cityscapesscripts`), frame by frame.

The tools read the files again, of which sizes and labels are checked before, and neither print nor write anything.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from seamseg.maps.evaluation.panoptic_quality import check_sizes
from seamseg.maps.evaluation.scores import PanopticScores, mean, or_none, percent_lines
from seamseg.maps.formats.cityscapes.instance_files import read_instance_list
from seamseg.maps.formats.cityscapes.labels import EVALUATED, LABEL_OF, LABELS
from seamseg.maps.formats.cityscapes.layout import CityscapesFrame, predictions_by_frame
from seamseg.maps.images import open_mask
from seamseg.utils.errors import InputError, counted, require_module
from seamseg.utils.limits import open_pillow, reading_image

Numbers: TypeAlias = Mapping[str, float]
"""`IoU` and `iIoU` of the pixel level, `iIoU` NaN for classes without instances; `AP` and `AP50` of instances."""


@dataclass(frozen=True)
class LevelScores:
    """Scores of the pixel or the instance level.

    Attributes
    ----------
    means : over the entries with a value, by name, also with `category_` in front for categories; AP is over the IoU
        thresholds .5, .55 ... .95, and at .5
    n_images : number of frames
    groups : the scores of each class by name, as `classes`; of the pixel level also those of `categories`
    """

    means: Numbers
    n_images: int
    groups: Mapping[str, Mapping[str, Numbers]]

    def to_json(self) -> dict[str, Any]:
        """Return the scores by name, None for NaN."""
        groups = {title: {name: _json(row) for name, row in rows.items()} for title, rows in self.groups.items()}
        return {**_json(self.means), "n_images": self.n_images, **groups}

    def table(self, title: str) -> str:
        """Format the scores as plain text in percent."""
        keys, values = list(self.means)[:2], list(self.means.values())
        counts = [f"{len(rows)} {group}" for group, rows in self.groups.items()] if len(values) > 2 else ["all"]
        parts = [[(name, values[2 * k : 2 * k + 2]) for k, name in enumerate(counts)]]
        for rows in self.groups.values():
            known = {name: list(row.values()) for name, row in rows.items()}
            parts.append([(name, row) for name, row in known.items() if not all(map(math.isnan, row))])
        lines = [title]
        for part in parts:
            lines += [*percent_lines("", keys, part, width=14, column=10), ""]
        return "\n".join([*lines, f"{counted(self.n_images, 'frame')}; in percent; means over the classes that occur"])


@dataclass(frozen=True)
class CityscapesScores:
    """Scores of the parts of a results folder, None for missing parts.

    Attributes
    ----------
    not_found : names of the missing parts
    """

    pixel: LevelScores | None = None
    instance: LevelScores | None = None
    panoptic: PanopticScores | None = None
    not_found: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the JSON file: the scores of each part, None for missing parts."""
        parts = {"pixel": self.pixel, "instance": self.instance, "panoptic": self.panoptic}
        return {"protocol": "cityscapes", **{k: None if p is None else p.to_json() for k, p in parts.items()}}

    def table(self) -> str:
        """Format the scores as plain text in percent, a section for each part, `-` for NaN; list the missing parts."""
        levels = {"pixel level": self.pixel, "instance level": self.instance}
        sections = [level.table(title) for title, level in levels.items() if level is not None]
        if self.panoptic is not None:
            sections.append(f"panoptic\n{self.panoptic.table()}")
        if self.not_found:
            sections.append(f"not evaluated, because not found: {', '.join(self.not_found)}")
        return "\n\n".join(sections)


def _json(numbers: Numbers) -> dict[str, float | None]:
    return {name: or_none(value) for name, value in numbers.items()}


class _Tool:
    """A module of `cityscapesscripts.evaluation`, and its options."""

    def __init__(self, name: str) -> None:
        what = "the pixel and instance level of Cityscapes"
        self.module = require_module(f"cityscapesscripts.evaluation.{name}", what)
        # cityscapesscripts 2.3 calls a function that numpy 2.4 no longer has
        if not hasattr(np, "in1d"):
            np.in1d = np.isin  # type: ignore[attr-defined]
        self.args = copy.copy(self.module.args)
        self.args.quiet, self.args.JSONOutput = True, False
        self.n_images = 0


def _means(entries: Mapping[str, Numbers]) -> Numbers:
    return {key: mean(row[key] for row in entries.values()) for key in next(iter(entries.values()))}


def _check_labels(ids: np.ndarray, path: Path, hint: str) -> None:
    if (highest := int(ids.max())) >= len(LABELS):
        raise InputError(f"{path}: {highest} is not a Cityscapes label id{hint}")


class PixelLevel(_Tool):
    """Pixel-level evaluation of a stream of frames; constant memory."""

    def __init__(self, folder: Path, frames: Sequence[CityscapesFrame]) -> None:
        super().__init__("evalPixelLevelSemanticLabeling")
        self._files = predictions_by_frame(folder, ".png", frames)
        self._confusion = self.module.generateMatrix(self.args)
        self._instances = self.module.generateInstanceStats(self.args)

    def read(self, frame: CityscapesFrame, instance_ids: np.ndarray) -> None:
        """Check sizes and values of the label ids of a frame, and of those predicted; may run in any thread."""
        path, label_ids = self._files[frame.stem], open_mask(frame.label_ids)
        if label_ids.shape != instance_ids.shape:
            raise InputError(f"{frame.label_ids}: differs in size from {frame.instance_ids.name}")
        _check_labels(label_ids, frame.label_ids, "")
        predicted = open_mask(path)
        check_sizes(label_ids.shape, predicted.shape, path)
        _check_labels(predicted, path, "; predictions have the label ids 0 to 33 (7 road ... 33 bicycle), 0 for none")

    def add(self, frame: CityscapesFrame, _: None) -> None:
        """Add a frame that was read."""
        files = str(self._files[frame.stem]), str(frame.label_ids)
        self.module.evaluatePair(*files, self._confusion, self._instances, {}, self.args)
        self.n_images += 1

    def scores(self) -> LevelScores:
        """Compute the scores of all frames so far."""
        classes = {label.name: self._scores("Label", label.id) for label in EVALUATED}
        categories = {label.category: self._scores("Category", label.category) for label in EVALUATED}
        means = {**_means(classes), **{f"category_{key}": value for key, value in _means(categories).items()}}
        return LevelScores(means, self.n_images, {"classes": classes, "categories": categories})

    def _scores(self, group: str, key: Any) -> Numbers:
        iou = getattr(self.module, f"getIouScoreFor{group}")(key, self._confusion, self.args)
        weighted = getattr(self.module, f"getInstanceIouScoreFor{group}")
        return {"IoU": iou, "iIoU": weighted(key, self._confusion, self._instances, self.args)}


class InstanceLevel(_Tool):
    """Instance-level evaluation of a stream of frames; keeps the overlaps of all predictions."""

    def __init__(self, root: Path, frames: Sequence[CityscapesFrame]) -> None:
        super().__init__("evalInstanceLevelSemanticLabeling")
        self._root, self._files = root, predictions_by_frame(root / "instance", ".txt", frames)
        self.module.setInstanceLabels(self.args)
        self.args.predictionPath = str(root.absolute())
        self._names = list(self.args.instLabels)
        self._matches: dict[str, Any] = {}

    def read(self, frame: CityscapesFrame, instance_ids: np.ndarray) -> Mapping[str, Any]:
        """Return the overlaps of the predicted masks with the instances of a frame; may run in any thread."""
        truth, predicted = str(frame.instance_ids), self._files[frame.stem]
        # before anything decodes them
        for line in read_instance_list(predicted, self._root):
            if LABEL_OF[line.label] in EVALUATED and LABEL_OF[line.label].has_instances:
                with reading_image(line.mask, "no such mask", "not a readable mask"), open_pillow(line.mask) as image:
                    check_sizes(instance_ids.shape, (image.height, image.width), line.mask)
        with reading_image(predicted, "a mask is missing", "a mask is not readable"):
            instances = self.module.instances2dict([truth], False)
            found: Mapping[str, Any] = self.module.matchGtWithPreds([str(predicted)], [truth], instances, self.args)
        return found

    def add(self, _: CityscapesFrame, matches: Mapping[str, Any]) -> None:
        """Add the overlaps of a frame."""
        self._matches |= matches
        self.n_images += 1

    def scores(self) -> LevelScores:
        """Compute the scores of all frames so far."""
        rows = {name: [self._average(name, overlap) for overlap in self.args.overlaps] for name in self._names}
        classes = {name: {"AP": sum(row) / len(row), "AP50": row[0]} for name, row in rows.items()}
        return LevelScores(_means(classes), self.n_images, {"classes": classes})

    def _average(self, name: str, overlap: float) -> float:
        """Return the average precision of a class at a threshold; NaN without true instances."""
        args = copy.copy(self.args)
        args.instLabels, args.overlaps = [name], [overlap]
        try:
            return float(self.module.evaluateMatches(self._matches, args)[0, 0, 0])
        except IndexError:  # it fails where there are instances, and all predictions are ignored
            return 0.0
