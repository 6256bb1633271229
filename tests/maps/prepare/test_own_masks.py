"""Masks in other forms: numbers of objects, a file for each object, polygons of labelme and YOLO, Pascal VOC."""

import base64
import io

import numpy as np
import pytest
from PIL import Image
from support.source_files import photo, picture, segments, write_json

from seamseg.cli.main import main
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.prepare import coco_instances
from seamseg.maps.prepare.account import read_accounts
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.maps.prepare.label_folders import prepare_folders
from seamseg.utils.errors import InputError

CLASSES = """
[road]
id = 5
kind = stuff
[car]
id = 0
kind = thing
[car_part]
id = 1
kind = thing
[void]
ids = 9
"""


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "classes.ini").write_text(CLASSES)
    photo(tmp_path / "photos" / "a.jpg")
    return tmp_path


def prepare(raw, labels="labels", *more, out="out", split="train", **options):
    messages = []
    given = (str(raw / "photos"), *(str(raw / name) for name in (labels, *more)))
    done = prepare_folders(
        raw / out, {split: given}, raw / "classes.ini", options=ConversionOptions(1, log=messages.append), **options
    )
    return messages + done.accounts[split].lines(split)[1:]


def assert_fails(raw, match, *more, **options):
    with pytest.raises(InputError, match=match) as error:
        prepare(raw, "labels", *more, **options)
    assert "\n" not in str(error.value)
    assert not (raw / "out" / "metadata.bin").exists()


def box(top, bottom, left, right, value=255):
    mask = np.zeros((8, 12), np.uint8)
    mask[top:bottom, left:right] = value
    return mask


NUMBERS = "'person' is the only thing: labels are the numbers of its objects"
PERSON = "[person]\nid = 1\nkind = thing\n"
TWO_AND_VOID = box(0, 2, 0, 3, 1) + box(4, 6, 0, 3, 2) + box(7, 8, 0, 5)
ONE = box(0, 2, 0, 3, 1)
REST = ("background", 0, 79)
PERSONS = [("person", 0, 6), ("person", 0, 6)]


@pytest.mark.parametrize(
    ("classes", "mask", "message", "expected"),
    [
        (PERSON + "[void]\nids = 255\n", TWO_AND_VOID, NUMBERS, [REST, *PERSONS]),
        (PERSON + "[void]\nids = 0 255\n", TWO_AND_VOID, NUMBERS, PERSONS),
        (PERSON, ONE, "no image has more than one object: labels of 0 and 1", [("background", 0, 90), PERSONS[0]]),
        (PERSON + "[road]\nid = 2\nkind = stuff\n[void]\nids = 0\n", ONE, "things become crowds", [("person", 1, 6)]),
    ],
)
def test_label_images_of_one_thing(raw, classes, mask, message, expected):
    (raw / "classes.ini").write_text(classes)
    photo(raw / "photos" / "b.jpg")
    for name in "ab":
        picture(raw / "labels" / f"{name}_mask.png", mask)
    assert message in "\n".join(prepare(raw, suffixes=("", "_mask", "")))
    assert segments(raw / "out", "a") == expected


MASKS = {"car_1": box(0, 4, 0, 4), "car_2": box(2, 3, 2, 6), "car_part_1": box(7, 8, 0, 2), "road": box(0, 8, 0, 1)}
FOUND = [("car", 0, 4), ("car", 0, 16), ("car_part", 0, 2), ("road", 0, 3)]


@pytest.mark.parametrize("name", ["a/{}.PNG", "sub/a_{}.png"])
def test_a_file_for_each_object(raw, name):
    for words, mask in MASKS.items():
        picture(raw / "labels" / name.format(words), mask)
    assert prepare(raw) == []
    assert segments(raw / "out", "a") == FOUND
    assert DatasetFolder(raw / "out").read_mask("a").shape[0] == 2  # two pixels are in both cars


def test_folders_of_classes_colours_similar_names_and_background(raw):
    (raw / "classes.ini").write_text(CLASSES + "[background]\nid = 8\nkind = stuff\n")
    photo(raw / "photos" / "a_car.jpg")
    picture(raw / "labels" / "a" / "car" / "7.tif", np.repeat(box(0, 1, 0, 2)[..., None], 3, 2))
    picture(raw / "labels" / "a_car_car_7.png", box(0, 1, 0, 3, 1))
    picture(raw / "labels" / "a_car_8.png", box(0, 1, 4, 8, 1))
    picture(raw / "labels" / "b_car_8.png", box(0, 1, 4, 8, 1))
    photo(raw / "photos" / "c.jpg")
    assert prepare(raw) == [
        f"train: skipped 1: image without labels ({raw / 'photos' / 'c.jpg'})",
        f"train: skipped 1: label file of no image ({raw / 'labels' / 'b_car_8.png'})",
    ]
    assert segments(raw / "out", "a") == [("background", 0, 90), ("car", 0, 2), ("car", 0, 4)]
    assert segments(raw / "out", "a_car") == [("background", 0, 93), ("car", 0, 3)]
    assert DatasetFolder(raw / "out").metadata.palette[1] == (0, 0, 0)


