"""Custom data: folders of images, and COCO instances with label images."""

import json
import shutil

import numpy as np
import pytest
from pycocotools import mask as coco_mask
from support.source_files import CLASS_LIST, listed, photo, picture, segments, write_json

from seamseg.cli.main import main
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.prepare.coco_instances import prepare_instances
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.maps.prepare.label_folders import prepare_folders
from seamseg.utils.errors import InputError

FOUND = [("car", 0, 3), ("car", 0, 5), ("car", 1, 4), ("road", 0, 60), ("sky", 0, 12)]


@pytest.fixture
def raw(tmp_path):
    """Two splits with an image of the same name, cars 1 and 700, some cars without number, void."""
    (tmp_path / "classes.ini").write_text(CLASS_LIST)
    for split in ("train", "val"):
        photo(tmp_path / split / "photos" / "sub" / "a.jpg")
        labels, numbers = np.zeros((8, 12), np.uint8), np.full((8, 12), 5, np.uint16)
        labels[0], labels[1] = 3, 7
        numbers[1] = 0
        numbers[1, :3], numbers[1, 3:8] = 1, 700
        labels[2] = 255
        picture(tmp_path / split / "labels" / "sub" / "a.png", labels)
        picture(tmp_path / split / "numbers" / "sub" / "a.png", numbers, np.uint16)
    return tmp_path


def folders(raw, split="train"):
    return tuple(str(raw / split / name) for name in ("photos", "labels", "numbers"))


def test_folders(raw):
    out = raw / "out"
    messages = []
    splits = {split: folders(raw, split) for split in ("train", "val")}
    done = prepare_folders(out, splits, raw / "classes.ini", options=ConversionOptions(2, log=messages.append))
    assert [i.id for i in done.metadata.images] == ["train_sub_a", "val_sub_a"]
    assert messages == []
    assert segments(out, "val_sub_a") == FOUND


def test_divisor_and_suffixes(raw):
    labels = np.zeros((4, 5), np.int32)
    labels[0], labels[1, :2], labels[1, 2:], labels[2] = 3000, 7001, 7002, 7000
    picture(raw / "x" / "a_ids.png", labels, np.uint16)
    photo(raw / "y" / "a_rgb.bmp", (4, 5))
    done = prepare_folders(
        raw / "out", {"t": (str(raw / "y"), str(raw / "x"))}, raw / "classes.ini", 1000, ("_rgb", "_ids", "")
    )
    assert [i.id for i in done.metadata.images] == ["a"]
    assert (raw / "out" / "img" / "a.png").is_file()  # BMP is converted
    assert segments(raw / "out", "a") == [("car", 0, 2), ("car", 0, 3), ("car", 1, 5), ("road", 0, 5), ("sky", 0, 5)]


def assert_folders_fail(raw, match, given=None, **options):
    with pytest.raises(InputError, match=match) as error:
        prepare_folders(raw / "out", {"train": given or folders(raw)}, raw / "classes.ini", **options)
    assert "\n" not in str(error.value)
    assert not (raw / "out" / "metadata.bin").exists()


def test_inconsistent_folders(raw):
    photos, labels, numbers = folders(raw)
    (raw / "classes.ini").write_text(CLASS_LIST.replace("id = 3", "id = 4"))
    assert_folders_fail(raw, r"labels/sub/a\.png: value 3 has no class; add it to the class list")
    assert_folders_fail(raw, r"none: no such folder or archive \(labels\)", (photos, str(raw / "none"), numbers))
    (raw / "empty").mkdir()
    assert_folders_fail(raw, "empty: 0 images found for train", (str(raw / "empty"), labels))
    assert_folders_fail(raw, r"0 of 1 images have labels .*the first image is sub/a", (photos, str(raw / "empty")))
    write_json(raw / "json" / "instances.json", {"images": []})
    assert_folders_fail(raw, "json.*; one JSON file .* `seamseg prepare instances`", (photos, str(raw / "json")))
    assert_folders_fail(raw, r"expected the folders \(images, labels\) or", (photos,))
    assert_folders_fail(raw, "`divisor=1`: must be 2 or more", divisor=1)
    assert_folders_fail(raw, r"photos: 0 instance images \(\.png\) found for train", (photos, labels, photos))
    picture(raw / "other" / "b.png", np.zeros((8, 12)))
    assert_folders_fail(raw, "has labels, but no instance image", (photos, labels, str(raw / "other")))


