"""The content of a folder of Cityscapes results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seamseg.formats.cityscapes.labels import EVALUATED, INSTANCES_FROM, LABEL_OF, label_of_instance
from seamseg.formats.cityscapes.layout import CityscapesFrame, FrameStems, check_complete, predictions_by_frame
from seamseg.formats.coco_panoptic import Annotation, CocoPanoptic, read_coco_panoptic
from seamseg.panoptic_map import VOID_ID, ClassInfo, SegmentInfo
from seamseg.utils.errors import InputError
from seamseg.utils.files import is_hidden

CLASSES = [ClassInfo(label.name, label.id, label.has_instances) for label in EVALUATED]
"""The 19 classes in the order of the benchmark; their ids are the label ids."""

CLASS_OF = {info.id: index for index, info in enumerate(CLASSES)}
"""Dense class by label id."""


def segments_from_pairs(
    pairs: np.ndarray, counts: np.ndarray, path: Path = Path()
) -> tuple[np.ndarray, list[SegmentInfo]]:
    """Extract the true segments of a frame from the joint histogram of its `instanceIds` and another map.

    Each value of `instanceIds`, in the first column, is the id of a segment. A thing label without instance number is a
    crowd. Labels that are not evaluated are void.

    Returns
    -------
    pairs : the same with 0 for void; pairs may occur more than once
    segments : segments in the order of their ids, with areas; classes as in :data:`CLASSES`
    """
    values, index = np.unique(pairs[:, 0], return_inverse=True)
    areas = np.zeros(len(values), np.int64)
    np.add.at(areas, index, counts)
    labels = label_of_instance(values, path)
    segments = []
    for value, label, area in zip(values.tolist(), labels.tolist(), areas.tolist()):
        if label in CLASS_OF:
            crowd = value < INSTANCES_FROM and LABEL_OF[label].has_instances
            segments.append(SegmentInfo(value, CLASS_OF[label], crowd, area))
    kept = np.array([label in CLASS_OF for label in labels.tolist()], bool)
    merged = pairs.copy()
    merged[~kept[index], 0] = VOID_ID
    return merged, segments


LAYOUT = "panoptic.json (or *_panoptic.json) with its PNGs, pixel/*.png, instance/*.txt with their masks"
"""Description of the parts."""


@dataclass(frozen=True)
class Results:
    """Predictions of all frames, by the stem of the frame; None for missing parts, whose names are in `not_found`."""

    root: Path
    pixel: Mapping[str, Path] | None
    instance: Mapping[str, Path] | None
    panoptic: CocoPanoptic | None
    annotations: Mapping[str, Annotation]
    not_found: list[str]


def find_results(folder: str | Path, frames: Sequence[CityscapesFrame]) -> Results:
    """Find the results in a folder, or in its subfolder `cityscapes/`, as written by `seamseg predict`.

    It has some of `panoptic.json` or `*_panoptic.json` or `cityscapes_panoptic_*.json`, the PNGs in the folder of the
    same name without `.json`; `pixel/` with maps of label ids; `instance/` with text files.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; a folder of results contains {LAYOUT}")
    if _count_parts(root / "cityscapes") > _count_parts(root):
        root = root / "cityscapes"
    if not _count_parts(root):
        raise InputError(f"{root}: contains no results; expected {LAYOUT}")
    jsons = _panoptic_jsons(root)
    if len(jsons) > 1:
        raise InputError(f"{root}: {jsons[0].name} and {jsons[1].name} are both panoptic results; keep one")
    panoptic = read_coco_panoptic(jsons[0]) if jsons else None
    annotations = {} if panoptic is None else _annotations_by_frame(panoptic, frames)
    pixel = predictions_by_frame(root / "pixel", ".png", frames) if (root / "pixel").is_dir() else None
    instance = predictions_by_frame(root / "instance", ".txt", frames) if (root / "instance").is_dir() else None
    present = {"panoptic.json": panoptic, "pixel/": pixel, "instance/": instance}
    return Results(root, pixel, instance, panoptic, annotations, [n for n, part in present.items() if part is None])


def _count_parts(root: Path) -> int:
    return bool(_panoptic_jsons(root)) + (root / "pixel").is_dir() + (root / "instance").is_dir()


def _panoptic_jsons(root: Path) -> list[Path]:
    names = ("panoptic.json", "*_panoptic.json", "cityscapes_panoptic_*.json")
    return sorted({path for name in names for path in root.glob(name) if not is_hidden(path.name)})


def _annotations_by_frame(panoptic: CocoPanoptic, frames: Sequence[CityscapesFrame]) -> Mapping[str, Annotation]:
    """Find the annotation of each frame: by its `image_id`, or by a path of an image as `image_id`."""
    stems = FrameStems(frame.stem for frame in frames)
    found: dict[str, Annotation] = {}
    exact = {str(a.image_id): a for a in panoptic.annotations}
    for annotation in panoptic.annotations:
        stem = stems.of(str(annotation.image_id).rpartition("/")[2])
        if stem is None or stem in exact:
            continue
        if stem in found:
            raise InputError(
                f"{panoptic.path}: two predictions for {stem}: the second has image_id {annotation.image_id}"
            )
        found[stem] = annotation
    found.update((frame.stem, exact[frame.stem]) for frame in frames if frame.stem in exact)
    check_complete((frame.stem for frame in frames), found, f"{panoptic.path}: no annotation with image_id {{}}")
    unknown = {c.id for c in panoptic.categories or []} - set(CLASS_OF)
    if unknown:
        raise InputError(
            f"{panoptic.path}: category {min(unknown)} is not an evaluated Cityscapes label; use label ids, 7 to 33"
        )
    return found
