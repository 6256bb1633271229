"""Conversion of COCO panoptic, as downloaded and custom: crowds, grey PNG, and invalid sources."""

import json
import shutil

import numpy as np
import pytest
from support.source_files import panoptic_png, photo, picture, segments, tree, write_json, zip_of

from seamseg.cli.main import main
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.maps.prepare.panoptic import prepare_coco
from seamseg.utils.errors import InputError

CATEGORIES = [
    {"id": 1, "name": "person", "isthing": 1, "color": [220, 20, 60]},
    {"id": 184, "name": "tree", "isthing": 0, "color": [10, 20, 30]},
    {"id": 3, "name": "car", "isthing": 1, "color": [0, 0, 142]},
]
BIG = 5 + 256 * 6 + 65536 * 7
EXPECTED = [("car", 1, 12), ("person", 0, 3), ("person", 0, 4), ("tree", 0, 19)]


def segment(number, category, crowd=0):
    return {"id": number, "category_id": category, "iscrowd": crowd, "area": 1, "bbox": [0, 0, 1, 1]}


def write_split(root, name="val2017", image="000000000001"):
    """Two persons, a crowd of cars, two patches of tree, the rest void; the segment 99 has no pixel."""
    photo(root / name / f"{image}.jpg")
    ids = np.zeros((8, 12), int)
    ids[0, :3], ids[1, :4], ids[2], ids[3], ids[4, :7] = BIG, 2, 300, 70000, 70001
    panoptic_png(root / "annotations" / f"panoptic_{name}" / f"{image}.png", ids)
    found = [segment(BIG, 1), segment(2, 1), segment(300, 3, 1), segment(70000, 184), segment(70001, 184)]
    content = {
        "categories": CATEGORIES,
        "images": [{"id": 1, "file_name": f"{image}.jpg", "width": 12, "height": 8}],
        "annotations": [{"image_id": 1, "file_name": f"{image}.png", "segments_info": [*found, segment(99, 3)]}],
    }
    return write_json(root / "annotations" / f"panoptic_{name}.json", content)


@pytest.fixture
def raw(tmp_path):
    write_split(tmp_path / "raw")
    return tmp_path / "raw"


def change(raw, function):
    path = raw / "annotations" / "panoptic_val2017.json"
    content = json.loads(path.read_text())
    function(content)
    path.write_text(json.dumps(content))


def test_coco(raw, tmp_path):
    messages = []
    done = prepare_coco(raw, tmp_path / "out", options=ConversionOptions(log=messages.append))
    assert done.splits == {"val2017": 1}
    assert messages == [f"{raw}: no train2017, skipped"]
    m = done.metadata
    assert (m.categories, m.num_stuff, m.original_ids) == (["tree", "person", "car"], 1, [184, 1, 3])
    assert m.palette == [(10, 20, 30), (220, 20, 60), (0, 0, 142)]
    assert segments(tmp_path / "out", "000000000001") == EXPECTED
    boxes = json.loads((tmp_path / "out" / "coco" / "val2017.json").read_text())
    crowds = {a["iscrowd"]: (a["category_id"], a["area"]) for a in boxes["annotations"]}
    assert crowds[1] == (2, 12)
    assert len(boxes["annotations"]) == 3
    png = raw / "annotations" / "panoptic_val2017" / "000000000001.png"
    assert done.accounts["val2017"].skipped == {"segment without a pixel": (1, f"99 of {png}")}


def segment_with(**values):
    return lambda content: content["annotations"][0]["segments_info"][0].update(values)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda c: c["categories"].pop(0), r"000000000001\.png: segment 2 has category 1, which is not in the JSON"),
        (
            lambda c: c["annotations"][0]["segments_info"].pop(0),
            r"0001\.png: has segment \d+, which is not in the JSON",
        ),
        (lambda c: c["images"][0].update(file_name="x.jpg"), "lists 'x.jpg', but it is not among the 1 files"),
        (lambda c: c.pop("categories"), r"panoptic_val2017\.json: `categories` is not a list"),
        (
            segment_with(id=float("inf")),
            r"panoptic_val2017\.json: annotation 0: ValueError: 'inf' is not a whole number",
        ),
        (lambda c: c["images"][0].update(width=24), "jpg of the JSON: is of an image of 24 x .* has 12 x 8"),
        (lambda c: c["annotations"][0].update(image_id=9), "0 images found: `annotations` has none of them"),
    ],
)
def test_invalid_json(raw, tmp_path, spoil, match):
    change(raw, spoil)
    assert_fails(raw, tmp_path, match)


