"""Small raw data sets of three images for every converter, and the folders of their archives."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seamseg.prepare.cityscapes import prepare_cityscapes
from seamseg.prepare.coco_instances import prepare_instances
from seamseg.prepare.convert import ConversionOptions
from seamseg.prepare.label_folders import prepare_folders
from seamseg.prepare.panoptic import prepare_coco, prepare_panoptic
from seamseg.prepare.vistas import prepare_vistas
from support.source_files import CLASS_LIST, panoptic_png, photo, picture, write_json

SIZE = (8, 12)
NAMES = ("a", "b", "c")
ONE = ConversionOptions(workers=1)


@dataclass(frozen=True)
class Source:
    """A raw data set.

    Attributes
    ----------
    name : of the converter
    write : writes an image, given the folder, its name, and by pixel a class (0 stuff, 1 thing) and a number
    finish : writes the files of all images, given the folder and the results of `write`
    run : converts a folder
    mounts : folders that may have their files in archives
    mask : the annotation file of image `a`
    unknown : overwrites this file with a value without class
    """

    name: str
    write: Callable[[Path, str, np.ndarray, np.ndarray], Any]
    finish: Callable[[Path, list[Any]], None]
    run: Callable[[Path, Path, ConversionOptions], Any]
    mounts: tuple[str, ...]
    mask: str
    unknown: Callable[[Path], Path]

    def convert(self, root: Path, out: Path, options: ConversionOptions = ONE) -> Any:
        return self.run(root, out, options)


def write_source(source: Source, root: Path) -> None:
    """Write three images with stuff and two things at varying positions."""
    written = []
    for k, name in enumerate(NAMES):
        classes, numbers = np.zeros(SIZE, np.int64), np.zeros(SIZE, np.int64)
        classes[1 : 3 + k, :5], numbers[1 : 3 + k, :5] = 1, 1
        classes[6:, 2 + k :], numbers[6:, 2 + k :] = 1, 2
        written.append(source.write(root, name, classes, numbers))
    source.finish(root, written)


def pack(files: Sequence[tuple[Path, str]], archive: Path) -> None:
    """Write files to an archive, by name in the archive."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    if archive.suffix == ".tar":
        with tarfile.open(archive, "w") as tar:
            for path, name in files:
                tar.add(path, name)
    else:
        with zipfile.ZipFile(archive, "w") as file:
            for path, name in files:
                file.write(path, name)


def sharded(root: Path, out: Path, mounts: Sequence[str], choose: Callable[[], str]) -> None:
    """Put each file below a mount into an archive there, named by `choose`; copy the others."""
    shards: dict[Path, list[tuple[Path, str]]] = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        relative = path.relative_to(root).as_posix()
        mount = next((m for m in mounts if m == "" or relative.startswith(f"{m}/")), None)
        if mount is None:
            (out / relative).parent.mkdir(parents=True, exist_ok=True)
            (out / relative).write_bytes(path.read_bytes())
        else:
            shards.setdefault(out / mount / choose(), []).append((path, relative[len(mount) :].lstrip("/")))
    for archive, files in shards.items():
        pack(files, archive)


def full(value: int, dtype: type = np.uint16) -> Callable[[Path], Path]:
    return lambda path: picture(path, np.full(SIZE, value), dtype)


def _cityscapes(root: Path, name: str, classes: np.ndarray, numbers: np.ndarray) -> None:
    photo(root / "leftImg8bit" / "train" / "x" / f"{name}_leftImg8bit.png", SIZE, ord(name))
    values = np.where(classes == 1, 26000 + numbers, 7)
    picture(root / "gtFine" / "train" / "x" / f"{name}_gtFine_instanceIds.png", values, np.uint16)


def _vistas(root: Path, name: str, classes: np.ndarray, numbers: np.ndarray) -> None:
    photo(root / "training" / "images" / f"{name}.png", SIZE, ord(name))
    picture(root / "training" / "instances" / f"{name}.png", classes * 256 + numbers, np.uint16)


def _vistas_config(root: Path, written: list[Any]) -> None:
    labels = [{"name": n, "instances": n == "car", "evaluate": True, "color": [1, 2, 3]} for n in ("road", "car")]
    write_json(root / "config.json", {"labels": labels})


def _folders(root: Path, name: str, classes: np.ndarray, numbers: np.ndarray) -> None:
    photo(root / "p" / f"{name}.png", SIZE, ord(name))
    picture(root / "l" / f"{name}.png", np.where(classes == 1, 7, 0))
    picture(root / "i" / f"{name}.png", numbers)


