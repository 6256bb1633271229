"""The classes of networks of other libraries are found by name."""

import json

import pytest
import torch
from support.tiny_transformers import CITYSCAPES

from seamseg.checkpoints.class_table import ClassTable
from seamseg.contrib.foreign.class_lists import identify, identify_things, known_lists, read_classes
from seamseg.maps.formats.cityscapes.labels import LABELS, cityscapes_classes
from seamseg.maps.formats.metadata import write_metadata
from seamseg.maps.formats.vistas import published_classes
from seamseg.utils.errors import InputError
from seamseg.validation.class_mapping import ClassMapping


def refusal(names, **arguments):
    with pytest.raises(InputError) as error:
        identify(names, "net", **arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_known_lists():
    counts = {name: (k.metadata.num_stuff, k.metadata.num_thing) for name, k in known_lists().items()}
    assert counts.pop("vistas_v2") == (46, 70)
    assert counts == {"cityscapes": (11, 8), "vistas": (28, 37), "coco_panoptic": (53, 80), "ade20k": (50, 100)}
    assert known_lists()["cityscapes"].metadata == cityscapes_classes()
    vistas = known_lists()["vistas"].metadata
    assert sorted(vistas.original_ids) == list(range(65))
    assert set(vistas.categories) == set(published_classes().categories)
    coco, ade = known_lists()["coco_panoptic"].metadata, known_lists()["ade20k"].metadata
    assert (coco.categories[0], coco.original_ids[0], coco.palette[0]) == ("banner", 92, (255, 255, 128))
    assert (coco.categories[-1], coco.original_ids[-1]) == ("toothbrush", 90)
    things, found = identify_things(["toothbrush", "kite string", "Person"])
    assert (things.num_stuff, things.num_thing, found.tolist()) == (0, 80, [79, -1, things.categories.index("person")])
    assert (ade.categories[0], ade.original_ids[0], ade.palette[0]) == ("wall", 1, (120, 120, 120))
    assert ade.is_thing(ade.categories.index("television"))
    assert not ade.is_thing(ade.categories.index("sky"))
    second = known_lists()["vistas_v2"].metadata
    assert set(range(124)) - set(second.original_ids) == {2, 31, 38, 79, 86, 96, 115, 123}  # not evaluated


def test_cityscapes_is_that_of_its_tools():
    labels = pytest.importorskip("cityscapesscripts.helpers.labels").labels
    expected = [(x.name, x.id, x.trainId, x.category, x.hasInstances, x.color) for x in labels if x.id >= 0]
    assert [tuple(label) for label in LABELS] == expected
    m = known_lists()["cityscapes"].metadata
    things = {x.name for x in labels if x.hasInstances and not x.ignoreInEval}
    assert {name for k, name in enumerate(m.categories) if m.is_thing(k)} == things


def test_other_spellings():
    found = identify([name.replace(" ", "-").upper() for name in CITYSCAPES[::-1]], "net")
    assert (found.data_set, found.columns) == ("cityscapes", list(range(19))[::-1])
    assert found.metadata == cityscapes_classes()
    # the names of detectron2, and of the configuration of Vistas for humans
    coco = known_lists()["coco_panoptic"].metadata.categories
    short = [name.replace("-other", "").replace("-merged", "").replace("-stuff", "") for name in coco]
    assert identify(short, "net").columns == list(range(133))
    vistas = known_lists()["vistas"].metadata.categories
    readable = [name.rpartition("--")[2].replace("-", " ").title() for name in vistas]
    texts = {"Other Barrier": "Barrier", "Crosswalk Zebra": "Lane Marking - Crosswalk", "Back": "Traffic Sign (Back)"}
    texts |= {"General": "Lane Marking - General", "Front": "Traffic Sign (Front)"}
    assert identify([texts.get(name, name) for name in readable], "net").columns == list(range(65))
    # all synonyms of ADE20K, and others than the first
    ade = known_lists()["ade20k"].metadata.categories
    renamed = {"windowpane": "window ", "road": "road, route", "television": "tv", "minibike": "minibike, motorbike"}
    assert identify([renamed.get(name, name) for name in ade], "net").columns == list(range(150))


def test_unused_columns():
    names = ["N/A", *CITYSCAPES[:10], "LABEL_11", *CITYSCAPES[10:], "LABEL_21"]
    assert identify(names, "net").columns == [None, *range(10), None, *range(10, 19), None]
    found = identify(names, "net")
    assert found.used.tolist() == list(range(19))
    scores = torch.randn(2, len(names) + 1)
    probabilities, merged = scores.softmax(-1), found.used_logits(scores).softmax(-1)
    used = [*range(1, 11), *range(12, 21)]
    torch.testing.assert_close(merged[:, :-1], probabilities[:, used])
    torch.testing.assert_close(merged[:, -1], probabilities[:, [0, 11, 21, 22]].sum(-1))
    assert identify(CITYSCAPES, "net").used_logits(scores[:, :20]).shape == (2, 20)


def test_files(tmp_path):
    ini, binary, coco = tmp_path / "classes", tmp_path / "metadata.bin", tmp_path / "coco.json"
    ini.write_text("[lawn]\nid = 7\nkind = stuff\n[dog]\nid = 3\nkind = thing\ncolor = 1 2 3\n")
    found = identify(["Dog", "lawn"], "net", file=ini)
    assert (found.metadata.categories, found.metadata.original_ids) == (["lawn", "dog"], [7, 3])
    assert (found.columns, found.metadata.palette[1]) == ([1, 0], (1, 2, 3))
    write_metadata(binary, found.metadata)
    assert identify(["Dog", "lawn"], "net", file=binary) == found
    assert identify(["Dog", "lawn"], "net", file=tmp_path) == found
    categories = [{"id": 1, "name": "dog", "isthing": 1}, {"id": 2, "name": "lawn", "isthing": 0}]
    coco.write_text(json.dumps({"categories": categories}))
    assert identify(["dog", "lawn"], "net", file=coco).columns == [1, 0]
    # a file wins over a known list
    things = [{"id": k, "name": name, "isthing": 1} for k, name in enumerate(CITYSCAPES)]
    coco.write_text(json.dumps(things))
    assert identify(CITYSCAPES, "net", file=coco).metadata.num_thing == 19
    problem = "it has 'cat' and 'lawn' is missing"
    assert refusal(["cat", "cow"], file=ini) == f"{ini}: is not the list of the classes of net: {problem}"
    coco.write_text(json.dumps({"categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "lawn"}]}))
    assert refusal(["dog", "lawn"], file=coco) == f"{coco}: no category states isthing (1 for things, 0 for stuff)"
    assert read_classes(coco).num_thing == 2  # of a detector
    binary.write_bytes(b"\xff\xd8\xff\xe0\0\x10JFIF\0")
    assert refusal(["dog", "lawn"], file=binary.rename(tmp_path / "bus.jpg")).endswith(
        "cannot be read as a class list: line 1 is not UTF-8 text; save it as UTF-8"
    )
    # without names, the ids are the columns
    assert "the ids must be the columns of the network, 0 to 1" in refusal(["LABEL_0", "LABEL_1"], file=ini)
    ini.write_text(ini.read_text().replace("7", "0").replace("= 3", "= 1"))
    assert identify(["LABEL_0", "LABEL_1"], "net", file=ini).columns == [0, 1]


def test_refusals():
    assert "its configuration names no class: give a class list whose ids are 0 to 1, the columns" in refusal(
        ["LABEL_0", "LABEL_1"]
    )
    assert "which of its classes (lawn, dog) are things is not known" in refusal(["lawn", "dog"])
    assert "they are none of the known lists (cityscapes, vistas, " in refusal(CITYSCAPES[:-1])
    many = [f"class {k}" for k in range(50_000)]
    assert refusal(many) == "net: has 50000 classes, more than 255"


def test_packaged_tables_of_classes():
    own, known = cityscapes_classes(), {name: names.metadata for name, names in known_lists().items()}

    def mapped(name, table):
        return ClassMapping.of(ClassTable(own, table, "class_table"), known[name], "m.tar").mapped_classes()

    vistas = mapped("vistas", "vistas_cityscapes")
    riders = ["human--rider--bicyclist", "human--rider--motorcyclist", "human--rider--other-rider"]
    assert next(names for info, names in vistas.sources.items() if info.name == "rider") == riders
    assert vistas.missing == []
    assert mapped("coco_panoptic", "coco_cityscapes").missing == ["pole", "rider"]