def test_zip_in_a_zip_is_reported(raw, tmp_path):
    (tmp_path / "in" / "annotations").mkdir(parents=True)
    shutil.copy(raw / "annotations" / "panoptic_val2017.json", tmp_path / "in" / "annotations")
    zip_of(raw / "annotations", tmp_path / "in" / "annotations" / "panoptic_val2017.zip")
    (tmp_path / "packed").mkdir()
    zip_of(tmp_path / "in", tmp_path / "packed" / "panoptic_annotations_trainval2017.zip")
    with pytest.raises(InputError, match=r"no folder of PNG.*panoptic_val2017\.zip cannot be read in place, unpack it"):
        prepare_coco(tmp_path / "packed", tmp_path / "out")


def test_splits_and_files_that_do_not_fit(raw, tmp_path):
    (tmp_path / "none").mkdir()
    assert_fails(tmp_path / "none", tmp_path, "none: 0 images found; expected annotations/panoptic_val2017.json")
    with pytest.raises(InputError, match="no split has the name 'x'"):
        prepare_coco(tmp_path, tmp_path / "out", ["x"])
    write_split(raw, "train2017", "000000000002")
    change(raw, lambda c: c["categories"].pop())
    assert_fails(raw, tmp_path, r"val2017\.json: its categories differ from those of .*panoptic_train2017\.json")
    (raw / "annotations" / "panoptic_val2017.json").write_text("[1, 2")
    assert_fails(raw, tmp_path, "not JSON, or a truncated one")


def assert_fails(raw, tmp_path, match):
    with pytest.raises(InputError, match=match) as error:
        prepare_coco(raw, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "metadata.bin").exists()


def test_types_of_json(raw, tmp_path):
    def as_text(content):
        for annotation in content["annotations"]:
            annotation["image_id"] = str(annotation["image_id"])
            for segment in annotation["segments_info"]:
                segment.update(id=str(segment["id"]), category_id=str(segment["category_id"]))
                segment["iscrowd"] = segment.get("iscrowd") or None

    change(raw, as_text)
    prepare_coco(raw, tmp_path / "out")
    assert segments(tmp_path / "out", "000000000001") == EXPECTED


def test_grey_png_and_mask_of_another_size(raw, tmp_path):
    ids = np.zeros((8, 12), np.uint16)
    ids[2], ids[1, :4] = 300, 2
    folder = raw / "annotations" / "panoptic_val2017"
    picture(folder / "000000000001.png", ids, np.uint16)
    prepare_coco(raw, tmp_path / "grey")
    assert segments(tmp_path / "grey", "000000000001") == [("car", 1, 12), ("person", 0, 4)]
    panoptic_png(folder / "000000000001.png", np.zeros((3, 3), int)).rename(folder / "000000000001.ids")
    change(raw, lambda c: c["annotations"][0].update(file_name="000000000001.ids"))
    assert_fails(raw, tmp_path, r"000000000001\.ids: 3 x 3 pixels .* has 12 x 8")


def test_commands(raw, tmp_path, capsys):
    change(raw, lambda c: c["images"].append({"id": 2, "file_name": "b.jpg"}))
    assert main(["prepare", "coco", str(raw), str(tmp_path / "a"), "--splits", "val2017"]) == 0
    assert "val2017: skipped 1: image without annotation (b.jpg)\n" in capsys.readouterr().out
    zip_of(raw, tmp_path / "raw.zip")
    assert main(["prepare", "coco", str(tmp_path / "raw.zip"), str(tmp_path / "z"), "--splits", "val2017"]) == 0
    assert tree(tmp_path / "a") == tree(tmp_path / "z")
    words = [str(raw / "val2017"), str(raw / "annotations" / "panoptic_val2017.json")]
    masks = str(raw / "annotations" / "panoptic_val2017")
    assert main(["prepare", "panoptic", str(tmp_path / "b"), "--split", "val2017", *words, masks]) == 0
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    twice = ["--split", "val", *words, masks] * 2
    assert main(["prepare", "panoptic", str(tmp_path / "c"), *twice]) == 2
    assert "given twice" in capsys.readouterr().err
