"""JSON and metadata of another hand: a field of any type ends in a line, whatever reads it."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import umsgpack
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fuzz.targets import TARGETS, corpus, refusing, write_files
from seamseg.maps.formats.coco_writer import encode_panoptic
from seamseg.maps.formats.metadata import Metadata, class_infos, metadata_header, parse_metadata
from seamseg.maps.panoptic_map import class_map_result
from seamseg.maps.prepare.check import check_dataset
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.maps.prepare.label_folders import prepare_folders
from seamseg.maps.prepare.merge import read_rules
from seamseg.maps.prepare.vistas import read_labels
from seamseg.utils.errors import InputError

CLASSES = Metadata(1, 1, ["a", "b"], [(1, 2, 3), (4, 5, 6)], [7, 8])
SIZE = (6, 8)
RESULT = class_map_result(np.zeros(SIZE, np.uint8))
ODD = [[], {}, None, True, -1, 1.5, 2**53, 2**63, float("inf"), "", "\ud800", "../x", "a\0b", [[[[]]]], {"a": {}}]

Read = Callable[[bytes], Any]


def places(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """The paths of all fields of a document."""
    yield at
    for key in value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0):
        yield from places(value[key], (*at, key))


def changed(value: Any, at: tuple, new: Any) -> Any:
    """A copy of a document with another field."""
    if not at:
        return new
    value = copy.copy(value)
    value[at[0]] = changed(value[at[0]], at[1:], new)
    return value


def as_json(value: Any) -> bytes:
    return json.dumps(value).replace("Infinity", "1e400").encode()


def written(path: Path, read: Callable[[Path], Any]) -> Read:
    def write_and_read(data: bytes) -> None:
        path.write_bytes(data)
        read(path)

    return write_and_read


def prepared(root: Path) -> dict[str, tuple[Any, Read]]:
    """The files of a data set that is checked and prepared again."""
    (root / "labels").mkdir()
    label, out = root / "labels" / "1.png", root / "data"
    Image.fromarray(np.eye(*SIZE, dtype=np.uint8)).save(label)
    (root / "classes.ini").write_text("[a]\nid = 0\nkind = stuff\n[b]\nid = 1\nkind = thing\n")
    (root / "one").mkdir()
    (root / "one" / "1.png").write_bytes((root / "photos" / "1.png").read_bytes())
    split = {"val": (str(root / "one"), str(root / "labels"))}

    def prepare() -> None:
        prepare_folders(out, split, root / "classes.ini", options=ConversionOptions(workers=1))

    prepare()
    good = {name: (out / name).read_bytes() for name in ("prepared.json", "coco/val.json", "lst/val.txt")}

    def again(name: str, data: bytes) -> None:
        for other, content in good.items():
            (out / other).write_bytes(content)
        (out / name).write_bytes(data)
        with refusing():
            check_dataset(out, workers=1)
        Image.fromarray(np.eye(*SIZE, k=len(data) % 4, dtype=np.uint8)).save(label)
        prepare()

    return {name: (json.loads(good[name]), lambda data, name=name: again(name, data)) for name in list(good)[:2]}


def sources(root: Path) -> dict[str, tuple[Any, Read]]:
    """Annotations and lists of classes."""
    found = {
        "labelme": json.loads(corpus("labelme")["shapes"]),
        "label_studio": json.loads(corpus("label_studio")["good"])[:1],
        "coco_panoptic": json.loads((root / "good.json").read_text()),
        "coco_objects": {
            "images": [{"id": 1, "file_name": "1.png", "height": 6, "width": 8}],
            "categories": [{"id": 3, "name": "car"}, {"id": 4, "name": "x", "isthing": 1, "color": [1, 2, 3]}],
            "annotations": [
                {"id": 0, "image_id": 1, "category_id": 3, "iscrowd": 0, "segmentation": [[1, 1, 6, 1, 6, 4]]},
                {"id": 1, "image_id": 1, "category_id": 4, "segmentation": {"size": [6, 8], "counts": [7, 4, 37]}},
            ],
        },
    }
    labels = [{"name": name, "evaluate": True, "instances": name == "b", "color": [1, 2, 3]} for name in "ab"]
    rules = {"classes": {"a": "b", "c": None}, "stuff": ["b"], "things": ["q"], "splits": {"val": "train"}}
    image = {"id": "x", "cat": [255, 0, 1], "size": list(SIZE), "iscrowd": [0, 0, 0]}
    return {
        **{name: (content, lambda data, name=name: TARGETS[name](data, root)) for name, content in found.items()},
        "vistas": ({"labels": labels}, written(root / "config.json", read_labels)),
        "rules": (rules, written(root / "rules.json", read_rules)),
        "metadata": ({"meta": metadata_header(CLASSES), "images": [image]}, lambda data: _metadata(json.loads(data))),
    }


def _metadata(content: Any) -> None:
    try:
        data = umsgpack.packb(content)
    except (umsgpack.PackException, UnicodeEncodeError):
        return
    encode_panoptic(0, RESULT.segments, class_infos(CLASSES), parse_metadata(data).palette)


@pytest.mark.slow
@pytest.mark.parametrize("group", [prepared, sources])
def test_fields_of_any_type(group, tmp_path_factory):
    root = tmp_path_factory.mktemp("fields")
    write_files(root)
    readers = group(root)

    @settings(max_examples=3)
    @given(st.randoms(use_true_random=False))
    def each_field_once(rng: Random) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, (content, read) in readers.items():
                for at in places(content):
                    value = rng.choice(ODD)
                    try:
                        with refusing():
                            read(as_json(changed(content, at, value)))
                    except Exception as error:
                        pytest.fail(f"{name}: {at} is {value!r}: {type(error).__name__}: {error}")

    each_field_once()


@pytest.mark.parametrize(
    ("group", "name", "at", "value", "message"),
    [
        (sources, "metadata", ("meta", "palette", 0, 1), 2**53, "each number must be from 0 to 255"),
        (sources, "vistas", ("labels", 0, "color", 0), 2**53, "each number must be from 0 to 255"),
        (prepared, "prepared.json", ("splits", "val", "images"), float("inf"), "not the account of a conversion"),
    ],
)
def test_refusals(group, name, at, value, message, tmp_path):
    write_files(tmp_path)
    content, read = group(tmp_path)[name]
    with pytest.raises(InputError, match=message):
        read(as_json(changed(content, at, value)))
