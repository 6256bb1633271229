"""Dataset folders: reading, writing, and errors for invalid ones."""

import json
from dataclasses import replace

import pytest
import torch
import umsgpack
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data.test_workers import dataset
from seamseg.data.samplers import SampleIndex
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.exported import ExportedMetadata
from seamseg.maps.formats.metadata import (
    ImageInfo,
    Metadata,
    metadata_of,
    pack_metadata,
    parse_metadata,
    read_metadata,
    write_metadata,
)
from seamseg.utils.errors import InputError

GREEN = (0, 255, 0)


@given(st.integers(0, 4), st.integers(1, 4), st.lists(st.tuples(st.text(max_size=5), st.integers(1, 9)), max_size=4))
def test_metadata_round_trip(num_stuff, num_thing, images):
    n = num_stuff + num_thing
    infos = [ImageInfo(name, [255, *range(n)], (side, side + 1), [0] * (n + 1)) for name, side in images]
    metadata = Metadata(num_stuff, num_thing, [f"class {i}" for i in range(n)], [GREEN] * n, list(range(n)), infos)
    assert parse_metadata(pack_metadata(metadata)) == metadata
    assert [metadata.is_thing(c) for c in (*range(n), 255)] == [False] * num_stuff + [True] * num_thing + [False]


def raw(**changes):
    meta = {"num_stuff": 1, "num_thing": 1, "categories": ["a", "b"], "palette": [GREEN] * 2, "original_ids": [1, 2]}
    image = {"id": "x", "cat": [255, 1], "size": [2, 3], "iscrowd": [0, 0]}
    meta.update({k: v for k, v in changes.items() if k in meta})
    image.update({k: v for k, v in changes.items() if k in image})
    return umsgpack.packb({"meta": meta, "images": [image]})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a metadata file"),
        (umsgpack.packb({"images": []}), "'meta' is missing"),
        (raw(num_thing=2), "2 entries in `categories`, but num_stuff [+] num_thing = 3"),
        (
            raw(cat=[255, 2]),
            "'x' has the size .*, and 2 in `cat`, of which the first must be 255, others 255 or 0 to 1",
        ),
        (raw(size=[0, 3]), "size"),
        (raw(size=7), "not a metadata file"),
        (raw(original_ids=[1, 1e300]), "is not a whole number of at most 60 bits"),
        (raw(palette=[GREEN, [0, 0, 1e300]]), "a colour must be three numbers from 0 to 255"),
    ],
)
def test_invalid_metadata(tmp_path, data, reason):
    path = tmp_path / "metadata.bin"
    path.write_bytes(data)
    with pytest.raises(InputError, match=reason) as error:
        read_metadata(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_padded_palette(tmp_path):
    """The original pads palettes with black to 256 entries; all readers leave the surplus ones out."""
    palette = [list(GREEN), [1, 2, 3]]
    meta = {"num_stuff": 1, "num_thing": 1, "categories": ["a", "b"], "original_ids": [1, 2]}
    padded = meta | {"palette": palette + [[0, 0, 0]] * 254}
    (tmp_path / "metadata.bin").write_bytes(umsgpack.packb({"meta": padded, "images": []}))
    found = read_metadata(tmp_path / "metadata.bin")
    assert found.palette == [GREEN, (1, 2, 3)]
    assert parse_metadata(pack_metadata(found)) == found
    assert metadata_of(padded, "snapshot") == found
    exported = json.dumps({"format": 1, "kind": "panoptic", "config": "", "size": [64, 64], "metadata": padded})
    assert ExportedMetadata.from_json(exported, "net.onnx").metadata == found
    assert DatasetFolder(tmp_path).metadata == found


def test_missing_metadata_and_folder(tmp_path):
    with pytest.raises(InputError, match=r"not a data set folder: it has no metadata.bin; see `seamseg prepare"):
        DatasetFolder(tmp_path)
    (tmp_path / "leftImg8bit").mkdir()
    with pytest.raises(InputError, match=r"raw Cityscapes, .*: seamseg prepare cityscapes .* OUT$"):
        DatasetFolder(tmp_path)
    with pytest.raises(InputError, match="no such data set folder"):
        DatasetFolder(tmp_path / "none")


def test_items(make_folder):
    root = make_folder(ending=".JPG")
    assert DatasetFolder(root).image_path("im1") == root / "img" / "im1.JPG"
    item = dataset(root)[1]
    assert (item["id"], item["size"]) == ("im1", (20, 12))
    assert item["cat"].tolist() == [255, 0, 2, 2]
    assert item["iscrowd"].tolist() == [0, 0, 0, 1]


def test_augmentation_depends_on_seed_epoch_and_index_alone(make_folder):
    root = make_folder()
    first, again = dataset(root), dataset(root)
    _ = again[2], again[0]
    assert all(torch.equal(first[1][k], again[1][k]) for k in ("img", "msk", "bbx"))
    shapes = set()
    for epoch in range(5):
        shapes.add(tuple(again[SampleIndex(epoch, 1, 1)]["img"].shape))
    assert len(shapes) > 1
    # an image that is drawn again
    assert len({tuple(first[SampleIndex(0, 0, slot)]["img"].shape) for slot in range(3)}) > 1
    assert torch.equal(first[SampleIndex(0, 1, 1)]["img"], first[1]["img"])
    assert not torch.equal(dataset(root, seed=3)[1]["img"], first[1]["img"])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_lists_of_windows(make_folder, encoding):
    root = make_folder()
    (root / "lst" / "val.txt").write_bytes('im2\r\n\r\n  "im0"  \r\n'.encode(encoding))
    assert [i.id for i in DatasetFolder(root).split("val")] == ["im2", "im0"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (None, r"no split 'val'; it has: train; \[dataloader\] train_set and val_set name the splits"),
        ("\n \n", r"0 images found in .*val\.txt"),
        ("im0\nother\n", r"1 of 2 images are not in metadata\.bin, the first is 'other'"),
        ("im0\nim1\nim0\n", "'im0' is listed twice"),
    ],
)
def test_invalid_splits(make_folder, text, match):
    root = make_folder()
    if text is not None:
        (root / "lst" / "val.txt").write_text(text)
    with pytest.raises(InputError, match=match):
        dataset(root, "val")


