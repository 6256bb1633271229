"""The format of Mapillary Vistas: labels, numbering of instances, names of groups, `config.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from seamseg.formats.metadata import Metadata
from seamseg.utils.errors import InputError

INSTANCES_PER_LABEL = 256
"""The values of the images in `instances/` are `label * 256 + number`."""

GROUP_SUFFIX = "-group"
"""Suffix of the names of group classes."""


def is_group(name: str) -> bool:
    """Whether all regions of a class are groups, i.e. crowds; the dash of the suffix is optional."""
    return name.endswith("group")


_LARGEST_LABEL = 255


def vistas_labels(metadata: Metadata, source: str) -> list[int]:
    """Return the label of each class, its `original_ids`.

    Raises
    ------
    InputError
        if two are equal, or one does not fit into a byte together with void; `source` names the classes
    """
    ids = [int(i) for i in metadata.original_ids]
    twice = next((i for k, i in enumerate(ids) if i in ids[:k]), None)
    if twice is not None:
        raise InputError(
            f"{source}: two classes have the original id {twice}, which the format vistas does not support; "
            "use the format coco"
        )
    wrong = next((i for i in ids if not 0 <= i < _LARGEST_LABEL), None)
    if wrong is not None:
        raise InputError(
            f"{source}: a class has the original id {wrong}, but the labels of the format vistas are 0 to "
            f"{_LARGEST_LABEL - 1}; use the format coco"
        )
    return ids


def void_label(labels: Sequence[int]) -> int:
    """Return the label after the last one: in Vistas 1.2 (65) and 2.0 (123) the official `void--unlabeled`."""
    return max(labels) + 1


def with_panoptic_ids(metadata: Metadata, labels: Sequence[int]) -> Metadata:
    """Replace the `original_ids` by the `category_id` of the panoptic JSON of Vistas: label + 1, since 0 is void."""
    return replace(metadata.without_images(), original_ids=[label + 1 for label in labels])


def photo_stem(name: str) -> str:
    """Remove the folders of the name of a photo; Vistas has none."""
    return name.rpartition("/")[2]


def group_labels(metadata: Metadata, labels: Sequence[int], source: str) -> dict[int, int]:
    """Assign labels after that of void to the crowds of each class that is not a group itself.

    They are named `<class>-group` and not evaluated, like the groups of Vistas 2.0.

    Raises
    ------
    InputError
        if there are too many labels, or a class has the name of a group; `source` names the data set
    """
    crowds = {c for image in metadata.images for c, crowd in zip(image.cat, image.iscrowd) if crowd}
    classes = [c for c in sorted(crowds) if metadata.is_thing(c) and not is_group(metadata.categories[c])]
    first = void_label(labels) + 1
    if classes and first + len(classes) - 1 > _LARGEST_LABEL:
        raise InputError(f"{source}: more than {_LARGEST_LABEL} labels including those of crowds; use the format coco")
    for c in classes:
        if _group_name(metadata, c) in metadata.categories:
            raise InputError(
                f"{source}: {metadata.categories[c]!r} has crowds, but {_group_name(metadata, c)!r} is another "
                "class; use the format coco"
            )
    return {c: first + k for k, c in enumerate(classes)}


def _group_name(metadata: Metadata, category: int) -> str:
    return metadata.categories[category] + GROUP_SUFFIX


def config(metadata: Metadata, labels: Sequence[int], groups: Mapping[int, int]) -> dict[str, Any]:
    """Create the content of `config.json`; groups and unused labels are not evaluated."""
    class_of = {label: index for index, label in enumerate(labels)}
    void = void_label(labels)
    entries = []
    group_of = {label: index for index, label in groups.items()}
    for label in range(void + 1 + len(groups)):
        index = class_of.get(label)
        if index is None:
            name = "void--unlabeled" if label == void else f"void--unused-{label}"
            if label in group_of:
                name = _group_name(metadata, group_of[label])
            entry = {"name": name, "readable": name, "instances": False, "evaluate": False, "color": [0, 0, 0]}
        else:
            name = metadata.categories[index]
            entry = {
                "name": name,
                "readable": name,
                "instances": metadata.is_thing(index),
                "evaluate": True,
                "color": list(metadata.palette[index]),
            }
        entries.append(entry)
    return {"version": 1.2, "labels": entries}
