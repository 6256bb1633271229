"""The classes of networks of other libraries, recognised by their names; never by their order, which differs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from seamseg.checkpoints.bundle import read_statement
from seamseg.maps.formats.cityscapes.labels import cityscapes_classes
from seamseg.maps.formats.metadata import Metadata, metadata_of, read_metadata
from seamseg.maps.formats.vistas import published_classes
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.prepare.class_file import ordered_classes, read_class_list
from seamseg.utils.errors import InputError, first_names
from seamseg.utils.limits import MODEL_METADATA_BYTES

_UNUSED = re.compile(r"(LABEL_\d+|N/?A|)", re.IGNORECASE)
_STUFF_OF_VISTAS = re.compile(
    r"construction--(?!.*crosswalk)|marking--general|nature--|object--pothole|object--vehicle--on-rails|void--"
)
_ALIASES_OF_VISTAS = {
    "construction--barrier--other-barrier": "barrier",
    "marking--crosswalk-zebra": "lane marking crosswalk",
    "marking--general": "lane marking general",
    "object--traffic-sign--back": "traffic sign back",
    "object--traffic-sign--front": "traffic sign front",
}
"""Names in `config.json` of Vistas for humans, where they are not the last part of the name."""


@dataclass(frozen=True)
class NetworkClasses:
    """The classes of a network; `columns` has that of each column of its scores, `data_set` the known list."""

    metadata: Metadata
    columns: list[int | None]
    data_set: str = ""

    @cached_property
    def used(self) -> np.ndarray:
        """Class of each column that has one, int64."""
        return np.array([index for index in self.columns if index is not None], np.int64)

    def used_logits(self, scores: Tensor) -> Tensor:
        """Return logits `... x (C + 1)` of the classes :attr:`used`; columns without a class add to "no object"."""
        columns = range(len(self.columns))
        used = [column for column in columns if self.columns[column] is not None]
        if len(used) == len(columns):
            return scores
        nothing = [column for column in columns if self.columns[column] is None] + [len(columns)]
        return torch.cat((scores[..., used], scores[..., nothing].logsumexp(-1, keepdim=True)), -1)


@dataclass(frozen=True)
class ClassNames:
    """A list of classes, each with the keys of its names, the most usual first."""

    metadata: Metadata
    keys: list[list[str]]

    @staticmethod
    def of(metadata: Metadata, aliases: Mapping[str, Sequence[str]] | None = None) -> ClassNames:
        """Return the list of some classes, with further names of theirs."""
        further = aliases or {}
        return ClassNames(metadata, [_keys((name, *further.get(name, ()))) for name in metadata.categories])

    def match(self, names: Sequence[str]) -> list[int | None]:
        """Return the class of each name, None for a name of no class; a class has at most one name."""
        pairs = []
        for column, name in enumerate(names):
            rank_of = {key: rank for rank, key in enumerate(_keys((name, *name.split(","))))}
            for index, known in enumerate(self.keys):
                ranks = [rank_of[key] + rank for rank, key in enumerate(known) if key in rank_of]
                if ranks:
                    pairs.append((min(ranks), column, index))
        found: dict[int, int] = {}
        for _, column, index in sorted(pairs):
            if column not in found and index not in found.values():
                found[column] = index
        return [found.get(column) for column in range(len(names))]


def identify(names: Sequence[str], source: str, file: str | Path | None = None) -> NetworkClasses:
    """Identify the classes of a network by the names of its columns; `LABEL_n` or `N/A` is a column without a name.

    `source` names the network in errors. `file`, a class list, `metadata.bin` or JSON with COCO categories, describes
    the classes in place of a known list. InputError if it has others, or it is unknown which classes are things.
    """
    used = [column for column, name in enumerate(names) if not _UNUSED.fullmatch(name.strip())]
    named = [names[column] for column in used]
    if len(named) > VOID:
        raise InputError(f"{source}: has {len(named)} classes, more than {VOID}")
    if file is not None:
        return _from_file(names, used, source, file)
    if not named:
        raise InputError(
            f"{source}: its configuration names no class: give a class list whose ids are 0 to {len(names) - 1}, the "
            "columns of the network, with `meta=FILE`"
        )
    for data_set, known in known_lists().items():
        found = known.match(named)
        if not _difference(named, known, found):
            return NetworkClasses(known.metadata, _columns(len(names), used, found), data_set)
    raise InputError(
        f"{source}: which of its classes ({first_names(named, 3)}) are things is not known: they are none of the known "
        f"lists ({', '.join(known_lists())}): give a class list, metadata.bin or COCO categories with `meta=FILE`"
    )


def identify_things(labels: Sequence[str]) -> tuple[Metadata, np.ndarray]:
    """Return the things of COCO, and the class of each label of a detector by its name, -1 for a label of no class."""
    coco = known_lists()["coco_panoptic"].metadata
    first = coco.num_stuff
    things = Metadata(0, coco.num_thing, coco.categories[first:], coco.palette[first:], coco.original_ids[first:])
    found = ClassNames.of(things).match(labels)
    return things, np.array([-1 if index is None else index for index in found])


@cache
def known_lists() -> dict[str, ClassNames]:
    """Return the classes of well-known data sets by name."""
    vistas = published_classes()
    rows = [
        {"id": index, "name": name, "thing": not _STUFF_OF_VISTAS.match(name), "color": vistas.palette[index]}
        for index, name in enumerate(vistas.categories)
    ]
    readable = {name: (_ALIASES_OF_VISTAS.get(name, name.rpartition("--")[2]),) for name in vistas.categories}
    return {
        "cityscapes": ClassNames.of(cityscapes_classes()),
        "vistas": ClassNames.of(ordered_classes(rows)[0], readable),
        "vistas_v2": _packaged("vistas_v2"),
        "coco_panoptic": _packaged("coco_panoptic"),
        "ade20k": _packaged("ade20k"),
    }


def _packaged(name: str) -> ClassNames:
    """Read a packaged list: a line per class with id, kind, colour and names, separated by commas."""
    text = (resources.files("seamseg.contrib.foreign") / "classes" / f"{name}.txt").read_text(encoding="utf-8")
    rows, aliases = [], {}
    for line in text.splitlines():
        number, kind, red, green, blue, names = line.split(maxsplit=5)
        first, *others = names.split(", ")
        rows.append({"id": number, "name": first, "thing": kind == "thing", "color": (red, green, blue)})
        # detectron2 has the names of COCO without these endings
        aliases[first] = (*others, re.sub(r"-(other|merged|stuff)\b", "", first))
    return ClassNames.of(ordered_classes(rows)[0], aliases)


def _keys(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(re.sub(r"[\W_]+", "", name.casefold()) for name in names))


def _columns(count: int, used: Sequence[int], found: Sequence[int | None]) -> list[int | None]:
    columns: list[int | None] = [None] * count
    for column, index in zip(used, found):
        columns[column] = index
    return columns


def _difference(named: Sequence[str], known: ClassNames, found: Sequence[int | None]) -> str:
    """Return how the names differ from a list of classes; empty if they do not."""
    foreign = [name for name, index in zip(named, found) if index is None]
    lacking = [name for index, name in enumerate(known.metadata.categories) if index not in found]
    texts = [f"it has {foreign[0]!r}" if foreign else "", f"{lacking[0]!r} is missing" if lacking else ""]
    return " and ".join(filter(None, texts))


def _from_file(names: Sequence[str], used: Sequence[int], source: str, file: str | Path) -> NetworkClasses:
    """Return the classes that a file describes; the network must have the same."""
    metadata = read_classes(Path(file), kinds=True)
    if not used:
        ids = metadata.original_ids
        if sorted(ids) != list(range(len(names))):
            raise InputError(
                f"{file}: the ids must be the columns of the network, 0 to {len(names) - 1}: the configuration of "
                f"{source} names no class"
            )
        return NetworkClasses(metadata, [ids.index(column) for column in range(len(names))])
    known, named = ClassNames.of(metadata), [names[column] for column in used]
    found = known.match(named)
    if problem := _difference(named, known, found):
        raise InputError(f"{file}: is not the list of the classes of {source}: {problem}")
    return NetworkClasses(metadata, _columns(len(names), used, found))


def read_classes(path: Path, kinds: bool = False) -> Metadata:
    """Read a class list, `metadata.bin` or COCO categories; with `kinds` it must state which are things."""
    if path.suffix == ".bin" or path.is_dir():
        file = path / "metadata.bin" if path.is_dir() else path
        return replace(read_metadata(file, MODEL_METADATA_BYTES), images=[])
    if path.name == "metadata.json":
        return metadata_of(read_statement(path), str(path))
    return read_class_list(path, kinds).classes