def test_invalid_images(raw):
    numbers = raw / "train" / "numbers" / "sub" / "a.png"
    picture(numbers, np.zeros((3, 4)))
    assert_folders_fail(raw, r"numbers/sub/a\.png: 4 x 3 pixels .* has 12 x 8")
    picture(numbers, np.zeros((8, 12)))
    picture(raw / "train" / "labels" / "sub" / "a.png", np.zeros((8, 12, 3)))
    assert_folders_fail(raw, r"labels/sub/a\.png: a mask must be a single-channel")
    photo(raw / "train" / "photos" / "sub" / "a.png")
    assert_folders_fail(raw, r"a\.png: .*a\.jpg has the same name")


def rle(mask):
    found = coco_mask.encode(np.asfortranarray(mask, dtype=np.uint8))
    return {"size": found["size"], "counts": found["counts"].decode()}


@pytest.fixture
def coco(raw):
    """Two overlapping cars (a box of polygons, an RLE), a crowd, one without objects; labels of road and cars."""
    photo(raw / "photos" / "b.jpg")
    big, crowd = np.zeros((8, 12), bool), np.zeros((8, 12), bool)
    big[2:6, 4:10], crowd[7, :3] = True, True
    box = [0.0, 2.0, 6.0, 2.0, 6.0, 4.0, 0.0, 4.0]
    uncompressed = {"size": [8, 12], "counts": [7, 1, 7, 1, 7, 1, 72]}
    annotations = [
        {"id": 1, "image_id": 1, "category_id": 7, "iscrowd": 0, "segmentation": rle(big)},
        {"id": 2, "image_id": 1, "category_id": 7, "iscrowd": 0, "segmentation": [box]},
        {"id": 3, "image_id": 1, "category_id": 7, "iscrowd": 1, "segmentation": uncompressed},
    ]
    photo(raw / "photos" / "a.jpg")
    images = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}]
    categories = [{"id": 7, "name": "car"}]
    write_json(raw / "instances.json", {"images": images, "annotations": annotations, "categories": categories})
    labels = np.zeros((8, 12), np.uint8)
    labels[0], labels[1, :5], labels[6] = 255, 3, 7
    for name in "ab":
        picture(raw / "labels" / f"{name}.png", labels)
    return raw


def change(coco, function, target="instances.json"):
    content = json.loads((coco / "instances.json").read_text())
    function(content)
    write_json(coco / target, content)


def instances(coco, *labels, out="out", source="instances.json", classes=False, **options):
    given = tuple(str(coco / name) for name in ("photos", source, *labels))
    listed = coco / "classes.ini" if classes else None
    done = prepare_instances(coco / out, {"train": given}, listed, ConversionOptions(1, **options))
    return done.accounts["train"].skipped


def test_instances_with_labels(coco):
    instances(coco, "labels", classes=True)
    road = 96 - 12 - 5 - 12
    covered = 24 + 12 - 4 + 3  # 4 pixels are in both cars
    cars = [("car", 0, 12), ("car", 0, 24), ("car", 1, 3), ("car", 1, 12)]
    assert segments(coco / "out", "a") == [*cars, ("road", 0, road - covered), ("sky", 0, 5)]
    assert segments(coco / "out", "b") == [cars[3], ("road", 0, road), ("sky", 0, 5)]
    mask = DatasetFolder(coco / "out").read_mask("a")
    assert mask.shape == (2, 8, 12)
    assert (mask > 0).all(0).sum() == 4


