"""Class lists of custom data sets: INI, JSON, a text file of names, or `data.yaml` of YOLO."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from seamseg.maps.formats.metadata import Metadata, parse_colour
from seamseg.maps.panoptic_map import VOID
from seamseg.maps.visualize.overlay import class_colors
from seamseg.utils.errors import InputError, describe_error, first_names
from seamseg.utils.files import decode_text, read_bytes
from seamseg.utils.limits import CONFIG_BYTES, parse_json, read_ini, whole_number

_THINGS, _STUFF = ("thing", "things", "1", "true"), ("stuff", "0", "false")
_UNPAINTED = (0, 0, 0)
BACKGROUND, IGNORED = "background", "__ignore__"
_BACKGROUNDS = (BACKGROUND, "void", "unlabeled", "unlabelled", "ignore", "ignored")


@dataclass(frozen=True)
class ClassList:
    """The classes, the class of each value of a label image, 255 for void, and the labels that are void."""

    classes: Metadata
    class_of: dict[int, int]
    void_names: frozenset[str] = frozenset()

    def class_at(self, value: int, source: object) -> int:
        """Return the class of a value of a label image, the file `source`; InputError if it has none."""
        if value not in self.class_of:
            raise InputError(f"{source}: value {value} has no class; add it to the class list, as a class or to void")
        return self.class_of[value]

    def class_named(self, label: str, source: object) -> int:
        """Return the class with a name, used in the file `source`, 255 for void; InputError if there is none."""
        names = self.classes.categories
        if label in self.void_names:
            return VOID
        if label not in names:
            raise InputError(
                f"{source}: the label {label!r:.80} is not in the class list; it has {first_names(names)} (`names` of "
                "[void] are ignored)"
            )
        return names.index(label)


def read_class_list(path: str | Path, kinds: bool = False) -> ClassList:
    """Read a class list; with `kinds`, a JSON must state which classes are things, which else all of them are.

    INI has one section per class, with `id`, `kind` (stuff or thing) and optionally `color` (`128 64 128`); the section
    `[void]` has `ids`, the void values, and `names`, labels that are void, separated by commas. JSON is a list of
    `{"id": 1, "name": "car", "isthing": 1, "color": [0, 0, 142]}`, as `categories` of COCO files, or an object with
    such a list as `categories` and optionally a list of the void values and labels as `void`.

    `*.txt` has one name per line, or ids from 0 or 1 with names, and `*.yaml` a list or an object as `names`: all are
    things, by default with ids from 0. As for labelme, `__ignore__` is void without an id, and `_background_` is stuff.
    """
    return parse_class_list(read_bytes(Path(path), "class list", CONFIG_BYTES), str(path), kinds)


def parse_class_list(data: bytes, source: str, kinds: bool = False) -> ClassList:
    """Return the class list of a file's content, see :func:`read_class_list`; `source` names it in errors."""
    text = decode_text(data, source, "class list")
    if "\0" in text:
        raise InputError(f"{source}: not a class list: it is no text")
    if source.lower().endswith((".txt", ".yaml", ".yml")):
        if kinds:
            raise InputError(f"{source}: does not state which classes are things; use an INI file or JSON")
        names = _names_of_lines(text) if source.lower().endswith(".txt") else _yolo_names(text, source)
        return list_of_names(names, source)
    is_json = source.lower().endswith(".json") or re.match(r"\s*(\{|\[\s*\{)", text) is not None
    entries, void = _from_json(text, source, kinds) if is_json else _from_ini(text, source)
    return build_class_list(entries, void, source)


def list_of_names(names: Mapping[Any, Any], source: str) -> ClassList:
    """Return the class list of names by id: all are things but `background`; `source` names it in errors."""
    entries = [{"id": k, "name": n, "isthing": bare_name(n) != BACKGROUND} for k, n in names.items()]
    return build_class_list(coco_categories(entries, source), [IGNORED], source)


def build_class_list(entries: list[dict[str, Any]], void: Sequence[int | str], source: str) -> ClassList:
    """Check and sort the entries of a class list; `void` has values and labels, `source` names it in errors."""
    if not entries:
        raise InputError(f"{source}: no classes")
    if len(entries) > VOID:
        raise InputError(f"{source}: {len(entries)} classes, more than {VOID}")
    for key in ("id", "name"):
        uses = Counter([*(e[key] for e in entries), *set(void)])
        twice = next((value for value, count in uses.items() if count > 1), None)
        if twice is not None:
            raise InputError(f"{source}: two classes, or a class and void, have the {key} {twice!r}")
    classes, class_of = ordered_classes(entries)
    values = [value for value in void if not isinstance(value, str)]
    names = frozenset(value for value in void if isinstance(value, str))
    return ClassList(classes, {**class_of, **dict.fromkeys(values, VOID)}, names)


def with_background(listed: ClassList, void_background: bool) -> ClassList:
    """Return a class list of things only with a stuff class `background`, unless these pixels are void.

    Whoever labels things only means that the rest is background. As void it would be ignored by losses and scores, and
    masks would fill their boxes. Where the list has stuff, a pixel without a label may be of any class: it stays void.
    """
    things = listed.classes
    full = things.num_classes == VOID or BACKGROUND in map(bare_name, things.categories)
    if void_background or things.num_stuff or full:
        return listed
    number = next(k for k in count() if k not in listed.class_of)
    classes = Metadata(
        num_stuff=1,
        num_thing=things.num_thing,
        categories=[BACKGROUND, *things.categories],
        palette=[(0, 0, 0), *things.palette],
        original_ids=[number, *things.original_ids],
    )
    class_of = {value: category if category == VOID else category + 1 for value, category in listed.class_of.items()}
    # label images without a class 0 have the rest there
    return replace(listed, classes=classes, class_of={0: 0, **class_of})


