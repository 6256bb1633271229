"""Pre-training on other classes: rows of the classification layers follow the names."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from seamseg.checkpoints.class_table import ClassTable
from seamseg.config.experiments import CLASS_TABLES, experiments
from seamseg.maps.formats.cityscapes.labels import cityscapes_classes
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.formats.vistas import published_classes
from seamseg.utils.errors import InputError


def classes_of(stuff, things):
    count = len(stuff) + len(things)
    return Metadata(len(stuff), len(things), [*stuff, *things], [(0, 0, 0)] * count, list(range(count)))


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.sem_head, self.roi_head = nn.Module(), nn.Module()
        self.sem_head.conv_sem = nn.Conv2d(3, classes.num_classes, 1)
        self.roi_head.hidden = nn.Linear(4, 4)
        self.roi_head.roi_cls = nn.Linear(4, classes.num_thing + 1)
        self.roi_head.roi_bbx = nn.Linear(4, 4 * classes.num_thing)
        self.roi_head.roi_msk = nn.Conv2d(2, classes.num_thing, 1)

    def state(self):
        return {part: getattr(self, part).state_dict() for part in ("sem_head", "roi_head")}


def remapped(own, trained, table="names"):
    torch.manual_seed(0)
    net, source = Net(own), Net(trained)
    state, lines = ClassTable(own, table).remap(source.state(), net, trained, "m.tar")
    net.sem_head.load_state_dict(state["sem_head"])
    net.roi_head.load_state_dict(state["roi_head"])
    torch.manual_seed(0)
    return state, Net(own).state(), source.state(), lines


names = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True)


@settings(max_examples=40)
@given(names, names, st.integers(0, 7), st.integers(0, 7))
def test_each_row_is_that_of_its_class_or_the_initial_one(own, trained, own_stuff, trained_stuff):
    own_stuff, trained_stuff = min(own_stuff, len(own) - 1), min(trained_stuff, len(trained) - 1)
    upper = [name.upper() for name in own]
    own_classes = classes_of(upper[:own_stuff], upper[own_stuff:])
    trained_classes = classes_of(trained[:trained_stuff], trained[trained_stuff:])
    if not set(own) & set(trained):
        with pytest.raises(InputError, match=r"no class of the data set is one of m\.tar"):
            remapped(own_classes, trained_classes)
        return
    made, fresh, before, lines = remapped(own_classes, trained_classes)
    assert torch.equal(made["roi_head"]["hidden.weight"], before["roi_head"]["hidden.weight"])
    assert torch.equal(made["roi_head"]["roi_cls.bias"][0], before["roi_head"]["roi_cls.bias"][0]), "the background"
    for index, name in enumerate(own):
        there = trained.index(name) if name in trained else None
        wanted = fresh if there is None else before
        row = index if there is None else there
        assert torch.equal(made["sem_head"]["conv_sem.bias"][index], wanted["sem_head"]["conv_sem.bias"][row])
        boxes = index < own_stuff or (there is not None and there >= trained_stuff)
        said = [line for line in lines if f"class '{name.upper()}'" in line]
        if there is None:
            assert said == [f"class '{name.upper()}' starts at random: no class of the pre-training"]
        else:
            where = f"boxes and masks start at random: '{name}' is stuff in the pre-training"
            assert said == ([] if boxes else [f"class '{name.upper()}': {where}"])
        if index >= own_stuff:
            wanted, row = (before, there - trained_stuff) if boxes else (fresh, index - own_stuff)
            thing = index - own_stuff
            new, old = (s["roi_head"]["roi_bbx.weight"].unflatten(0, (-1, 4)) for s in (made, wanted))
            assert torch.equal(new[thing], old[row])
            new, old = (s["roi_head"]["roi_cls.weight"][1:] for s in (made, wanted))
            assert torch.equal(new[thing], old[row])


def test_the_packaged_table_fits_both_data_sets():
    assert set(experiments(CLASS_TABLES)) == {"vistas_cityscapes", "coco_cityscapes"}
    vistas, cityscapes = published_classes(), cityscapes_classes()
    found = ClassTable(cityscapes, "vistas_cityscapes").sources(vistas, "vistas")
    pairs = dict(zip(cityscapes.categories, [vistas.categories[i] for i in found], strict=True))
    assert len(set(found)) == 19
    assert pairs["train"] == "object--vehicle--on-rails"
    assert pairs["person"] == "human--person"
    # the names of version 2.0
    renamed = {
        "human--person": "human--person--individual",
        "object--traffic-light": "object--traffic-light--general-upright",
    }
    newer = classes_of([renamed.get(name, name) for name in vistas.categories], [])
    assert ClassTable(cityscapes, "vistas_cityscapes").sources(newer, "vistas") == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[classes]\nroad = a\ncra = b\n", "has no class 'cra'; did you mean 'car'"),
        ("[classes]\nroad = a, x\ncar = c, d\n", "m.tar has no class 'c'"),
        ("[classes]\n", "no class of the data set is one of m.tar, whose classes are a, b"),
        ("[other]\nroad = a\n", r"must have one section, \[classes\]"),
        ("road = a\n", "not a table of classes: line 1: a .section. must come"),
        (b"\xff\xfe", "not a table of classes"),
        (None, "no such table of classes; packaged are names, coco_cityscapes, vistas_cityscapes"),
    ],
)
def test_wrong_tables(tmp_path, text, message):
    path = tmp_path / "table.ini"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=message) as error:
        ClassTable(classes_of(["road"], ["car"]), str(path)).sources(classes_of(["a"], ["b"]), "m.tar")
    assert "\n" not in str(error.value)


def test_a_snapshot_of_other_classes_than_its_metadata():
    own, trained = classes_of(["a"], ["b"]), classes_of(["a"], ["b", "c"])
    state = Net(classes_of(["a"], ["b", "c", "d"])).state()
    with pytest.raises(InputError, match=r"m\.tar: sem_head\.conv_sem\.weight has \(4, 3, 1, 1\) numbers"):
        ClassTable(own, "names").remap(state, Net(own), trained, "m.tar")
