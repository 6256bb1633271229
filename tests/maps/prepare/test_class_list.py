"""Class lists of custom data sets: both formats, and errors for invalid ones."""

import json

import pytest
from support.source_files import CLASS_LIST

from seamseg.cli.prepare_texts import CLASS_LIST as SHOWN
from seamseg.maps.prepare.class_file import read_class_list
from seamseg.utils.errors import InputError


def read(tmp_path, text, name="classes.ini"):
    path = tmp_path / name
    path.write_text(text)
    return read_class_list(path)


def test_ini(tmp_path):
    listed = read(tmp_path, CLASS_LIST)
    m = listed.classes
    assert (m.categories, m.num_stuff, m.num_thing) == (["road", "sky", "car"], 2, 1)
    assert m.original_ids == [0, 3, 7]
    assert m.palette[0] == (1, 2, 3)
    assert len(set(m.palette)) == 3
    assert listed.class_of == {0: 0, 3: 1, 7: 2, 255: 255, 9: 255}
    (tmp_path / "windows.ini").write_text(CLASS_LIST, encoding="utf-16")
    assert read_class_list(tmp_path / "windows.ini").classes == m
    assert read(tmp_path, SHOWN).classes.categories == ["road", "car"]
    names = read(tmp_path, CLASS_LIST + "names = __ignore__,\n  my label\n")
    assert names.class_of == listed.class_of
    assert [names.class_named(label, "x") for label in ("__ignore__", "my label", "sky")] == [255, 255, 1]


@pytest.mark.parametrize("wrap", [False, True])
def test_json(tmp_path, wrap):
    entries = [
        {"id": 7, "name": "car", "isthing": 1, "color": [0, 0, 142]},
        {"id": 1, "name": "road", "isthing": False, "supercategory": "ground"},
    ]
    listed = read(
        tmp_path, json.dumps({"categories": entries, "void": [0, "__ignore__"]} if wrap else entries), "c.json"
    )
    assert listed.classes.categories == ["road", "car"]
    assert listed.classes.palette[1] == (0, 0, 142)
    assert listed.class_of == {1: 0, 7: 1, **({0: 255} if wrap else {})}
    assert listed.void_names == ({"__ignore__"} if wrap else set())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.txt", "__ignore__\n_background_\ncar\n\nperson \n"),
        ("classes.txt", "0 _background_\n1 car\n 2: person\n"),
        ("data.yaml", "train: images/train\nnc: 3\nnames: [_background_, car, person]\n"),
        ("data.yml", "names:\n  0: _background_\n  1: car\n  2: person\n"),
    ],
)
def test_lists_of_other_tools(tmp_path, name, text):
    listed = read(tmp_path, text, name)
    assert (listed.classes.categories, listed.classes.num_stuff) == (["_background_", "car", "person"], 1)
    assert listed.class_of == {0: 0, 1: 1, 2: 2}
    assert listed.class_named("__ignore__", "x") == 255
    with pytest.raises(InputError, match="does not state which classes are things; use an INI file or JSON"):
        read_class_list(tmp_path / name, kinds=True)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("names: [a, a]", "two classes, or a class and void, have the name 'a'"),
        ("names: [", r"data\.yaml: not a data set of YOLO with `names`: ParserError"),
        ("train: x", r"not a data set of YOLO with `names`: ValueError: it has no `names`$"),
        ("names: !!python/object/apply:os.system [ls]", "ConstructorError"),
    ],
)
def test_invalid_lists_of_yolo(tmp_path, text, match):
    with pytest.raises(InputError, match=match):
        read(tmp_path, text, "data.yaml")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no classes"),
        ("[road]\nkind = stuff", r"\[road\]: 'id' is missing"),
        ("[road]\nid = -1\nkind = stuff", "negative"),
        ("[road]\nid = 1\nkind = ground", r"\[road\]: 'ground' is neither stuff nor thing"),
        ("[road]\nid = 1\nkind = stuff\ncolour = 1", "unknown key 'colour'"),
        ("[road]\nid = 1\nkind = stuff\ncolor = red", "a colour must be three numbers from 0 to 255"),
        ("".join(f"[c{k}]\nid = {k}\nkind = stuff\n" for k in range(256)), "256 classes, more than 255"),
        ("[a]\nid = 1\nkind = stuff\n[b]\nid = 1\nkind = thing", "two classes, or a class and void, have the id 1"),
        ("[void]\nids = 1 x", r"\[void\] ids: '1 x' is not a list of integers"),
        ("[a]\nid = 1\nkind = stuff\n[void]\nids = 1", "a class and void, have the id 1"),
        ('{"classes": []}', "expected a list, or an object with `categories`"),
        ("[{", "not JSON"),
        ('[{"id": 1.9, "name": "a"}]', "category 0: '1.9' is not a whole number"),
        ('[{"id": 1, "name": "a", "isthing": 2}]', "category 0: 2 is neither stuff nor thing"),
        ('{"categories": [], "void": 3}', "`void` must be a list"),
    ],
)
def test_invalid_lists(tmp_path, text, match):
    with pytest.raises(InputError, match=match) as error:
        read(tmp_path, text)
    assert "classes.ini" in str(error.value)
    assert "\n" not in str(error.value)
