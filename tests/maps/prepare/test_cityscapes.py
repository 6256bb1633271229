"""Raw Cityscapes → dataset folder: the original's result, and every way the source can be wrong."""

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.source_files import listed, photo, picture, tree, zip_of

from seamseg.cli.main import main
from seamseg.maps.formats.cityscapes.labels import cityscapes_classes
from seamseg.maps.formats.metadata import read_metadata
from seamseg.maps.prepare.cityscapes import prepare_cityscapes
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.utils.errors import InputError

FIXTURE = Path(__file__).parents[2] / "golden" / "prep_fixture.zip"


@pytest.fixture
def raw(tmp_path):
    """A raw tree of two training frames that tests may modify."""
    root = tmp_path / "raw"
    for k, city in enumerate(("ulm", "jena")):
        name = f"{city}_000000_00000{k}"
        photo(root / "leftImg8bit" / "train" / city / f"{name}_leftImg8bit.png", shade=k)
        ids = np.full((8, 12), 7, np.uint16)
        ids[2:4, 3:5], ids[6:, :4], ids[7, 7:] = 26001, 26, 29000
        picture(root / "gtFine" / "train" / city / f"{name}_gtFine_instanceIds.png", ids, np.uint16)
    return root


def truth_of(raw, city="ulm"):
    return next((raw / "gtFine" / "train" / city).iterdir())


def annotations(path):
    content = json.loads(path.read_text())
    fields = ("image_id", "category_id", "iscrowd", "area", "bbox", "width", "height")
    images = {i["id"]: (i["file_name"], i["width"], i["height"]) for i in content["images"]}
    return images, content["categories"], sorted([a[f] for f in fields] for a in content["annotations"])


def test_result_matches_the_original(tmp_path_factory, tmp_path):
    fixture = tmp_path_factory.mktemp("fixture")
    with zipfile.ZipFile(FIXTURE) as archive:
        archive.extractall(fixture)
    golden = fixture / "out_cityscapes"
    done = prepare_cityscapes(fixture / "cityscapes", tmp_path, options=ConversionOptions(2))
    assert done.splits == {"train": 4, "val": 1, "coarse": 1}
    ours, theirs = read_metadata(tmp_path / "metadata.bin"), read_metadata(golden / "metadata.bin")
    assert ours == done.metadata
    assert replace(ours, images=[]) == replace(theirs, images=[]) == cityscapes_classes()
    assert sorted(ours.images, key=lambda i: i.id) == sorted(theirs.images, key=lambda i: i.id)
    for split in done.splits:
        lists = [(root / "lst" / f"{split}.txt").read_text().split() for root in (tmp_path, golden)]
        assert lists[0] == sorted(lists[1])
        assert annotations(tmp_path / "coco" / f"{split}.json") == annotations(golden / "coco" / f"{split}.json")
    for folder in ("img", "msk"):
        assert {p.name for p in (tmp_path / folder).iterdir()} == {p.name for p in (golden / folder).iterdir()}
        for path in (golden / folder).iterdir():
            assert np.array_equal(np.array(Image.open(tmp_path / folder / path.name)), np.array(Image.open(path)))
    assert {p.name for p in tmp_path.iterdir()} == {"img", "msk", "lst", "coco", "metadata.bin", ".prepare"}


def with_label(value):
    return lambda raw: Image.fromarray(np.full((8, 12), value, np.uint16)).save(truth_of(raw))


@pytest.mark.parametrize(
    ("spoil", "options", "match"),
    [
        (lambda raw: raw.rename(raw.with_name("moved")), {}, "raw: no such folder or archive"),
        (lambda raw: shutil.rmtree(raw / "gtFine"), {}, "raw: 0 images found; expected leftImg8bit/"),
        (lambda raw: next(raw.glob("left*/*/ulm/*")).unlink(), {}, r"ulm_\w+\.png: no such image; 1 of 2 annotations"),
        (lambda raw: None, {"splits": ["test"]}, "no split has the name 'test'; choose among train, val"),
        *((with_label(value), {}, rf"Ids\.png: {value} is not a Cityscapes instance id") for value in (34, 34000)),
    ],
)
def test_invalid_sources(raw, tmp_path, spoil, options, match):
    spoil(raw)
    with pytest.raises(InputError, match=match) as error:
        prepare_cityscapes(raw, tmp_path / "out", **options)
    assert "\n" not in str(error.value)
    assert listed(tmp_path / "out") < 3


def test_all_void_and_license_plate(raw, tmp_path):
    Image.fromarray(np.full((8, 12), 0xFFFF, np.uint16)).save(truth_of(raw))
    metadata = prepare_cityscapes(raw, tmp_path / "out").metadata
    assert [i.cat for i in metadata.images] == [[255, 0, 13, 13], [255]]
    assert [i.iscrowd for i in metadata.images] == [[0, 0, 1, 0], [0]]


def test_command(tmp_path, capsys):
    raw, out = tmp_path / "raw", tmp_path / "out"
    assert main(["prepare", "toy-city", str(raw), "--train", "2", "--val", "0", "--size", "64x96"]) == 0
    assert "toy city: 2/2" in capsys.readouterr().err
    assert main(["prepare", "cityscapes", str(raw), str(out), "--splits", "train,val", "--workers", "1"]) == 0
    shown = capsys.readouterr()
    assert shown.out == (
        f"{out}: 2 images in train; 11 stuff and 8 thing classes\n"
        "train: used 2 images, 19 segments, of which 9 objects\n"
    )
    assert "no val, skipped" in shown.err
    assert "train: 2/2" in shown.err
    packed = zip_of(raw, tmp_path / "raw.zip")
    assert main(["prepare", "--quiet", "cityscapes", str(packed), str(tmp_path / "two"), "--splits", "train"]) == 0
    assert capsys.readouterr().err == ""
    assert tree(tmp_path / "two") == tree(out)
