"""Names and the files that they mean."""

from pathlib import Path

import pytest
from support.source_files import photo, picture, segments, write_json, zip_of

from seamseg.maps.prepare.coco_instances import prepare_instances
from seamseg.maps.prepare.convert import ConversionOptions, id_of
from seamseg.maps.prepare.label_folders import prepare_folders
from seamseg.maps.prepare.pairs import FilesByName, tree_files
from seamseg.utils.errors import InputError

CLASSES = "[road]\nid = 0\nkind = stuff\n[sky]\nid = 1\nkind = stuff\n"


def found(names, *paths, **options):
    files = FilesByName({path: Path(path) for path in paths}, **options)
    return [str(file) if (file := files.find(name)) else None for name in names]


@pytest.mark.parametrize(
    ("name", "paths", "expected"),
    [
        ("train/a.png", ["a.png"], "a.png"),  # the folder is `train` itself
        ("a.png", ["train/a.png"], "train/a.png"),
        ("data/train/a.png", ["train/a.png", "val/a.png"], "train/a.png"),
        ("images/1/a.png", ["images/a.png"], "images/a.png"),
        ("cam1/a.png", ["cam0/a.png", "cam1/b.png"], None),
        ("a.png", ["x/a.png", "y/a.png"], None),
        ("..\\..\\media\\upload\\4\\a.png", ["images/a.png"], "images/a.png"),
        ("C:\\data\\images\\a.png", ["images/a.png"], "images/a.png"),
        ("./images/a.png", ["images/a.png"], "images/a.png"),
        ("images/a%20b%231.png", ["images/a b#1.png"], "images/a b#1.png"),
        ("a%20b.png", ["a%20b.png", "a b.png"], "a%20b.png"),  # the literal name first
        ("a\\b.png", ["a\\b.png", "a/b.png"], "a\\b.png"),
        ("https://host/data/upload/1/a.png?token=1", ["a.png"], "a.png"),
        ("https://host/cam1/a.png", ["cam0/a.png"], None),
        ("/data/local-files/?d=p%5Ccam0%5Ca.png", ["cam0/a.png", "cam1/a.png"], "cam0/a.png"),
        ("/data/local-files/?d=x y#1.png", ["x y#1.png"], "x y#1.png"),
    ],
)
def test_a_name_and_the_file_that_it_means(name, paths, expected):
    assert found([name], *paths) == [expected]


def test_a_file_has_one_name():
    with pytest.raises(InputError, match=r"a\.png: is the only file for both 'cam0/a.png' and 'cam1/a.png'; one is"):
        found(["cam0/a.png", "cam0/a.png", "cam1/a.png"], "a.png")
    several = FilesByName({path: Path(path) for path in ("x/a.png", "y/a.png")})
    assert several.find("a.png") is None
    with pytest.raises(InputError, match=r"^i\.json: lists 'a.png', but both 'x/a.png' and 'y/a.png' may be it in p$"):
        several.get("a.png", "i.json", "p")
    assert found(["a", "old/a"], "a", wanted=["a", "old/a"]) == ["a", None]
    photos = FilesByName({f"{k}/rgb": Path(f"{k}/rgb.png") for k in range(20)})
    assert [photos.path_of(f"train/{k}/rgb") for k in (7, 20)] == ["7/rgb", None]
    with pytest.raises(InputError, match="both '0/rgb' and '1/rgb' may be it"):
        photos.get("rgb", "list.txt", "photos")
    assert id_of("images\\a.png") == "images_a"
    assert id_of("https://host/data/upload/1/a.png?t=1") == "a"


def test_top_folders_of_archives(tmp_path):
    """Those of two archives may differ; other folders may not."""
    for part in ("cam0/a", "cam1/b"):
        photo(tmp_path / "x" / "photos" / f"{part}.jpg")
        picture(tmp_path / "y" / "labels" / f"{part}.png", [[1] * 12] * 8)
    zips = zip_of(tmp_path / "x", tmp_path / "x.zip"), zip_of(tmp_path / "y", tmp_path / "y.zip")
    (tmp_path / "c.ini").write_text(CLASSES)
    done = prepare_folders(tmp_path / "out", {"train": tuple(map(str, zips))}, tmp_path / "c.ini")
    assert [image.id for image in done.metadata.images] == ["photos_cam0_a", "photos_cam1_b"]


