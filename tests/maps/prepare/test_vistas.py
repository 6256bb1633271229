"""Conversion of Mapillary Vistas: the result of the original without its error, both versions, and invalid sources."""

import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.source_files import photo, picture, segments, tree, write_json, zip_of

from seamseg.cli.main import main
from seamseg.maps.formats.metadata import read_metadata
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.maps.prepare.vistas import prepare_vistas
from seamseg.utils.errors import InputError

FIXTURE = Path(__file__).parents[2] / "golden" / "prep_fixture.zip"
LABELS = [
    {"name": "sky", "instances": False, "evaluate": True, "color": [1, 2, 3]},
    {"name": "car", "instances": True, "evaluate": True, "color": [4, 5, 6]},
    {"name": "car-group", "instances": True, "evaluate": True, "color": [4, 5, 7]},
    {"name": "person-group", "instances": False, "evaluate": False, "color": [4, 5, 8]},
    {"name": "road", "instances": False, "evaluate": True, "color": [4, 5, 9]},
]


@pytest.fixture
def raw(tmp_path):
    """One training frame: sky, cars 0, 4 and 254, a group, an unevaluated group, two patches of road."""
    root = tmp_path / "raw"
    write_json(root / "config.json", {"labels": LABELS})
    photo(root / "training" / "images" / "a.JPG")
    ids = np.zeros((8, 12), np.uint16)
    ids[1, :2], ids[1, 3], ids[1, 4:7] = 256, 256 + 4, 256 + 254
    ids[2], ids[3, :5], ids[4:6], ids[7] = 512, 768, 1024, 1024 + 3
    picture(root / "training" / "instances" / "a.png", ids, np.uint16)
    return root


EXPECTED = [("car", 0, 1), ("car", 0, 2), ("car", 0, 3), ("car-group", 1, 12), ("road", 0, 36), ("sky", 0, 37)]


def test_result_matches_the_original_without_its_error(tmp_path):
    out, fixture = tmp_path / "out", tmp_path / "fixture"
    with zipfile.ZipFile(FIXTURE) as archive:
        archive.extractall(fixture)
    golden = fixture / "out_vistas"
    done = prepare_vistas(fixture / "vistas", out, options=ConversionOptions(2))
    assert done.splits == {"training": 3, "validation": 1}
    ours, theirs = done.metadata, read_metadata(golden / "metadata.bin")
    assert replace(ours, images=[]) == replace(theirs, images=[])
    before = {image.id: image for image in theirs.images}
    for image in ours.images:
        values = np.array(Image.open(next((fixture / "vistas").glob(f"*/instances/{image.id}.png"))))
        if 1020 in values:  # instance 252 of label 3; divided by 255 it is one of label 4
            cars = ours.categories.index("object--vehicle--car")
            assert image.cat.count(cars) == before[image.id].cat.count(cars) + 1
        else:
            assert image == before[image.id]
            masks = [np.array(Image.open(root / "msk" / f"{image.id}.png")) for root in (out, golden)]
            assert np.array_equal(*masks)
    for split in done.splits:
        lists = [(root / "lst" / f"{split}.txt").read_text().split() for root in (out, golden)]
        assert lists[0] == sorted(lists[1])
        files = [json.loads((root / "coco" / f"{split}.json").read_text()) for root in (out, golden)]
        assert files[0]["categories"] == files[1]["categories"]
        names = [sorted((i["id"], i["file_name"], i["width"], i["height"]) for i in f["images"]) for f in files]
        assert names[0] == names[1]


@pytest.mark.slow
def test_frame_matches_the_published_metadata(tmp_path):
    """SEAMSEG_REAL_DATA holds `vistas_sample/v1.2/` and the `metadata.bin` of the published model."""
    root = Path(os.environ.get("SEAMSEG_REAL_DATA", "/nonexistent"))
    if not (root / "vistas_sample").is_dir():
        pytest.skip("no vistas_sample in SEAMSEG_REAL_DATA, which may not be redistributed")
    done = prepare_vistas(root / "vistas_sample" / "v1.2", tmp_path, options=ConversionOptions(1))
    published = read_metadata(root / "published_model" / "metadata.bin")
    assert replace(done.metadata, images=[]) == replace(published, images=[])
    image = done.metadata.images[0]
    assert image == next(i for i in published.images if i.id == image.id)