def cut_mask(root):
    path = root / "msk" / "im0.png"
    path.write_bytes(path.read_bytes()[:50])


def turned_photo(root):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (20, 12)).save(root / "img" / "im0.png", exif=exif)


def without_class(root):
    old = read_metadata(root / "metadata.bin")
    images = [replace(image, cat=[255, 0, 2], iscrowd=[0, 0, 0]) for image in old.images]
    write_metadata(root / "metadata.bin", replace(old, images=images))


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda root: (root / "img" / "im0.png").unlink(), r"img/im0: no image .* \.png, \.jpg, \.jpeg"),
        (lambda root: (root / "msk" / "im0.png").unlink(), r"im0\.png: no mask of image 'im0'"),
        (lambda root: (root / "img" / "im0.png").write_bytes(b""), r"im0\.png: the file is empty"),
        (cut_mask, r"msk/im0\.png: (corrupt|not an)"),
        (
            lambda root: Image.new("L", (7, 5)).save(root / "msk" / "im0.png"),
            r"im0\.png: the mask is 7 x 5 pixels .* but metadata.bin has 20 x 12",
        ),
        (
            lambda root: Image.new("RGB", (8, 5)).save(root / "img" / "im0.png"),
            r"im0\.png: the image is 8 x 5 pixels .* have 20 x 12; restore the image",
        ),
        (turned_photo, "EXIF orientation"),
        (without_class, r"im0\.png: the mask has instance id 3, but .* ids 0 to 2"),
    ],
)
def test_images_that_do_not_fit(make_folder, spoil, match):
    root = make_folder()
    spoil(root)
    with pytest.raises(InputError, match=match) as error:
        dataset(root)[0]
    assert "\n" not in str(error.value)