def test_an_output_and_labels_among_the_images(tmp_path):
    root = tmp_path / "root"
    for name in ("a", "set/b"):
        photo(root / f"{name}.jpg")
        picture(root / "labels" / f"{name}.png", [[1] * 12] * 8)
    (tmp_path / "c.ini").write_text(CLASSES)
    for out in ("out", "out", "second"):
        given = {"train": (str(root), str(root / "labels"))}
        done = prepare_folders(root / out, given, tmp_path / "c.ini", options=ConversionOptions(1))
        assert [(image.id, image.cat) for image in done.metadata.images] == [("a", [255, 1]), ("set_b", [255, 1])]
        assert done.accounts["train"].skipped == {}
    assert list(tree_files(root, "images")) == ["a.jpg", "labels/a.png", "labels/set/b.png", "set/b.jpg"]


def test_everything_is_accounted_for(tmp_path):
    """Formats of images and labels, files without a partner, and names of another form."""
    for name in ("a.jpg", "b.gif", "c.ppm", "d.TIF", "e.jfif", "lost.webp"):
        photo(tmp_path / "photos" / name)
    for name in ("a.tif", "b.bmp", "c.png", "d.tiff", "e.png", "gone.png"):
        picture(tmp_path / "labels" / name, [[1] * 12] * 8)
    for name in ("photos/x.heic", "photos/notes.txt", "photos/y.HEIC", "labels/z.npy"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "c.ini").write_text(CLASSES)
    given = {"train": (str(tmp_path / "photos"), str(tmp_path / "labels"))}
    done = prepare_folders(tmp_path / "out", given, tmp_path / "c.ini")
    assert [image.id for image in done.metadata.images] == list("abcde")
    assert segments(tmp_path / "out", "d") == [("sky", 0, 96)]
    assert {p.suffix for p in (tmp_path / "out" / "img").iterdir()} == {".jpg", ".png"}
    assert done.accounts["train"].skipped == {
        "image without labels": (1, str(tmp_path / "photos/lost.webp")),
        "other file (.heic)": (2, str(tmp_path / "photos/x.heic")),
        "label file of no image": (1, str(tmp_path / "labels/gone.png")),
        "other file (.npy)": (1, str(tmp_path / "labels/z.npy")),
    }


@pytest.mark.parametrize(
    ("name", "hint"), [("l.txt", ""), ("l.tar.gz", r"; .*l\.tar\.gz cannot be read in place, unpack it")]
)
def test_archives_that_are_not_read(tmp_path, name, hint):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError, match=rf"nor a zip file with files \(labels\){hint}$"):
        tree_files(tmp_path / name, "labels")


def test_files_that_the_json_does_not_list(tmp_path):
    for name in ("cam0/a", "cam1/a", "cam1/b"):
        photo(tmp_path / "photos" / f"{name}.png")
    segmentation = [[0, 0, 6, 0, 6, 6]]
    content = {
        "images": [{"id": 1, "file_name": "cam0\\a.png"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "segmentation": segmentation}],
        "categories": [{"id": 1, "name": "car"}],
    }
    path = write_json(tmp_path / "i.json", content)
    done = prepare_instances(tmp_path / "out", {"train": (str(tmp_path / "photos"), str(path))})
    assert [image.id for image in done.metadata.images] == ["cam0_a"]
    first = str(tmp_path / "photos/cam1/a.png")
    assert done.accounts["train"].skipped == {"image that the JSON does not list": (2, first)}


def test_as_many_files_of_one_name_as_images(monkeypatch):
    compared = []
    monkeypatch.setattr(FilesByName, "_fits", lambda self, folders, path: compared.append(path) or True)
    files = {f"{k}/left/rgb": Path(f"{k}/left/rgb.png") for k in range(300)}
    photos = FilesByName(files)
    assert [photos.path_of(f"train/{path}") for path in files] == compared == list(files)
