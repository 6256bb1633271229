"""The labels of Cityscapes: 34 labels in 8 categories, of which 19 are evaluated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from seamseg.maps.formats.metadata import Metadata
from seamseg.utils.errors import InputError

IGNORED = 255
"""`train_id` of labels that are not evaluated."""

INSTANCES_FROM = 1000
"""Values of `instanceIds` images from here on are `label * 1000 + number`, smaller values are labels."""


class Label(NamedTuple):
    """A label of Cityscapes; `id` is its value in `labelIds` images, and in `instanceIds` images without a number.

    `train_id` is the class of the benchmark, 255 if the label is not evaluated. With `has_instances`, single objects
    are annotated, as `id * 1000 + number`.
    """

    name: str
    id: int
    train_id: int
    category: str
    has_instances: bool
    color: tuple[int, int, int]


LABELS = (
    Label("unlabeled", 0, 255, "void", False, (0, 0, 0)),
    Label("ego vehicle", 1, 255, "void", False, (0, 0, 0)),
    Label("rectification border", 2, 255, "void", False, (0, 0, 0)),
    Label("out of roi", 3, 255, "void", False, (0, 0, 0)),
    Label("static", 4, 255, "void", False, (0, 0, 0)),
    Label("dynamic", 5, 255, "void", False, (111, 74, 0)),
    Label("ground", 6, 255, "void", False, (81, 0, 81)),
    Label("road", 7, 0, "flat", False, (128, 64, 128)),
    Label("sidewalk", 8, 1, "flat", False, (244, 35, 232)),
    Label("parking", 9, 255, "flat", False, (250, 170, 160)),
    Label("rail track", 10, 255, "flat", False, (230, 150, 140)),
    Label("building", 11, 2, "construction", False, (70, 70, 70)),
    Label("wall", 12, 3, "construction", False, (102, 102, 156)),
    Label("fence", 13, 4, "construction", False, (190, 153, 153)),
    Label("guard rail", 14, 255, "construction", False, (180, 165, 180)),
    Label("bridge", 15, 255, "construction", False, (150, 100, 100)),
    Label("tunnel", 16, 255, "construction", False, (150, 120, 90)),
    Label("pole", 17, 5, "object", False, (153, 153, 153)),
    Label("polegroup", 18, 255, "object", False, (153, 153, 153)),
    Label("traffic light", 19, 6, "object", False, (250, 170, 30)),
    Label("traffic sign", 20, 7, "object", False, (220, 220, 0)),
    Label("vegetation", 21, 8, "nature", False, (107, 142, 35)),
    Label("terrain", 22, 9, "nature", False, (152, 251, 152)),
    Label("sky", 23, 10, "sky", False, (70, 130, 180)),
    Label("person", 24, 11, "human", True, (220, 20, 60)),
    Label("rider", 25, 12, "human", True, (255, 0, 0)),
    Label("car", 26, 13, "vehicle", True, (0, 0, 142)),
    Label("truck", 27, 14, "vehicle", True, (0, 0, 70)),
    Label("bus", 28, 15, "vehicle", True, (0, 60, 100)),
    Label("caravan", 29, 255, "vehicle", True, (0, 0, 90)),
    Label("trailer", 30, 255, "vehicle", True, (0, 0, 110)),
    Label("train", 31, 16, "vehicle", True, (0, 80, 100)),
    Label("motorcycle", 32, 17, "vehicle", True, (0, 0, 230)),
    Label("bicycle", 33, 18, "vehicle", True, (119, 11, 32)),
)

LABEL_OF = {label.id: label for label in LABELS}
"""Labels by id."""

LICENSE_PLATES = {"labelIds": 0xFF, "instanceIds": 0xFFFF}
"""Label -1 as stored in 8 and 16 bits; it is void."""

EVALUATED = sorted((label for label in LABELS if label.train_id != IGNORED), key=lambda label: label.train_id)
"""The 19 labels of the benchmark in the order of our classes: 11 stuff, 8 things; others are void."""


def cityscapes_classes() -> Metadata:
    """Return the metadata of the Cityscapes classes, without images."""
    num_thing = sum(label.has_instances for label in EVALUATED)
    return Metadata(
        num_stuff=len(EVALUATED) - num_thing,
        num_thing=num_thing,
        categories=[label.name for label in EVALUATED],
        palette=[label.color for label in EVALUATED],
        original_ids=[label.id for label in EVALUATED],
    )


def label_of_instance(values: np.ndarray, path: object) -> np.ndarray:
    """Look up the label id of values of an `instanceIds` map; licence plates have label 0, others an InputError."""
    labels = np.where(values < INSTANCES_FROM, values, values // INSTANCES_FROM)
    labels[values == LICENSE_PLATES["instanceIds"]] = 0
    wrong = ~np.isin(labels, list(LABEL_OF))
    if wrong.any():
        value, label = int(values[wrong][0]), int(labels[wrong][0])
        raise InputError(f"{path}: {value} is not a Cityscapes instance id (label {label} does not exist)")
    return labels
