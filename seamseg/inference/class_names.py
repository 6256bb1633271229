"""Classes chosen by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seamseg.maps.formats.metadata import Metadata
from seamseg.utils.errors import InputError, first_names, near_names


def choose_classes(names: str | Sequence[str], metadata: Metadata, parameter: str = "classes") -> list[int]:
    """Return the indices of classes by their names, in ascending order.

    Case, blanks, `-` and `_` are ignored. Names of Vistas have parts (`human--rider--bicyclist`): one part, or several
    consecutive ones, such as `rider` or `human--rider`, select all classes that contain them.

    `names` is a list, or one text separated by commas; `parameter` is its name, for errors. InputError, with similar
    names, if there are none, or the model has no such class.
    """
    words = [w.strip() for w in (names.split(",") if isinstance(names, str) else names)]
    words = [w for w in words if w]
    if not words:
        raise InputError(f"`{parameter}`: no class is given")
    keys = [_key(name) for name in metadata.categories]
    chosen: set[int] = set()
    for word in words:
        found = [k for k, key in enumerate(keys) if _holds(key, _key(word))]
        if not found:
            suggestion = _suggestion(word, metadata.categories)
            raise InputError(f"`{parameter}`: the model has no class {word!r}; {suggestion}")
        chosen.update(found)
    return sorted(chosen)


def _key(name: str) -> tuple[str, ...]:
    return tuple(re.sub(r"[\s_-]+", " ", part).strip() for part in name.casefold().split("--"))


def _holds(name: tuple[str, ...], part: tuple[str, ...]) -> bool:
    return any(name[k : k + len(part)] == part for k in range(len(name) - len(part) + 1))


def _suggestion(word: str, categories: Sequence[str]) -> str:
    parts = {part: " ".join(_key(part)) for name in categories for part in (name, *name.split("--"))}
    key = " ".join(_key(word))
    near = near_names(key, parts.values(), 3)
    meant = list(dict.fromkeys(part for wanted in near for part, text in parts.items() if text == wanted))[:3]
    known = f"its classes are {first_names(categories)}"
    return f"did you mean {' or '.join(meant)}? {known}" if meant else known
