"""Models scored on a data set with other classes."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.micro import make_dataset, narrow_body
from support.small_models import save_snapshot

import seamseg
from seamseg.checkpoints.bundle import open_model
from seamseg.checkpoints.class_table import ClassTable
from seamseg.checkpoints.snapshot import Snapshot
from seamseg.config import config_to_string
from seamseg.maps.evaluation import evaluate_panoptic_json
from seamseg.maps.evaluation.record import read_evaluation
from seamseg.maps.formats.metadata import Metadata, metadata_header, read_metadata, write_metadata
from seamseg.maps.panoptic_map import VOID, PanopticResult, Segment
from seamseg.maps.predictions import Prediction
from seamseg.models.build import build_network
from seamseg.validation.class_mapping import ClassMapping


def classes_of(stuff, things):
    count = len(stuff) + len(things)
    return Metadata(len(stuff), len(things), [*stuff, *things], [(0, 0, 0)] * count, list(range(count)))


def mapping_of(classes, trained, table="names"):
    return ClassMapping.of(ClassTable(classes, str(table), "class_table"), trained, "m.tar")


def test_things_and_stuff_are_those_of_the_data_set(tmp_path):
    trained = classes_of(["asphalt", "marking", "train"], ["crosswalk", "bicyclist", "motorcyclist", "dog"])
    own = classes_of(["road"], ["rider", "train"])
    table = tmp_path / "table.ini"
    text = "[classes]\nroad = asphalt, Crosswalk, marking\nrider = bicyclist,\n  motorcyclist\ntrain = train\n"
    table.write_text(text)
    mapping = mapping_of(own, trained, table)
    ids = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 8, 0]], np.int32)

    def segment(number, category, score=None, crowd=False):
        return Segment(number, category, category >= 3, score, 1 + (number == 8), (0, number - 1, 1, number), crowd)

    # the second is a thing that is stuff here, the fifth of no class here, the last one stuff that is a thing here
    segments = [segment(1, 0), segment(2, 3, 0.9), segment(3, 4, 0.8), segment(4, 5, 0.7), segment(5, 6, 0.6)]
    segments += [segment(6, 4, crowd=True), segment(7, 5, crowd=True), segment(8, 2)]
    mapped = mapping.panoptic(PanopticResult(ids, segments))
    assert mapped.id_map.tolist() == [[1, 1, 3, 4, 0, 6, 6, 8, 8, 0]]
    assert mapped.id_map.dtype == ids.dtype
    assert mapped.segments == [
        Segment(1, 0, False, None, 2, (0, 0, 1, 2)),
        Segment(3, 1, True, 0.8, 1, (0, 2, 1, 3)),
        Segment(4, 1, True, 0.7, 1, (0, 3, 1, 4)),
        Segment(6, 1, True, None, 2, (0, 5, 1, 7), True),
        Segment(8, 2, True, None, 2, (0, 7, 1, 8), True),
    ]
    boxes = np.arange(16, dtype=np.float32).reshape(4, 4)
    masks = boxes.reshape(4, 2, 2)
    given = Prediction(boxes, np.array([0, 1, 2, 3]), boxes[:, 0], masks, None, (1, 10))
    by_name = mapping_of(classes_of(["asphalt"], ["bicyclist", "dog"]), trained)
    assert by_name.detections(given).classes.tolist() == [0, 1]
    found = mapping.detections(given)
    assert found.classes.tolist() == [0, 0]
    for values, kept in ((found.boxes, boxes), (found.scores, boxes[:, 0]), (found.mask_logits, masks)):
        assert np.array_equal(values, kept[1:3])
    assert mapping.class_map(np.array([[0, 1, 2, 3, 6, 255]], np.uint8)).tolist() == [[0, 0, 2, 0, 255, 255]]
    stated = mapping.mapped_classes()
    wanted = [["asphalt", "marking", "crosswalk"], ["bicyclist", "motorcyclist"], ["train"]]
    assert list(stated.sources.values()) == wanted
    assert (stated.missing, stated.void) == ([], ["dog"])
    things = replace(mapping, only_things=True).mapped_classes()
    assert (things.missing, things.void) == (["train"], ["crosswalk", "dog"])


@pytest.fixture(scope="module")
def swapped(micro_run, tmp_path_factory):
    with narrow_body():
        model = open_model(micro_run)
        own = model.metadata
        other = replace(own, categories=["road", "sky", "car"], palette=[own.palette[i] for i in (1, 0, 2)])
        net = build_network(model.config, 2, 1)
        state, _ = ClassTable(other, "names").remap(model.snapshot.state_dict, net, own, "run")
    path = tmp_path_factory.mktemp("swapped") / "model.pth.tar"
    save_snapshot(path, Snapshot(config_to_string(model.config), state, {}, metadata_header(other)))
    return path


def evaluated(main, out, *words):
    assert main("evaluate", *words, "--device", "cpu", "--quiet", "--json", out / "scores.json") == 0
    return json.loads((out / "scores.json").read_text())


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("options", [["--ap"], ["--set", "general.kind=detection"]], ids=["panoptic", "detection"])
def test_scores_of_a_network_with_another_order(micro, micro_run, swapped, seamseg_main, tmp_path, options, capsys):
    wanted = evaluated(seamseg_main, tmp_path, micro_run, micro, "--split", "train", *options)
    words = (swapped, micro, "--split", "train", *options)
    found = evaluated(seamseg_main, tmp_path, *words, "--class-table", "names")
    stated = found.pop("class_table")
    assert found == wanted
    assert (stated["table"], stated["missing"], stated["void"]) == ("names", [], [])
    assert "classes of the model mapped by names; 0 of them are void" in capsys.readouterr().out
    assert seamseg_main("evaluate", *words, "--device", "cpu") == 2
    assert "another order; map them by name with --class-table names" in capsys.readouterr().err


@pytest.fixture
def other_data(tmp_path):
    """The micro data set in other classes: a bus for each second car, the sky without a class."""
    data = make_dataset(tmp_path / "data", [1], [2, 3, 2])
    metadata = read_metadata(data / "metadata.bin")
    images = [replace(i, cat=[VOID, VOID, 0, *[1 + k % 2 for k in range(len(i.cat) - 3)]]) for i in metadata.images]
    write_metadata(data / "metadata.bin", replace(classes_of(["Road"], ["car", "bus"]), images=images))
    return data


@pytest.mark.usefixtures("narrow")
def test_classes_that_one_of_the_two_lacks(micro_run, other_data, seamseg_main, tmp_path, capsys):
    words = (micro_run, other_data, "--class-table", "names", "--out", tmp_path / "out", "--ap", "--min-area", "0")
    found = evaluated(seamseg_main, tmp_path, *words)
    captured = capsys.readouterr()
    assert "has no class for 1 of 3 classes: bus; they count as missed where they occur" in captured.err
    assert "1 of them are void\nit has none for bus, which count as missed; without these: PQ " in captured.out
    stated = found["class_table"]
    assert [c["model"] for c in stated["classes"]] == [["road"], ["car"], []]
    assert (stated["missing"], stated["void"]) == (["bus"], ["sky"])
    classes = found["per_class"]
    assert (classes["bus"]["PQ"], classes["bus"]["IoU"], classes["bus"]["FP"]) == (0, 0, 0)
    assert classes["bus"]["FN"] == 3
    assert classes["Road"]["TP"] > 0
    without = stated["without_missing"]
    assert without["PQ"] == pytest.approx((classes["Road"]["PQ"] + classes["car"]["PQ"]) / 2)
    assert without["box AP"] == pytest.approx(found["box"]["per_class"]["car"])
    assert set(without) == {"PQ", "mIoU", "box AP", "mask AP"}
    # the maps of the folder are in the classes of the data set
    again = evaluate_panoptic_json(tmp_path / "out/ground_truth.json", tmp_path / "out/prediction.json")
    assert pytest.approx(found["PQ"]) == again.PQ
    assert again.mIoU_segments == pytest.approx(found["mIoU_segments"])
    folder = read_evaluation(tmp_path / "out")
    assert folder.scores == found
    assert folder.title.endswith(", classes mapped by names")


@pytest.mark.usefixtures("narrow")
def test_a_semantic_network(micro, semantic_model, seamseg_main, tmp_path):
    (tmp_path / "table.ini").write_text("[classes]\nsky = sky\nroad = road\ncar = Human--Person\n")
    wanted = evaluated(seamseg_main, tmp_path, semantic_model, micro)  # other names are treated as the same class
    found = evaluated(seamseg_main, tmp_path, semantic_model, micro, "--class-table", tmp_path / "table.ini")
    assert found.pop("class_table")["classes"][2] == {"name": "car", "model": ["human--person"]}
    assert found == wanted
    with pytest.warns(UserWarning, match="no class for 1 of 3 classes: car"):
        scores = seamseg.evaluate(semantic_model, micro, "cpu", quiet=True, class_table="names")
    assert scores.mapped.missing == ["car"]
    assert scores.per_class[2].IoU == 0
    means = scores.to_json()["class_table"]["without_missing"]
    assert means == pytest.approx({"mIoU": (scores.per_class[0].IoU + scores.per_class[1].IoU) / 2})


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--class-table TABLE: no such table of classes; packaged are names, "),
        ("[classes]\nroad = roda\n", "--class-table TABLE: MODEL has no class 'roda'; did you mean 'road'"),
        ("[classes]\nsky = sky\nroad = sky\n", "'sky' of MODEL is given for both 'sky' and 'road'"),
        ("road = road\n", "TABLE: not a table of classes"),
    ],
)
def test_wrong_tables(swapped, micro, refused, tmp_path, text, message):
    table = tmp_path / "table.ini"
    if text is not None:
        table.write_text(text)
    error = refused("evaluate", swapped, micro, "--device", "cpu", "--class-table", table)
    assert message.replace("TABLE", str(table)).replace("MODEL", str(swapped)) in error


def test_tables_that_have_no_effect(micro, micro_run, refused):
    said = refused("evaluate", micro_run, micro, "--class-table", "names", "--legacy-metrics")
    assert "--class-table names and --legacy-metrics are mutually exclusive" in said
    said = refused("evaluate", "--gt", "a.json", "--pred", "b.json", "--class-table", "names")
    assert "--class-table and --gt / --pred are mutually exclusive" in said