def _class_list(root: Path, written: list[Any]) -> None:
    (root / "c.ini").write_text(CLASS_LIST)


def _panoptic_in(photos: str, masks: str) -> Callable[[Path, str, np.ndarray, np.ndarray], Any]:
    def write(root: Path, name: str, classes: np.ndarray, numbers: np.ndarray) -> Any:
        ids = 1 + classes * 1000 + numbers
        photo(root / photos / f"{name}.png", SIZE, ord(name))
        panoptic_png(root / masks / f"{name}.png", ids)
        described = [{"id": int(i), "category_id": int(i) // 1000, "iscrowd": 0} for i in np.unique(ids)]
        image = {"id": name, "file_name": f"{name}.png", "height": SIZE[0], "width": SIZE[1]}
        return image, {"image_id": name, "file_name": f"{name}.png", "segments_info": described}

    return write


def _panoptic_json(path: str) -> Callable[[Path, list[Any]], None]:
    def finish(root: Path, written: list[Any]) -> None:
        categories = [{"id": k, "name": n, "isthing": k} for k, n in enumerate(("road", "car"))]
        images, annotations = zip(*written)
        write_json(root / path, {"categories": categories, "images": images, "annotations": annotations})

    return finish


def _instances(root: Path, name: str, classes: np.ndarray, numbers: np.ndarray) -> Any:
    photo(root / "p" / f"{name}.png", SIZE, ord(name))
    picture(root / "l" / f"{name}.png", np.where(classes == 1, 9, 0))
    image = {"id": name, "file_name": f"{name}.png", "height": SIZE[0], "width": SIZE[1]}
    found = []
    for number in (1, 2):
        flat = np.concatenate(([0], (numbers == number).ravel(order="F").astype(int), [0]))
        edges = np.flatnonzero(np.diff(flat))
        counts = np.diff(np.concatenate(([0], edges, [numbers.size]))).tolist()
        segmentation = {"counts": counts, "size": list(SIZE)}
        found.append({"id": f"{name}{number}", "image_id": name, "category_id": 7, "segmentation": segmentation})
    return image, found


def _instances_json(root: Path, written: list[Any]) -> None:
    images = [image for image, _ in written]
    annotations = [a for _, found in written for a in found]
    write_json(root / "i.json", {"images": images, "annotations": annotations, "categories": []})
    _class_list(root, written)


def _split(root: Path, *parts: str) -> dict[str, tuple[str, ...]]:
    return {"train": tuple(str(root / part) for part in parts)}


SOURCES = [
    Source(
        "cityscapes",
        _cityscapes,
        lambda root, written: None,
        lambda root, out, o: prepare_cityscapes(root, out, ["train"], o),
        ("",),
        "gtFine/train/x/a_gtFine_instanceIds.png",
        full(40),
    ),
    Source(
        "vistas",
        _vistas,
        _vistas_config,
        lambda root, out, o: prepare_vistas(root, out, options=o),
        ("",),
        "training/instances/a.png",
        full(2 * 256),
    ),
    Source(
        "coco",
        _panoptic_in("val2017", "annotations/panoptic_val2017"),
        _panoptic_json("annotations/panoptic_val2017.json"),
        lambda root, out, o: prepare_coco(root, out, options=o),
        ("annotations", ""),
        "annotations/panoptic_val2017/a.png",
        lambda path: panoptic_png(path, np.full(SIZE, 5000)),
    ),
    Source(
        "panoptic",
        _panoptic_in("p", "m"),
        _panoptic_json("j.json"),
        lambda root, out, o: prepare_panoptic(out, _split(root, "p", "j.json", "m"), o),  # type: ignore[arg-type]
        ("p", "m"),
        "m/a.png",
        lambda path: panoptic_png(path, np.full(SIZE, 5000)),
    ),
    Source(
        "folders",
        _folders,
        _class_list,
        lambda root, out, o: prepare_folders(out, _split(root, "p", "l", "i"), root / "c.ini", options=o),
        ("p", "l", "i"),
        "l/a.png",
        full(4, np.uint8),
    ),
    Source(
        "instances",
        _instances,
        _instances_json,
        lambda root, out, o: prepare_instances(out, _split(root, "p", "i.json", "l"), root / "c.ini", o),
        ("p", "l"),
        "l/a.png",
        full(4, np.uint8),
    ),
]
"""Every converter."""