def test_invalid_object_files(raw):
    picture(raw / "labels" / "a_mask.png", box(0, 1, 0, 1))
    assert_fails(raw, r"a_mask\.png: 'mask' after the name .* PHOTO_CLASS_NUMBER\.png; .*`suffixes=\"\" _labels \"\"`")
    path = raw / "labels" / "a_car.png"
    (raw / "labels" / "a_mask.png").rename(path)
    assert_fails(raw, r"a_car\.png: holds the objects: omit the divisor", divisor=10)
    picture(path, box(0, 1, 0, 1) + box(5, 6, 0, 1, 3))
    assert_fails(raw, r"a_car\.png: has more than one value besides 0")
    path.unlink()
    labelme(raw, shape("car"))
    photo(raw / "photos" / "b.jpg")
    yolo(raw, "0 0 0 1 0 1 1", name="b")
    assert_fails(raw, r"b\.txt: labels in another form than .*a\.json")
    (raw / "labels" / "b.txt").unlink()
    picture(raw / "numbers" / "a.png", box(0, 1, 0, 1))
    assert_fails(raw, r"a\.json: holds the objects: omit the divisor, and the folder of instances", "numbers")


def test_masks_in_the_alpha_channel(raw):
    pixels = np.full((8, 12, 4), 255, np.uint8)
    pixels[..., 3] = box(1, 3, 2, 6)
    picture(raw / "labels" / "a_car_1.png", pixels)
    prepare(raw)
    assert segments(raw / "out", "a") == [("car", 0, 8)]
    pixels[:2, :3, :3] = 9
    picture(raw / "labels" / "a_car_1.png", pixels)
    with pytest.raises(InputError, match=r"a_car_1\.png: both its colours and its alpha channel vary"):
        prepare(raw)


def test_images_with_several_frames(raw):
    frames = [Image.new("RGB", (12, 8), (shade, 9, 9)) for shade in (0, 99)]
    (raw / "photos" / "a.jpg").unlink()
    for name in ("a.gif", "b.png"):
        frames[0].save(raw / "photos" / name, save_all=True, append_images=frames[1:])
    frames[0].save(raw / "photos" / "c.jpg", format="MPO", save_all=True, append_images=frames[1:])
    for name in "abc":
        picture(raw / "labels" / f"{name}.png", box(0, 1, 0, 1, 5) + box(1, 8, 0, 1, 9))
    first = raw / "photos" / "a.gif"
    assert prepare(raw)[1:] == [f"train: skipped 2: all frames but the first of an image (the first is {first})"]
    frames[0].convert("L").save(raw / "labels" / "a.png", save_all=True, append_images=[frames[1].convert("L")])
    with pytest.raises(InputError, match=r"a\.png: has several frames; a mask is one image"):
        prepare(raw)


def test_objects_within_the_memory(raw, monkeypatch):
    """They are refused while they are read, not when all of them are in the memory."""
    read = []
    original = coco_instances.decode_rle
    monkeypatch.setattr(coco_instances, "decode_rle", lambda *words: read.append(1) or original(*words))
    yolo(raw, "\n".join(["0 0 0 1 0 1 1 0 1"] * 1000))
    assert_fails(raw, "overlap in more than 64 layers of 12 x 8 pixels")
    assert len(read) == 65
    monkeypatch.setattr(coco_instances, "_MAX_RUNS", 100)
    yolo(raw, "\n".join(["0 0 0 1 0 1 1"] * 40))
    assert_fails(raw, r"or 100 runs of their pixels, on .*a\.jpg")


SQUARE = [[0, 0], [4, 0], [4, 4], [0, 4]]


def encoded(mask):
    file = io.BytesIO()
    Image.fromarray(mask).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def shape(label, points=SQUARE, kind="polygon", group=None, **more):
    return {"label": label, "points": points, "group_id": group, "shape_type": kind, **more}


def labelme(raw, *shapes, folder="labels", **more):
    write_json(raw / folder / "a.json", {"shapes": shapes, "imageHeight": 8, "imageWidth": 12, **more})


def test_labelme_beside_the_images(raw):
    (raw / "classes.ini").write_text(CLASSES + "names = __ignore__\n")
    labelme(
        raw,
        shape("car", kind="rotation"),
        shape("car", [[12, 8], [10, 6]], "rectangle", 3),
        shape("car", [[6.0, 1.0], [8.0, 1.0]], "mask", 3, mask=encoded(np.ones((1, 3), bool))),
        shape("car_part", [[8, 5], [8, 6]], "circle"),
        shape("road", [[0, 0], [6, 0], [6, 2], [0, 2]]),
        shape("__ignore__", [[5, 0], [6, 0], [6, 2], [5, 2]], "oriented_rectangle"),
        folder="photos",
    )
    assert prepare(raw, "photos") == []
    assert segments(raw / "out", "a") == [("car", 0, 7), ("car", 0, 16), ("car_part", 0, 4), ("road", 0, 2)]


