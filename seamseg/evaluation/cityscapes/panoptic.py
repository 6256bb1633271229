"""The panoptic ground truth of Cityscapes, straight from its `instanceIds` images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from seamseg.cityscapes_labels import EVALUATED, INSTANCES_FROM, LABEL_OF
from seamseg.evaluation.cityscapes.maps import label_of_instance
from seamseg.evaluation.matching import VOID_ID, SegmentInfo
from seamseg.evaluation.scores import ClassInfo

CLASSES = [ClassInfo(label.name, label.id, label.has_instances) for label in EVALUATED]
"""The 19 classes in the order of the benchmark; `category_id` is the label id."""

CLASS_OF = {info.id: index for index, info in enumerate(CLASSES)}
"""Dense class by `category_id`."""


def segments_from_pairs(
    pairs: np.ndarray, counts: np.ndarray, path: Path = Path()
) -> tuple[np.ndarray, list[SegmentInfo]]:
    """The true segments of a frame, from the joint histogram of its `instanceIds` and another map.

    Each value is a segment, whose id it is; a class of things where instances are not told apart is a crowd; labels
    that are not evaluated are void.

    Parameters
    ----------
    pairs, counts : `K x 2` and `K`, the first column being the values
    path : of the image, for errors

    Returns
    -------
    pairs : the same with void in the place of the values that are; pairs may occur more than once
    segments : in the order of their ids, with areas; classes as in :data:`CLASSES`

    Raises
    ------
    InputError
        if a value is of no Cityscapes label
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
