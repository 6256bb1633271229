"""Classes of a model and of another data set by name; the rows of classification layers for pre-training follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seamseg.config.experiments import CLASS_TABLES, experiments
from seamseg.maps.formats.metadata import Metadata
from seamseg.utils.errors import InputError, did_you_mean
from seamseg.utils.files import read_text
from seamseg.utils.limits import CONFIG_BYTES, read_ini

NAMES = "names"
"""The table by which classes of equal names correspond."""

_LAYERS = {
    "sem_head": {"conv_sem": "all"},
    "cls": {"": "all"},
    "roi_head": {"roi_cls": "scores", "roi_bbx": "things", "roi_msk": "things"},
}
"""Layers with rows for each class, by part: rows for all classes, for background and things, or equal numbers of rows
for each thing."""

PARTS = tuple(_LAYERS)
"""Parts of a network that have such layers."""


@dataclass(frozen=True)
class ClassTable:
    """Which classes of a model correspond to each class of a data set, `classes`.

    `table` is :data:`NAMES`, the name of a packaged table, or an INI file whose section `[classes]` has entries
    `class = class of the model`. Of several classes, separated by commas, the model's count: all in an evaluation, the
    first in pre-training. Upper and lower case are equal. Errors name the parameter `option`.
    """

    classes: Metadata
    table: str
    option: str = "pretrain_classes"

    def matches(self, trained: Metadata, name: str, only_things: bool = False) -> list[list[int]]:
        """Return the indices of the classes of the model for each class, in the order of the table.

        With `only_things`, for a detector, entries of stuff may name classes that it does not have. InputError if the
        table is missing or damaged, or names unknown classes; or no class has one of the model, `name`.
        """
        known = {_key(category): index for index, category in enumerate(trained.categories)}
        if self.table == NAMES:
            keys = [_key(category) for category in self.classes.categories]
            found = [[known[key]] if key in known else [] for key in keys]
        else:
            entries = self._entries()
            found = [
                self._match(entries.get(_key(c)), known, name, only_things and not self.classes.is_thing(index))
                for index, c in enumerate(self.classes.categories)
            ]
        if not any(found):
            raise InputError(
                f"{self.given}: no class of the data set is one of {name}, whose classes "
                f"are {', '.join(trained.categories[:5])}, ...: give a table of classes"
            )
        return found

    def sources(self, trained: Metadata, name: str) -> list[int | None]:
        """Return the index of the pre-trained class of each class, None where there is none; see :meth:`matches`."""
        return [found[0] if found else None for found in self.matches(trained, name)]

    @property
    def given(self) -> str:
        """The parameter and its value, for errors."""
        return f"`{self.option}={self.table}`"

    def _entries(self) -> dict[str, str]:
        """Return the classes of the model for each class as written."""
        tables = experiments(CLASS_TABLES)
        path = Path(self.table)
        if not path.is_file():
            path = tables.get(self.table, path)
        if not path.is_file():
            known = [NAMES, *tables]
            meant = did_you_mean(self.table, known) or f"; packaged are {', '.join(known)}"
            raise InputError(f"{self.given}: no such table of classes{meant}")
        where = f"{path}: not a table of classes"
        sections = read_ini(read_text(path, "table of classes", CONFIG_BYTES), where, "=", _key)
        if list(sections) != ["classes"]:
            raise InputError(f"{where}: it must have one section, [classes]")
        entries = sections["classes"]
        own = {_key(category) for category in self.classes.categories}
        unknown = next((entry for entry in entries if entry not in own), None)
        if unknown is not None:
            raise InputError(f"{path}: the data set has no class {unknown!r}{did_you_mean(unknown, own)}")
        return entries

    def _match(self, names: str | None, known: Mapping[str, int], model: str, optional: bool) -> list[int]:
        if names is None:
            return []
        words = [_key(word) for word in names.split(",")]
        found = [known[word] for word in dict.fromkeys(words) if word in known]
        if not found and not optional:
            raise InputError(f"{self.given}: {model} has no class {words[0]!r}{did_you_mean(words[0], known)}")
        return found

    def remap(
        self, state: Mapping[str, Any], net: nn.Module, trained: Metadata, name: str
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the state of a pre-trained network, by part, for the classes of the data set.

        Only :data:`PARTS` change. Rows of classes that no pre-trained one exists for are those of `net`, which has
        random weights, as are the box and mask layers of things that were stuff in the pre-training. Also return a line
        for each class of which some layers start at random. InputError as :meth:`matches`, or if the state does not
        have the rows that its classes require.
        """
        sources = self.sources(trained, name)
        first, of_things = trained.num_stuff, sources[self.classes.num_stuff :]
        things = [s - first if s is not None and s >= first else None for s in of_things]
        rows = {"all": (sources, trained.num_classes), "things": (things, trained.num_thing)}
        scores = [0, *(None if thing is None else thing + 1 for thing in things)]
        rows["scores"] = (scores, trained.num_thing + 1)
        made = dict(state)
        for part, layers in _LAYERS.items():
            module = getattr(net, part, None)
            if module is None or not isinstance(state.get(part), Mapping):
                continue
            made[part], own = dict(state[part]), module.state_dict()
            for layer, kind in layers.items():
                for key in (f"{layer}.weight".lstrip("."), f"{layer}.bias".lstrip(".")):
                    if isinstance(found := made[part].get(key), Tensor) and key in own:
                        made[part][key] = _rows_of(found, own[key], *rows[kind], f"{name}: {part}.{key}")
        return made, self._fresh(sources, trained, hasattr(net, "roi_head"))

    def _fresh(self, sources: list[int | None], trained: Metadata, has_boxes: bool) -> list[str]:
        lines = []
        for index, (category, source) in enumerate(zip(self.classes.categories, sources)):
            if source is None:
                lines.append(f"class {category!r} starts at random: no class of the pre-training")
            elif has_boxes and self.classes.is_thing(index) and not trained.is_thing(source):
                stuff = trained.categories[source]
                lines.append(
                    f"class {category!r}: boxes and masks start at random: {stuff!r} is stuff in the pre-training"
                )
        return lines


def _key(name: str) -> str:
    return " ".join(name.casefold().split())


def _rows_of(values: Tensor, own: Tensor, sources: list[int | None], count: int, name: str) -> Tensor:
    """Return the rows of `values`, in `count` equal groups, in the order of `sources`; rows of `own` for None."""
    each = own.shape[0] // len(sources)
    if values.shape[1:] != own.shape[1:]:
        return values  # of another architecture: skipped, as any tensor that does not fit
    if values.shape[:1] != (count * each,):
        raise InputError(f"{name} has {tuple(values.shape)} numbers, which are not those of {count} classes")
    made = own.detach().clone().unflatten(0, (len(sources), each))
    groups = values.to(made.dtype).unflatten(0, (count, each))
    for row, source in enumerate(sources):
        if source is not None:
            made[row] = groups[source]
    return torch.flatten(made, 0, 1)