def test_labels_of_labelme_are_the_classes(raw):
    labelme(raw, *map(shape, ("car", "_background_", "bus", "__ignore__")))
    splits = {"train": (str(raw / "photos"), str(raw / "labels"))}
    made = prepare_folders(raw / "out", splits).metadata
    assert (made.categories, made.num_stuff) == (["_background_", "bus", "car"], 1)
    write_json(raw / "labels" / "a.json", {"images": [], "categories": []})
    with pytest.raises(InputError, match=r"pass a class list \(`classes`\).*`seamseg prepare instances`"):
        prepare_folders(raw / "out", splits)


@pytest.mark.parametrize(
    ("shapes", "more", "match"),
    [
        ([shape("bus")], {}, r"shape 1: the label 'bus' is not in the class list; it has road, car, car_part"),
        ([shape("car", SQUARE[:3], "rotation")], {}, "shape 1: 'rotation' with 3 points has no area"),
        ([shape("car", [[0, 0], [9e9, 0], [0, 9]])], {}, "shape 1: a point is not a pair of finite numbers"),
        ([shape("car", [[0, 0], [9e6, 0], [0, 9]])], {}, "shape 1: a corner is more than 192 pixels away"),
        ([shape("car", kind="mask", mask=encoded(np.ones((9, 2), bool)))], {}, "its mask of 2 x 9 pixels exceeds"),
        ([shape("car")], {"imageWidth": 9}, r"is of an image of 9 x 8 pixels .* has 12 x 8"),
    ],
)
def test_invalid_labelme(raw, shapes, more, match):
    labelme(raw, *shapes, **more)
    assert_fails(raw, rf"labels/a\.json: (.*: )?.*{match}")


def yolo(raw, text, name="a"):
    (raw / "labels").mkdir(exist_ok=True)
    (raw / "labels" / f"{name}.txt").write_text(text)


def test_yolo(raw):
    yolo(raw, "0 0 0 0.5 0 0.5 0.5 0 0.5\n\n5 0 0 1.001 0 1 1 0 1\n9 0 0 1 0 1 1 0 1\n1 0 0 .25 0 .25 .25 0 .25\n")
    # a name of several dots, and an image without objects
    photo(raw / "photos" / "b.rf.1.jpg")
    yolo(raw, "", "b.rf.1")
    assert prepare(raw) == []
    assert segments(raw / "out", "a") == [("car", 0, 24), ("car_part", 0, 6)]
    assert segments(raw / "out", "b.rf.1") == []


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("0 .5 .5 .1 .1", "a box, not a polygon"),
        ("0 .5 .5 .1 .1 .1", "expected a class id and pairs of numbers"),
        ("0", "0 corners, expected 3 or more"),
        ("2 0 0 1 0 1 1", "class 2 is the background in the class list; number the classes"),
        ("0 0 0 nan 0 1 1", "a coordinate is not from 0 to 1"),
        ("3 0 0 1 0 1 1", "value 3 has no class"),
    ],
)
def test_invalid_yolo(raw, line, match):
    (raw / "classes.ini").write_text(CLASSES + "[background]\nid = 2\nkind = stuff\n")
    yolo(raw, f"0 0 0 1 0 1 1\n{line}\n")
    assert_fails(raw, rf"labels/a\.txt: line 2: {match}")


THINGS = "[car]\nid = 0\nkind = thing\n[bus]\nid = 7\nkind = thing\n"


def things(raw, form):
    (raw / "classes.ini").write_text(THINGS.replace("id = 0", "id = 1") if form == "voc" else THINGS)
    if form == "yolo":
        yolo(raw, "7 0 0 .25 0 0 .5")
    elif form == "labelme":
        labelme(raw, shape("bus", [[0, 0], [3, 0], [0, 4]]))
    elif form == "objects":
        picture(raw / "labels" / "a_bus_1.png", np.tri(8, 12, dtype=bool)[::-1] & (box(0, 4, 0, 3) > 0))
    else:
        for folder, value in (("SegmentationClass", 7), ("SegmentationObject", 1)):
            picture(raw / folder / "a.png", box(0, 4, 0, 3, value))
        return ("SegmentationClass", "SegmentationObject")
    return ("labels",)


