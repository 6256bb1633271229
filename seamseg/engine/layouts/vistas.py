"""Labels and names of Mapillary Vistas: a label is the place of a class in the list of `config.json`, from 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seamseg.data.metadata import Metadata
from seamseg.errors import InputError

INSTANCES_PER_LABEL = 256
_LARGEST_LABEL = 255


def vistas_labels(metadata: Metadata, source: str) -> list[int]:
    """The label of each class, its `original_ids`.

    Raises
    ------
    InputError
        if two are equal, or one leaves no place in a byte for itself and void; `source` names the classes
    """
    ids = [int(i) for i in metadata.original_ids]
    twice = next((i for k, i in enumerate(ids) if i in ids[:k]), None)
    if twice is not None:
        raise InputError(
            f"{source}: two classes have the original id {twice}, so the format vistas cannot tell them apart; "
            "use the format coco"
        )
    wrong = next((i for i in ids if not 0 <= i < _LARGEST_LABEL), None)
    if wrong is not None:
        raise InputError(
            f"{source}: a class has the original id {wrong}, but the labels of the format vistas go from 0 to "
            f"{_LARGEST_LABEL - 1}; use the format coco"
        )
    return ids


def void_label(labels: Sequence[int]) -> int:
    """The label after the last: in Vistas 1.2 (65) and 2.0 (123) the official `void--unlabeled`."""
    return max(labels) + 1


def with_panoptic_ids(metadata: Metadata, labels: Sequence[int]) -> Metadata:
    """The classes with the `category_id` of Vistas' panoptic JSON as `original_ids`: label + 1, since 0 is void."""
    return replace(metadata.without_images(), original_ids=[label + 1 for label in labels])


def photo_stem(name: str) -> str:
    """The name of a photo without folders, which Vistas does not have."""
    return name.rpartition("/")[2]


def is_group(name: str) -> bool:
    """Whether regions of a class are groups: the only crowds that the instance pictures can tell."""
    return name.endswith("group")


def config(metadata: Metadata, labels: Sequence[int]) -> dict[str, Any]:
    """The content of `config.json`; labels that no class has are void and not evaluated."""
    class_of = {label: index for index, label in enumerate(labels)}
    void = void_label(labels)
    entries = []
    for label in range(void + 1):
        index = class_of.get(label)
        if index is None:
            name = "void--unlabeled" if label == void else f"void--unused-{label}"
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
