"""`seamseg prepare --check` reports each kind of problem, and none for a valid data set."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support.browsers import HOSTILE
from support.source_files import classes, photo, picture, tree

from seamseg.cli.main import main
from seamseg.maps.formats.metadata import Metadata, read_metadata, write_metadata
from seamseg.maps.prepare.check import check_dataset
from seamseg.maps.prepare.contact_sheet import write_contact_sheet
from seamseg.maps.prepare.writer import DatasetWriter, Instances, SourceFrame


def read(frame):
    ids = np.ones((10, 14), np.uint8)
    ids[0], ids[5:, 7:], ids[8:, 10:], ids[1] = 0, 2, 3, 4
    return Instances(ids, [255, 0, 2, 2, 1], [0, 0, 0, 1, 0])


@pytest.fixture
def data(tmp_path):
    photos = [photo(tmp_path / "src" / f"{k}.png", (10, 14), 20 * k) for k in range(4)]
    frames = [SourceFrame(f"im{k}", path, path, path.name) for k, path in enumerate(photos)]
    writer = DatasetWriter(tmp_path / "data", classes(), 1, link="copy")
    writer.add_split("train", frames[:3], read)
    writer.add_split("val", frames[3:], read)
    writer.finish()
    return tmp_path / "data"


def damage_metadata(data, change):
    m = read_metadata(data / "metadata.bin")
    write_metadata(data / "metadata.bin", Metadata(**{**vars(m), "images": change(list(m.images))}))


def found(data, is_error=True):
    report = check_dataset(data, 1)
    return [str(p).replace(f"{data}/", "") for p in (report.errors if is_error else report.warnings)]


def test_valid_data_set(data):
    before = tree(data)
    report = check_dataset(data, 2)
    assert report.problems == []
    assert tree(data) == before
    assert report.splits == {"train": 3, "val": 1}
    assert report.sizes == [((10, 14), 4)]
    rows = {row["name"]: row for row in report.classes}
    mask = read(None).ids
    for name, ids in {"road": [1], "sky": [4], "car": [2, 3]}.items():
        pixels = 4 * int(np.isin(mask, ids).sum())
        assert (rows[name]["images"], rows[name]["segments"], rows[name]["pixels"]) == (4, 4 * len(ids), pixels)
        assert rows[name]["share"] == pytest.approx(pixels / (4 * np.count_nonzero(mask)))
    assert rows["car"]["crowds"] == 4
    assert rows["car"]["kind"] == "thing"
    assert rows["sky"]["kind"] == "stuff"
    assert report.void == pytest.approx(0.1)


def test_void_of_several_layers(data):
    """A pixel is void where all layers are 0."""
    Image.fromarray(np.zeros((10, 14), np.uint8)).save(data / "msk" / "im0.png.1", format="PNG")
    assert check_dataset(data, 1).void == pytest.approx(0.1)
    for k in range(3):
        picture(data / "msk" / f"im{k}.png", np.zeros((10, 14)))
    assert "msk: 78% of the pixels are void, which losses and scores ignore" in "".join(found(data, False))


def test_unreadable_files(data):
    (data / "img" / "im0.png").write_bytes(b"")
    (data / "img" / "im1.png").write_bytes((data / "img" / "im1.png").read_bytes()[:45])
    (data / "img" / "im2.png").unlink()
    (data / "msk" / "im0.png").unlink()
    (data / "msk" / "im1.png").write_bytes(b"x")
    starts = [
        "img/im0.png: the file is empty (0 bytes)",
        "msk/im0.png: no mask of image 'im0'",
        "img/im1.png: corrupt image",
        "msk/im1.png: not an image",
        "img/im2: no image file of 'im2'",
    ]
    assert all(message.startswith(start) for message, start in zip(found(data), starts, strict=True))


def test_sizes_and_ids(data):
    photo(data / "img" / "im0.png", (10, 15))
    picture(data / "msk" / "im3.png", np.ones((9, 14)))
    picture(data / "msk" / "im0.png", np.full((10, 14), 5))
    ids = np.ones((10, 14))
    ids[0], ids[1] = 7, 9
    picture(data / "msk" / "im1.png", ids)
    picture(data / "msk" / "im2.png", np.zeros((10, 14)))
    assert found(data) == [
        "img/im0.png: 15 x 10 pixels (width x height), but metadata.bin has 14 x 10",
        "msk/im0.png: instance id 5 without class: metadata.bin has ids 0 to 4",
        "msk/im1.png: instance id 7 and 1 more without class: metadata.bin has ids 0 to 4",
        "msk/im3.png: the mask is 14 x 9 pixels (width x height), but metadata.bin has 14 x 10",
    ]
    warnings = found(data, False)
    assert "msk/im1.png: 3 of 4 ids of metadata.bin have no pixel" in warnings
    assert "msk/im2.png: nothing but void" in warnings


def test_lists(data):
    (data / "lst" / "train.txt").write_text("im0\nim0\nim9\nim3\n")
    (data / "lst" / "more.txt").write_text("\n")
    messages = found(data)
    assert "lst/train.txt: image 'im0' is listed 2 times" in messages
    assert "lst/train.txt: image 'im9' is not in metadata.bin" in messages
    assert "lst/more.txt: the list is empty" in messages
    warnings = found(data, False)
    assert "lst: no list has 2 images, the first is 'im1'" in warnings
    assert "lst/val.txt: has 1 image of train, the first is 'im3'" in warnings
    shutil.rmtree(data / "lst")
    damage_metadata(data, lambda images: [*images, images[0]])
    messages = found(data)
    assert messages[0] == "metadata.bin: lists image 'im0' 2 times"
    assert messages[1].startswith("lst: no list of images")
    damage_metadata(data, lambda images: [])
    assert "metadata.bin: lists no images" in found(data)


def test_classes(data):
    m = read_metadata(data / "metadata.bin")
    twice = Metadata(2, 3, ["road", "sky", "car", "bus", "sky"], [(0, 0, 0)] * 5, [0, 1, 2, 3, 4], m.images)
    write_metadata(data / "metadata.bin", twice)
    assert "metadata.bin: two classes have the name 'sky'" in found(data)
    assert "metadata.bin: 2 classes never occur: 'bus', 'sky'" in found(data, False)
    write_metadata(data / "metadata.bin", m)
    damage_metadata(data, lambda images: [*(replace(i, cat=[*i.cat[:4], 0]) for i in images[:3]), images[3]])
    assert found(data, False) == ["metadata.bin: class 'sky' occurs in val, but not in train"]


def test_photos_twice_and_interruptions(data):
    (data / "img" / "im3.png").write_bytes((data / "img" / "im1.png").read_bytes())
    # within a split it may be intended
    (data / "img" / "im2.png").write_bytes((data / "img" / "im1.png").read_bytes())
    assert found(data, False) == ["img: 'im1' (train) and 'im3' (val) are the same image"]
    journal = data / ".prepare" / "train.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]))
    assert ".prepare: a conversion was interrupted; run it again" in found(data, False)


def test_detection_files(data):
    path = data / "coco" / "train.json"
    content = json.loads(path.read_text())

    def messages(change, is_error=True):
        changed = json.loads(json.dumps(content))
        change(changed)
        path.write_text(json.dumps(changed))
        return found(data, is_error)

    assert messages(lambda c: c["images"].pop()) == [
        "coco/train.json: its images are not those of the list: 1, the first is 'im2'",
        "coco/train.json: has annotations of unknown images: 2, the first is 5",
    ]
    assert "another size" in messages(lambda c: c["images"][0].update(width=3))[0]
    assert "not the thing classes" in messages(lambda c: c["categories"].append({"id": 7, "name": "x"}))[0]
    assert "of one id: 1, the first is 2" in messages(lambda c: c["annotations"][0].update(id=2))[0]
    assert "has id 0" in messages(lambda c: c["annotations"][0].update(id=0), False)[0]
    assert "not COCO annotations" in messages(lambda c: c.pop("images"))[0]
    path.unlink()
    assert "coco/train.json: no such file" in found(data, False)[0]


def test_command(data, tmp_path, capsys):
    assert main(["prepare", "--check", str(data), "--json", str(tmp_path / "r.json")]) == 0
    shown = capsys.readouterr()
    assert "4 images (3 in train, 1 in val)" in shown.out
    assert "errors: 0, warnings: 0" in shown.out
    assert f"{data / 'check.jpg'}: contact sheet of 4 images" in shown.out
    assert "check: 4/4" in shown.err
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["ok"], report["images"], report["errors"]) == (True, 4, [])
    assert Image.open(data / "check.jpg").format == "JPEG"
    (data / "msk" / "im2.png").unlink()
    words = ["prepare", "--check", str(data), "--quiet", "--workers", "1", "--samples", "0", "--json"]
    assert main([*words, str(tmp_path / "r.json")]) == 1
    assert capsys.readouterr().err == ""
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["errors"] == [{"file": f"{data}/msk/im2.png", "problem": "no mask of image 'im2'"}]
    (data / "check.jpg").unlink()
    (data / "check.jpg").mkdir()
    assert main(["prepare", "--check", str(data)]) == 1
    assert "no sheet: " in capsys.readouterr().out


def test_command_without_a_data_set(data, tmp_path, capsys):
    damage_metadata(data, lambda images: images + [replace(images[0], id=f"x{k}") for k in range(40)])
    assert main(["prepare", "--check", str(data), "--samples", "0"]) == 1
    shown = capsys.readouterr().out
    assert "error: 30 more; --json" in shown
    assert "--json FILE lists them all" in shown
    (data / "metadata.bin").write_bytes(b"x")
    for code, words in ((1, ["--check", str(data)]), (2, ["--check", str(tmp_path)]), (2, [])):
        assert main(["prepare", *words]) == code
        error = capsys.readouterr().err
        assert error.count("\n") == 1
    assert "name either a SOURCE or --check DATA" in error


@pytest.mark.parametrize("name", ["road", HOSTILE["words"]])
def test_sheet_shows_every_class_and_no_unreadable_image(data, tmp_path, name):
    m = read_metadata(data / "metadata.bin")
    write_metadata(data / "metadata.bin", replace(m, categories=[name, *m.categories[1:]]))
    (data / "img" / "im0.png").write_bytes(b"")
    assert write_contact_sheet(tmp_path / "s.png", check_dataset(data, 1), 24, 1) == 3
    with Image.open(tmp_path / "s.png") as sheet:
        assert sheet.width < 3000
        # tiles have the shape of the images: 482 x 344 for 14 x 10
        assert sheet.height == 344 + 22 + 8 + 14 * 2
        legend = {tuple(c) for c in np.asarray(sheet).reshape(-1, 3).tolist()}
    assert set(m.palette) <= legend