@pytest.mark.parametrize("form", ["yolo", "labelme", "objects", "voc"])
def test_things_only_have_a_background(raw, form):
    labels = things(raw, form)
    prepare(raw, *labels)
    metadata = DatasetFolder(raw / "out").metadata
    assert (metadata.categories, metadata.num_stuff) == (["background", "car", "bus"], 1)
    assert metadata.original_ids == [0, 1, 7] if form == "voc" else [1, 0, 7]
    (rest, bus) = segments(raw / "out", "a")
    assert rest == ("background", 0, 96 - bus[2])


def test_void_background(raw, capsys):
    words = ["prepare", "folders", str(raw / "out"), "--classes", str(raw / "classes.ini"), "--split", "train"]
    words += [str(raw / "photos"), *(str(raw / name) for name in things(raw, "yolo")), "--workers", "1"]
    assert main([*words, "--void-background"]) == 0
    assert "% of the pixels are void, which losses and scores ignore" in capsys.readouterr().err
    assert DatasetFolder(raw / "out").metadata.categories == ["car", "bus"]
    assert main(words) == 2
    assert "other classes; choose another folder, or leave void (--void-background)" in capsys.readouterr().err
    words = [*words[:2], str(raw / "voc"), *words[3:7], *(str(raw / name) for name in ("photos", *things(raw, "voc")))]
    assert main([*words, "--workers", "1", "--void-background"]) == 0
    assert segments(raw / "voc", "a") == [("bus", 0, 12)]
    assert main([*words[:-1], "--void-background", "--divisor", "99"]) == 0
    assert "train: no object of car, bus" in capsys.readouterr().err


def test_pascal_voc(raw):
    (raw / "classes.ini").write_text(CLASSES.replace("id = 0", "id = 7").replace("ids = 9", "ids = 0 255"))
    photo(raw / "photos" / "b.jpg")
    for folder, value in (("SegmentationClass", 7), ("SegmentationObject", 1)):
        image = Image.fromarray(box(0, 2, 0, 3, value) + box(4, 5, 0, 9))
        image.putpalette(bytes(range(256)) * 3)  # makes its mode P
        (raw / folder).mkdir()
        for name in "ab":
            image.save(raw / folder / f"{name}.png")
    lists = raw / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    for name, text in (("train", "a\n"), ("val", "b\n"), ("other", "c\n")):
        (lists / f"{name}.txt").write_text(text)
    prepare(raw, "SegmentationClass", "SegmentationObject")
    assert [image.id for image in DatasetFolder(raw / "out").metadata.images] == ["a"]
    assert segments(raw / "out", "a") == [("car", 0, 6)]
    assert read_accounts(raw / "out")["train"].skipped == {
        "image without labels or not in the list": [1, f"{raw}/photos/b.jpg"],
        "label file of no image in the list": [1, f"{raw}/SegmentationClass/b.png"],
        "instance image of no image in the list": [1, f"{raw}/SegmentationObject/b.png"],
    }
    messages = prepare(raw, "SegmentationClass", "SegmentationObject", out="all", split="all")
    assert any("has the lists other, train, val, none for all, which gets all images" in text for text in messages)
    assert len(DatasetFolder(raw / "all").metadata.images) == 2
    with pytest.raises(InputError, match=r"other\.txt: lists 'c', but it is not among the 2 files in .*photos"):
        prepare(raw, "SegmentationClass", split="other")


def test_images_held_out(raw, capsys):
    for name in "bcdefghij":
        photo(raw / "photos" / f"{name}.jpg")
    for name in "abcdefghij":
        picture(raw / "labels" / f"{name}.png", box(0, 2, 0, 3, 1))

    def held(out, fraction, split="train"):
        words = ["--classes", str(raw / "classes.ini"), "--hold-out", fraction, "--workers", "1"]
        words += ["--split", split, str(raw / "photos"), str(raw / "labels")]
        code = main(["prepare", "folders", str(raw / out), *words])
        return code, capsys.readouterr()

    code, shown = held("out", "0.3")
    words = f"{raw / 'out'} --log-dir runs/my --pre-train body:torchvision"
    assert (code, shown.out.splitlines()[-1].strip()) == (0, f"next: seamseg train small_r18 {words}")
    lists = {name: (raw / "out" / "lst" / f"{name}.txt").read_text().split() for name in ("train", "val")}
    assert [len(lists[name]) for name in ("train", "val")] == [7, 3]
    assert sorted(lists["train"] + lists["val"]) == list("abcdefghij")
    for fraction, split, words in (
        ("nan", "train", "--hold-out nan: must be from 0 to below 1"),
        ("0.99", "train", "--hold-out 0.99: leaves no image in train"),
        ("0.3", "val", "--hold-out 0.3: there is a split val already"),
    ):
        code, shown = held("bad", fraction, split)
        assert (code, shown.err.splitlines()[-1]) == (2, f"seamseg prepare: {words}")
        assert not (raw / "bad" / "metadata.bin").exists()