def test_instance_values(raw, tmp_path, capsys):
    m = prepare_vistas(raw, tmp_path / "out").metadata
    assert m.categories == ["sky", "road", "car", "car-group"]
    assert (m.num_stuff, m.num_thing, m.original_ids) == (2, 2, [0, 4, 1, 2])
    assert m.palette == [(1, 2, 3), (4, 5, 9), (4, 5, 6), (4, 5, 7)]
    assert segments(tmp_path / "out", "a") == EXPECTED
    zip_of(raw, tmp_path / "raw.zip")
    assert main(["prepare", "vistas", str(tmp_path / "raw.zip"), str(tmp_path / "two"), "--workers", "1"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'two'}: 1 image in training; 2 stuff and 2 thing classes")
    assert tree(tmp_path / "two") == tree(tmp_path / "out")
    prepare_vistas(raw, tmp_path / "links", options=ConversionOptions(1, symlink=True))
    assert (tmp_path / "links" / "img" / "a.jpg").is_symlink()


def test_version_2_and_default_version(raw, tmp_path):
    (raw / "config.json").rename(raw / "config_v1.2.json")
    (raw / "training" / "v1.2").mkdir()
    (raw / "training" / "instances").rename(raw / "training" / "v1.2" / "instances")
    write_json(raw / "config_v2.0.json", {"labels": [*LABELS[:2], {**LABELS[2], "name": "bus"}, *LABELS[3:]]})
    picture(raw / "training" / "v2.0" / "instances" / "a.png", np.full((8, 12), 512), np.uint16)
    photo(raw / "training" / "images" / "b.jpg")
    messages = []
    done = prepare_vistas(raw, tmp_path / "one", options=ConversionOptions(log=messages.append))
    assert segments(tmp_path / "one", "a") == EXPECTED
    assert "labels of versions 1.2 and 2.0; using 1.2, as none is named" in messages[0]
    skipped = done.accounts["training"].skipped
    assert skipped == {"image without a PNG in training/v1.2/instances": (1, str(raw / "training/images/b.jpg"))}
    prepare_vistas(raw, tmp_path / "two", "2.0")
    assert segments(tmp_path / "two", "a") == [("bus", 0, 96)]


def test_groups_of_version_2(tmp_path):
    """Names and flags are from the official config, whose groups are not evaluated."""
    flags = {
        "human--person--individual": (True, True),
        "human--person--person-group": (False, False),
        "object--support--pole": (True, True),
        "object--support--pole-group": (False, False),
        "object--vehicle--car": (True, True),
        "object--vehicle--bus": (True, True),
        "object--vehicle--vehicle-group": (False, False),
        "nature--sky": (False, True),
        "nature--sky-group": (False, False),
    }
    labels = [{"name": n, "instances": t, "evaluate": e, "color": [1, 2, 3]} for n, (t, e) in flags.items()]
    write_json(tmp_path / "config_v2.0.json", {"labels": labels})
    photo(tmp_path / "training" / "images" / "a.jpg", (len(flags), 4))
    rows = np.arange(len(flags))[:, None] * 256 + np.array([0, 0, 1, 1])
    picture(tmp_path / "training" / "v2.0" / "instances" / "a.png", rows, np.uint16)
    done = prepare_vistas(tmp_path, tmp_path / "out")
    assert (done.metadata.num_stuff, done.metadata.num_thing) == (1, 4)
    found = segments(tmp_path / "out", "a")
    assert {name for name, crowd, _ in found if crowd} == {"human--person--individual", "object--support--pole"}
    assert sum(crowd for _, crowd, _ in found) == 4
    assert sum(n for _, _, n in found) == 4 * 7


def filled(value, dtype=np.uint16):
    return lambda raw: picture(raw / "training" / "instances" / "a.png", np.full((8, 12), value), dtype)


def without(name):
    return lambda raw: (raw / name).unlink()


def described(content):
    return lambda raw: (raw / "config.json").write_text(content)


@pytest.mark.parametrize(
    ("spoil", "options", "match"),
    [
        (without("config.json"), {}, r"raw: no config_v1.2.json or config.json or config_v2.0.json; is this the root"),
        (without("training/instances/a.png"), {}, r"raw: 0 images found; expected training/images/\*\.jpg"),
        (lambda raw: None, {"version": "3"}, r"there is no Vistas version '3'"),
        (without("training/images/a.JPG"), {}, r"a\.jpg: no such image; 1 of 1 annotations of training lack"),
        (filled(4, np.uint8), {}, r"a\.png: not 16 bits per pixel; is it from labels/"),
        (filled(5 * 256), {}, r"a\.png: label 5, but the config has labels 0 to 4"),
        (described('{"labels": []}'), {}, r"config\.json: 0 labels"),
        *((described(c), {}, r"config\.json: not the labels of Mapil") for c in ("{", '{"labels": [{"name": "x"}]}')),
    ],
)
def test_invalid_sources(raw, tmp_path, spoil, options, match):
    spoil(raw)
    with pytest.raises(InputError, match=match) as error:
        prepare_vistas(raw, tmp_path / "out", **options)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out" / "metadata.bin").exists()