def test_photos_without_label_images(coco):
    (coco / "labels" / "b.png").unlink()
    assert instances(coco, "labels", classes=True) == {"image without a label image": (1, f"{coco / 'photos'}/b.jpg")}
    assert segments(coco / "out", "a")[-1] == ("sky", 0, 5)
    (coco / "labels" / "a.png").unlink()
    (coco / "out" / "metadata.bin").unlink()
    assert_instances_fail(coco, "0 images found that have a label image")


def test_instances_without_labels(coco):
    instances(coco)
    covered = 24 + 12 - 4 + 3
    cars = [("car", 0, 12), ("car", 0, 24), ("car", 1, 3)]
    assert segments(coco / "out", "a") == [("background", 0, 96 - covered), *cars]
    assert segments(coco / "out", "b") == [("background", 0, 96)]
    instances(coco, out="void", void_background=True)
    assert segments(coco / "void", "a") == cars
    assert DatasetFolder(coco / "void").metadata.num_stuff == 0

    def name_background(content):
        content["categories"].append({"id": 4, "name": "_background_"})
        content["annotations"][1]["category_id"] = 4

    change(coco, name_background, "named.json")
    skipped = instances(coco, out="named", source="named.json")
    assert skipped == {"annotation of the background": (1, "annotation 2, image_id 1")}
    assert segments(coco / "named", "a") == [("background", 0, 96 - 24 - 3), cars[1], cars[2]]
    (coco / "classes.ini").write_text("[car]\nid = 7\nkind = thing\n[void]\nids = 4\n")
    instances(coco, out="ignored", source="named.json", classes=True)
    assert segments(coco / "ignored", "a") == [("background", 0, 96 - covered), cars[1], cars[2]]


def assert_instances_fail(coco, match, function=None, labels=True, classes=True):
    if function is not None:
        change(coco, function)
    with pytest.raises(InputError, match=match) as error:
        instances(coco, *(["labels"] if labels else []), classes=classes)
    assert "\n" not in str(error.value)
    assert listed(coco / "out") < 2


@pytest.mark.parametrize(
    ("number", "values", "match"),
    [
        *((0, {"segmentation": s}, r"a\.jpg: an invalid `segmentation`") for s in (5, [["a"] * 6])),
        (0, {"segmentation": {"size": [3, 3], "counts": "9"}}, r"a\.jpg: an invalid `segmentation`"),
        (0, {"segmentation": [[1, 1, 4, 1, 4, 4, 1]]}, "a polygon of 7 numbers, expected pairs"),
        (0, {"segmentation": {"a": 1}}, r"in annotation 1: expected a list of polygons, or an object with `size`"),
        (1, {"category_id": 3}, "annotation 2: category 3 is not a thing"),
        (1, {"iscrowd": "nan"}, "annotation 2: .*'nan' is not a whole number"),
    ],
)
def test_invalid_annotations(coco, number, values, match):
    assert_instances_fail(coco, match, lambda content: content["annotations"][number].update(values))


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"width": 24, "height": 16}, r"a\.jpg of the JSON: is of an image of 24 x 16 pixels .*a\.jpg has 12 x 8"),
        ({"id": 2}, "two of its `images` have one id"),
        ({"id": None}, "not a COCO file .*; expected `annotations`, and `images` with `id` and `file_name`"),
    ],
)
def test_invalid_images_of_instances(coco, values, match):
    assert_instances_fail(coco, match, lambda content: content["images"][0].update(values))


def test_other_invalid_instances(coco):
    assert_instances_fail(coco, "label images need a class list", classes=False)
    picture(coco / "labels" / "a.png", np.full((8, 12), 77))
    assert_instances_fail(coco, r"labels/a\.png: value 77 has no class")
    (coco / "photos" / "a.jpg").unlink()
    assert_instances_fail(coco, "lists 'a.jpg', but it is not among the 1 files")
    assert_instances_fail(coco, "not a COCO file", lambda c: c.update(annotations=None))


