"""Merging dataset folders: classes by name or mapping, kinds, ids, splits, and what cannot be merged."""

import numpy as np
import pytest
from support.source_files import listed, photo, picture, segments, tree

from seamseg.cli.main import main
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.metadata import ImageInfo, Metadata, write_metadata
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.maps.prepare.merge import MergeRules, merge_datasets, read_rules
from seamseg.utils.errors import InputError

COLOURS = [(k, k, k) for k in range(9)]


def folder(root, stuff, things, images, splits):
    """A data set whose images have row k of their mask in instance k, of the class named, crowd if it ends in `+`."""
    names = [*stuff, *things]
    infos = []
    for image_id, classes in images.items():
        mask = np.repeat(np.arange(6)[:, None], 4, 1)
        mask[mask > len(classes)] = 0
        photo(root / "img" / f"{image_id}.png", (6, 4), len(image_id))
        picture(root / "msk" / f"{image_id}.png", mask)
        cat = [names.index(name.rstrip("+")) for name in classes]
        infos.append(ImageInfo(image_id, [255, *cat], (6, 4), [0, *(int(c.endswith("+")) for c in classes)]))
    (root / "lst").mkdir()
    for split, ids in splits.items():
        (root / "lst" / f"{split}.txt").write_text("".join(f"{i}\n" for i in ids))
    m = Metadata(len(stuff), len(things), names, COLOURS[: len(names)], list(range(len(names))), infos)
    write_metadata(root / "metadata.bin", m)
    return root


@pytest.fixture
def parts(tmp_path):
    a = folder(
        tmp_path / "a",
        ["road", "pole"],
        ["car"],
        {"one": ["road", "car", "car+"], "two": ["pole", "car"]},
        {"train": ["one"], "val": ["two"]},
    )
    b = folder(
        tmp_path / "b",
        ["sky", "road"],
        ["truck", "car"],
        {"one": ["road", "sky", "truck", "car"], "six": ["truck+"]},
        {"train": ["six", "one"]},
    )
    return [a, b]


def test_by_name(parts, tmp_path):
    out = tmp_path / "out"
    layer = np.zeros((6, 4), np.uint8)
    layer[0, 0] = 2
    picture(parts[0] / "msk" / "two.tmp.png", layer).rename(parts[0] / "msk" / "two.png.1")
    messages = []
    options = ConversionOptions(2, copy=True, log=messages.append)
    done = merge_datasets(parts, out, options=options)
    assert not (out / "img" / "two.png").samefile(parts[0] / "img" / "two.png")
    m = done.metadata
    assert m.categories == ["road", "pole", "sky", "car", "truck"]
    assert m.num_stuff == 3
    assert m.palette == [COLOURS[k] for k in (0, 1, 0, 2, 2)]
    assert len(set(m.original_ids)) == 5
    assert done.splits == {"train": 3, "val": 1}
    assert (out / "lst" / "train.txt").read_text().split() == ["one", "b_six", "b_one"]
    assert segments(out, "one") == [("car", 0, 4), ("car", 1, 4), ("road", 0, 4)]
    assert segments(out, "b_one") == [("car", 0, 4), ("road", 0, 4), ("sky", 0, 4), ("truck", 0, 4)]
    assert segments(out, "b_six") == [("truck", 1, 4)]
    assert DatasetFolder(out).image_path("b_one").read_bytes() == (parts[1] / "img" / "one.png").read_bytes()
    assert DatasetFolder(out).read_mask("two").shape == (2, 6, 4)
    assert segments(out, "two") == [("car", 0, 5), ("pole", 0, 4)]
    before = tree(out)
    assert messages == []
    merge_datasets(parts, out, options=options)
    assert tree(out) == before
    assert [line.partition(", ")[2][:16] for line in messages] == ["already prepared"] * 2


