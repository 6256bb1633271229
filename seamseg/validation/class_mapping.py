"""Results of a model in the classes of another data set, which they are scored on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seamseg.checkpoints.class_table import ClassTable
from seamseg.maps.evaluation.scores import MappedClasses
from seamseg.maps.formats.label_png import look_up
from seamseg.maps.formats.metadata import Metadata, class_infos
from seamseg.maps.panoptic_map import VOID, PanopticResult, Segment
from seamseg.maps.predictions import ArrayPrediction
from seamseg.utils.errors import InputError


@dataclass(frozen=True)
class ClassMapping:
    """Maps the classes of a model, `trained`, to `classes` of a data set, which decides which of them are things.

    `targets` has the class of the data set for each class of the model, 255 (void) for none. `table` is as given. With
    `only_things` stuff does not count.
    """

    trained: Metadata
    classes: Metadata
    targets: Sequence[int]
    table: str
    only_things: bool = False

    @staticmethod
    def of(table: ClassTable, trained: Metadata, name: str, only_things: bool = False) -> ClassMapping:
        """Return the mapping of a table; InputError also if it gives two classes the same one of the model."""
        targets = [VOID] * trained.num_classes
        for target, found in enumerate(table.matches(trained, name, only_things)):
            for source in found:
                if targets[source] != VOID:
                    first, second = (table.classes.categories[c] for c in (targets[source], target))
                    raise InputError(
                        f"{table.given}: {trained.categories[source]!r} of {name} is given for both {first!r} and "
                        f"{second!r}: a prediction counts for one class"
                    )
                targets[source] = target
        return ClassMapping(trained, table.classes, targets, table.table, only_things)

    def panoptic(self, result: PanopticResult) -> PanopticResult:
        """Return a panoptic map in the classes of the data set; stuff that is a thing there becomes a crowd."""
        segments: dict[int, Segment] = {}
        first_of: dict[int, int] = {}
        ids = []
        for segment in result.segments:
            target = self.targets[segment.category]
            if target == VOID:
                continue
            isthing = self.classes.is_thing(target)
            is_instance = isthing and segment.isthing and not segment.iscrowd
            first = segment.id if is_instance else first_of.setdefault(target, segment.id)
            ids.append((segment.id, first))
            if first in segments:
                before = segments[first]
                (top, left, bottom, right), (y0, x0, y1, x1) = before.box, segment.box
                box = (min(top, y0), min(left, x0), max(bottom, y1), max(right, x1))
                segments[first] = replace(before, area=before.area + segment.area, box=box)
            else:
                score, crowd = (segment.score, False) if is_instance else (None, isthing)
                segments[first] = Segment(segment.id, target, isthing, score, segment.area, segment.box, crowd)
        return PanopticResult(look_up(result.id_map, ids, result.id_map.dtype), list(segments.values()))

    def detections(self, prediction: ArrayPrediction) -> ArrayPrediction:
        """Return the detections whose class is a thing of the data set, in its classes; class maps are unchanged."""
        of_things = np.array(self.targets[self.trained.num_stuff :], np.int64)
        targets = of_things[prediction.classes]
        kept = (targets >= self.classes.num_stuff) & (targets != VOID)
        return replace(prediction.rows(np.flatnonzero(kept)), classes=targets[kept] - self.classes.num_stuff)

    def class_map(self, classes: np.ndarray) -> np.ndarray:
        """Return a class map `H x W` uint8 in the classes of the data set, 255 for void."""
        table = np.full(VOID + 1, VOID, np.uint8)
        table[: len(self.targets)] = self.targets
        mapped: np.ndarray = table[classes]
        return mapped

    def mapped_classes(self) -> MappedClasses:
        """Return the table that is stated with the scores."""
        infos, only_things = class_infos(self.classes), self.only_things
        sources: dict[int, list[str]] = {c: [] for c, info in enumerate(infos) if info.isthing or not only_things}
        void = []
        for index, (name, target) in enumerate(zip(self.trained.categories, self.targets)):
            if only_things and not self.trained.is_thing(index):
                continue
            if target in sources:
                sources[target].append(name)
            else:
                void.append(name)
        return MappedClasses(self.table, {infos[c]: names for c, names in sources.items()}, void)