SQUARE = [[1, 1], [4, 1], [4, 4], [1, 4]]
FLAT = [1, 1, 4, 1, 4, 4, 1, 4]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        *(({"segmentation": s}, None) for s in (FLAT, [SQUARE], SQUARE, [FLAT, [1, 1, 4, 4]], [[*map(str, FLAT)]])),
        ({"segmentation": None}, "object without a segmentation"),
        ({"segmentation": [[]]}, "object without a segmentation"),
        ({"segmentation": [[1, 1, 4, 4]]}, "object without a pixel"),
        ({"segmentation": [[0.1, 0.1, 1.04, 0.1, 1.04, 0.9]]}, "object with coordinates from 0 to 1, not in pixels"),
        ({"segmentation": [[20, 1, 30, 1, 30, 5]]}, "object without a pixel"),
    ],
)
def test_objects_without_area(coco, values, reason):
    change(coco, lambda content: content["annotations"][1].update(values))
    assert instances(coco) == ({} if reason is None else {reason: (1, f"annotation 2, of {coco}/photos/a.jpg")})
    assert (("car", 0, 9) in segments(coco / "out", "a")) == (reason is None)


def test_types_of_coco_files(coco):
    def add(content):
        content["annotations"][0].update(iscrowd=None, category_id="7", image_id=1.0)
        content["annotations"][1].update(iscrowd="0", image_id="1")
        content["annotations"].append({**content["annotations"][0], "id": 9, "image_id": 99})

    change(coco, add)
    reason = "annotation of an image that the JSON does not list"
    assert instances(coco) == {reason: (1, "annotation 9, image_id 99")}
    assert segments(coco / "out", "a")[1:] == [("car", 0, 12), ("car", 0, 24), ("car", 1, 3)]


def test_only_crowds(coco, capsys):
    change(coco, lambda content: [annotation.update(iscrowd=1) for annotation in content["annotations"]])
    words = ["--split", "train", str(coco / "photos"), str(coco / "instances.json"), "--workers", "1"]
    text = "all objects of 'car' are crowds, which training ignores"
    assert main(["prepare", "instances", str(coco / "out"), *words]) == 0
    assert f"{text}; --no-crowds reads them as single objects" in capsys.readouterr().err
    assert main(["prepare", "--check", str(coco / "out"), "--samples", "0"]) == 0
    assert f"metadata.bin: {text}\n" in capsys.readouterr().out
    assert main(["prepare", "instances", str(coco / "one"), *words, "--no-crowds"]) == 0
    assert "crowds" not in capsys.readouterr().err
    assert [crowd for _, crowd, _ in segments(coco / "one", "a")] == [0] * 4


def test_what_is_skipped_is_counted(coco, capsys):
    (coco / "labels" / "b.png").unlink()
    change(coco, lambda content: content["annotations"][1].update(segmentation=[]))
    out = coco / "out"
    split = ["--split", "train", str(coco / "photos"), str(coco / "instances.json"), str(coco / "labels")]
    lines = [
        f"{out}: 1 image in train; 2 stuff and 1 thing classes",
        "classes: road, sky, car",
        "train: used 1 image, 5 segments, of which 3 objects",
        f"train: skipped 1: image without a label image ({coco}/photos/b.jpg)",
        f"train: skipped 1: object without a segmentation (annotation 2, of {coco}/photos/a.jpg)",
    ]
    words = ["prepare", "instances", str(out), *split, "--classes", str(coco / "classes.ini")]
    last = "next: prepare a split val for the scores, or repeat the command with --hold-out 0.2; then train small_r18"
    for _ in range(2):  # twice: nothing is added
        assert main(words) == 0
        assert capsys.readouterr().out.splitlines() == [*lines, last]
    assert main(["prepare", "--check", str(out), "--samples", "0"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("train:")] == lines[2:]
    (out / ".prepare" / "train.jsonl").write_text("{")
    assert main(["prepare", "--check", str(out), "--samples", "0"]) == 1
    assert "train.jsonl: not the journal of a conversion" in capsys.readouterr().out
    shutil.rmtree(out)

    def clear(content):
        for annotation in content["annotations"]:
            annotation["segmentation"] = []

    assert_instances_fail(coco, r"no object can be used: 3: object without a segmentation \(the first is", clear, False)