def ordered_classes(entries: Sequence[Mapping[str, Any]]) -> tuple[Metadata, dict[int, int]]:
    """Return the classes of a data set, stuff first, else in source order, and the class by id in the source.

    The entries of the source have `id`, `name`, `thing` (bool) and `color` (`[r, g, b]` or None for a colour unlike the
    others; stuff named as background or void is then black, as void is drawn).
    """
    ordered = [e for e in entries if not e["thing"]] + [e for e in entries if e["thing"]]
    given = [
        e.get("color") or (_UNPAINTED if not e["thing"] and bare_name(e["name"]) in _BACKGROUNDS else None)
        for e in ordered
    ]
    classes = Metadata(
        num_stuff=sum(not e["thing"] for e in ordered),
        num_thing=sum(bool(e["thing"]) for e in ordered),
        categories=[str(e["name"]) for e in ordered],
        palette=class_colors(given),
        original_ids=[int(e["id"]) for e in ordered],
    )
    return classes, {int(e["id"]): k for k, e in enumerate(ordered)}


def background_class(classes: Metadata) -> int | None:
    """Return the stuff class with the name background; None if there is none."""
    return next((k for k in range(classes.num_stuff) if bare_name(classes.categories[k]) == BACKGROUND), None)


def bare_name(name: object) -> str:
    """Return the name of a class in lower case, without the underscores of `_background_`."""
    return str(name).strip(" _").lower()


def coco_categories(categories: Any, source: str) -> list[dict[str, Any]]:
    """Return the entries of a class list from the `categories` of a COCO file; `isthing` defaults to true."""
    if not isinstance(categories, list):
        raise InputError(f"{source}: `categories` is not a list")
    return [_entry(c, f"{source}: category {k}", "isthing") for k, c in enumerate(categories)]


def _names_of_lines(text: str) -> dict[int, str]:
    names = [name for line in text.splitlines() if (name := line.strip()) not in ("", IGNORED)]
    numbered = [re.fullmatch(r"(\d{1,5})[\s:,;]+(\S.*)", name) for name in names]
    ids = [int(found[1]) for found in numbered if found]
    # unlike names as `2 wheeler`
    if len(ids) == len(names) and ids in (list(range(len(ids))), list(range(1, len(ids) + 1))):
        return {int(found[1]): found[2] for found in numbered if found}
    return dict(enumerate(names))


def _yolo_names(text: str, path: str) -> dict[Any, Any]:
    try:
        import yaml
    except ModuleNotFoundError:
        raise InputError(f"{path}: needs PyYAML: pip install pyyaml") from None
    try:
        content = yaml.safe_load(text)
        if not isinstance(content, dict) or "names" not in content:
            raise ValueError("it has no `names`")
        names = content["names"]
        named = names if isinstance(names, dict) else dict(enumerate(list(names)))
        # aliases can nest a short text without end
        if not all(isinstance(name, str | int) for name in named.values()):
            raise ValueError("`names` holds other things than names")
        return named
    except (yaml.YAMLError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a data set of YOLO with `names`: {describe_error(error)}") from None


def _from_json(text: str, path: str, kinds: bool) -> tuple[list[dict[str, Any]], list[int | str]]:
    try:
        content = parse_json(text)
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None
    if isinstance(content, list):
        content = {"categories": content}
    if not isinstance(content, dict) or "categories" not in content:
        raise InputError(f"{path}: not a class list: expected a list, or an object with `categories`")
    void = content.get("void", [])
    if not isinstance(void, list) or not all(isinstance(v, (int, str)) for v in void):
        raise InputError(f"{path}: `void` must be a list of integers and labels")
    entries = coco_categories(content["categories"], path)
    if kinds and not any("isthing" in category or "kind" in category for category in content["categories"]):
        raise InputError(f"{path}: no category states isthing (1 for things, 0 for stuff)")
    return entries, void


def _from_ini(text: str, path: str) -> tuple[list[dict[str, Any]], list[int | str]]:
    entries: list[dict[str, Any]] = []
    void: list[int | str] = []
    for name, section in read_ini(text, f"{path}: not an INI file").items():
        if name == "void":
            _check_keys(section, ("ids", "names"), f"{path}: [void]")
            words = section.get("names", "").replace("\n", ",").split(",")
            void = [word.strip() for word in words if word.strip()]
            try:
                void += map(int, section.get("ids", "").replace(",", " ").split())
            except ValueError:
                raise InputError(f"{path}: [void] ids: {section['ids']!r:.80} is not a list of integers") from None
            continue
        _check_keys(section, ("id", "kind", "color"), f"{path}: [{name}]")
        entries.append(_entry({"name": name, **section}, f"{path}: [{name}]", "kind"))
    return entries, void


def _check_keys(section: dict[str, str], valid: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(section) - {*valid})
    if unknown:
        raise InputError(f"{where}: unknown key {unknown[0]!r}; valid keys: {', '.join(valid)}")


def _entry(given: Any, where: str, kind: str) -> dict[str, Any]:
    try:
        given = {key: value for key, value in given.items() if value is not None}
        name, number = str(given["name"]), whole_number(given["id"])
        name.encode()  # JSON may hold half a character, which no file can
        stated = given[kind] if kind in given or kind == "kind" else given.get("kind", 1)
        word = str(stated).strip().lower()
        if word not in (*_THINGS, *_STUFF):
            raise ValueError(f"{stated!r} is neither stuff nor thing")
        colour = given.get("color")
        if isinstance(colour, str):
            colour = colour.replace(",", " ").split()
        colour = None if colour is None else parse_colour(colour)
        if number < 0:
            raise ValueError(f"id {number} is negative")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{where}: {what}") from None
    return {"id": number, "name": name, "thing": word in _THINGS, "color": colour}