@pytest.mark.parametrize(
    ("rules", "categories", "splits", "expected"),
    [
        (
            MergeRules({"b/truck": "car", "pole": None, "road": "ground"}, splits={"val": "test"}),
            ["ground", "sky", "car"],
            {"train": 3, "test": 1},
            {"two": [("car", 0, 4)], "b_one": [("car", 0, 4), ("car", 0, 4), ("ground", 0, 4), ("sky", 0, 4)]},
        ),
        (
            MergeRules({"car": "vehicle", "truck": "vehicle"}, frozenset({"vehicle"}), frozenset({"pole"})),
            ["road", "vehicle", "sky", "pole"],
            {"train": 3, "val": 1},
            {"one": [("road", 0, 4), ("vehicle", 0, 8)], "two": [("pole", 1, 4), ("vehicle", 0, 4)]},
        ),
    ],
)
def test_rules(parts, tmp_path, rules, categories, splits, expected):
    """Other names, void, things as stuff and stuff as things."""
    done = merge_datasets(parts, tmp_path / "out", rules)
    assert done.metadata.categories == categories
    assert done.splits == splits
    assert {name: segments(tmp_path / "out", name) for name in expected} == expected


def assert_fails(parts, tmp_path, match, rules=None, out=None):
    with pytest.raises(InputError, match=match) as error:
        merge_datasets(parts, out or tmp_path / "out", rules or MergeRules())
    assert "\n" not in str(error.value)
    assert listed(tmp_path / "out") < sum(map(listed, parts))


@pytest.mark.parametrize(
    ("rules", "match"),
    [
        (MergeRules({"trukc": "car"}), r"'trukc', which is in no part .*; did you mean 'truck'\?"),
        (MergeRules({"pole": "car"}), "class 'car' is stuff as 'pole' of .*a, but a thing as 'car'"),
        (MergeRules(things=frozenset({"bus"})), "has class 'bus', which is not a merged class"),
        (MergeRules({}, frozenset({"car"}), frozenset({"car"})), "in both `stuff` and `things`"),
        (MergeRules(dict.fromkeys(("road", "pole", "car", "sky", "truck"))), "maps every class to void"),
    ],
)
def test_merge_errors(parts, tmp_path, rules, match):
    assert_fails(parts, tmp_path, match, rules)


def test_invalid_parts(parts, tmp_path):
    assert_fails(parts, tmp_path, "is one of the parts", out=parts[0])
    assert_fails([parts[0], tmp_path / "none"], tmp_path, "no such data set folder")
    picture(parts[1] / "msk" / "six.png", np.full((6, 4), 9))
    assert_fails(parts, tmp_path, r"six\.png: instance id 9, but metadata\.bin lists ids 0 to 1")
    (parts[1] / "msk" / "six.png").unlink()
    assert_fails(parts, tmp_path, r"six\.png: no mask of image 'six'")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"car": 3}', r"not a class mapping \(unexpected value\); .* or {'classes': {...}, 'splits'"),
        ('{"classes": {}, "kinds": {}}', "unexpected kinds"),
        ('{"things": [["car"]]}', "not a class mapping"),
    ],
)
def test_invalid_mapping_files(tmp_path, text, match):
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(InputError, match=rf"m\.json: .*({match})"):
        read_rules(tmp_path / "m.json")
    (tmp_path / "m.json").write_text('{"stuff": ["pole"], "splits": {"training": "train"}}')
    assert read_rules(tmp_path / "m.json") == MergeRules({}, frozenset({"pole"}), splits={"training": "train"})


def test_command(parts, tmp_path, capsys):
    (tmp_path / "m.json").write_text('{"truck": "car"}')
    words = ["prepare", "merge", *map(str, parts), str(tmp_path / "out")]
    assert main([*words, "--classes", str(tmp_path / "m.json")]) == 0
    assert "3 images in train, 1 image in val; 3 stuff and 1 thing classes\n" in capsys.readouterr().out
    (parts[1] / "lst" / "train.txt").write_text("six\n")
    skipped = merge_datasets(parts, tmp_path / "two").accounts["train"].skipped
    assert skipped == {f"image of {parts[1]} that is in no list": (1, "one")}
    assert main(["prepare", "merge", str(parts[0]), str(tmp_path / "x")]) == 2
    assert "two or more dataset folders" in capsys.readouterr().err
