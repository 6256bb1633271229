"""Targets of the fuzzer: readers of untrusted files, and what each must do with any bytes.

A reader returns or raises a SeamsegError, within `MEMORY_BYTES`. Where there are two
implementations, they agree. Inputs are the files themselves, or files without what a random change would break and
hide all else: the checksums and compression of PNGs.
"""

import io
import json
import os
import re
import resource
import shutil
import struct
import sys
import tarfile
import zipfile
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
from PIL import Image

from seamseg.checkpoints.bundle import open_model
from seamseg.checkpoints.snapshot import load_snapshot, load_tensors
from seamseg.config.loader import check_training, config_from_string, config_to_string, load_config
from seamseg.maps.evaluation.evaluate_files import evaluate_panoptic_json
from seamseg.maps.evaluation.record import MapFiles
from seamseg.maps.formats import id_png
from seamseg.maps.formats.cityscapes.instance_files import read_instance_list
from seamseg.maps.formats.id_png import read_id_runs
from seamseg.maps.formats.metadata import pack_metadata, parse_metadata
from seamseg.maps.images import image_size, open_image, open_mask
from seamseg.maps.prepare import coco_instances, panoptic
from seamseg.maps.prepare.annotation_tools import prepare_cvat, prepare_label_studio
from seamseg.maps.prepare.check import check_dataset
from seamseg.maps.prepare.cityscapes import prepare_cityscapes
from seamseg.maps.prepare.class_file import build_class_list, coco_categories, parse_class_list
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.maps.prepare.label_folders import prepare_folders
from seamseg.maps.prepare.pairs import tree_files
from seamseg.utils.errors import SeamsegError
from seamseg.utils.limits import LimitedTarInfo, open_pillow

MEMORY_BYTES = 1 << 30
SIZE = (6, 8)
"""Height and width of all images and maps of `write_files`."""
MOST_PIXELS = 1 << 20


class Violation(AssertionError):
    """A reader did what it must not do."""


def attempt(name, data, folder):
    """Give an input to a target, in a folder of :func:`write_files`; other files in it are replaced.

    Raises Violation, or any other exception, if the reader raises another error than a SeamsegError, or needs too much.
    """
    memory = _peak()
    with refusing():
        TARGETS[name](data, folder)
    memory = _peak() - memory
    if memory > MEMORY_BYTES:
        raise Violation(f"took {memory >> 20} MiB")


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (0 if sys.platform == "darwin" else 10)


@contextmanager
def refusing():
    try:
        yield
    except SeamsegError as error:
        if not str(error).strip():
            raise Violation("an error without a message") from error


def write_files(folder):
    """Write the files that inputs refer to: `1.png`, `2.png` with ids 0 to 3 in three folders, and their JSON."""
    ids = np.zeros(SIZE, np.uint32)
    ids[:3, 1:], ids[3:, 4:], ids[4, :3] = 1, 2, 3
    entries = [{"id": k, "category_id": k % 2, "iscrowd": int(k == 3), "area": 1} for k in (1, 2, 3)]
    content = {"images": [], "annotations": []}
    for name in ("1", "2"):
        id_png.write_id_png(folder / "maps" / f"{name}.png", ids)
        id_png.write_id_png(folder / "photos" / f"{name}.png", ids)
        id_png.write_id_png(folder / "pred" / f"{name}.png", ids)
        content["images"].append({"id": int(name), "file_name": f"{name}.png", "height": SIZE[0], "width": SIZE[1]})
        content["annotations"].append({"image_id": int(name), "file_name": f"{name}.png", "segments_info": entries})
    content["categories"] = [{"id": k, "name": "ab"[k], "isthing": k, "color": [k, k, k]} for k in (0, 1)]
    (folder / "good.json").write_text(json.dumps(content))
    (folder / "classes.json").write_text(json.dumps(content["categories"]))


def _written(path, data):
    path.unlink(missing_ok=True)  # the old content may be mapped into memory
    path.write_bytes(data)
    return path


def metadata(data, folder):
    found = parse_metadata(data)
    if parse_metadata(pack_metadata(found)) != found:
        raise Violation("what was read is not what is written")


def snapshot(data, folder):
    path = _written(folder / "a.pth.tar", data)
    for read in (load_snapshot, lambda path: load_tensors(path, str(path), mmap=True)):
        with refusing():
            read(path)


def png(data, folder):
    """A PNG without checksums, see :func:`packed_png`: as a map that is scored, a mask and an image.

    The compiled reader and Pillow agree.
    """
    file = packed_png(data)
    # up to the documented limit of an image, the memory grows with the size that it states
    sizes = [struct.unpack(">II", size) for size in re.findall(rb"IHDR(.{8})", file, re.DOTALL)]
    if any(width * height > MOST_PIXELS for width, height in sizes):
        return
    path = _written(folder / "pred" / "1.png", file)
    found = []
    for kernel in (True, False):
        found.append(None)
        with refusing(), patch.object(id_png, "has_kernel", lambda kernel=kernel: kernel):
            found[-1] = read_id_runs(path).dense()
    first, second = found
    # one may read what the other refuses: Pillow data after the last row, the compiled reader a damaged text
    if first is not None and second is not None and not np.array_equal(first, second):
        raise Violation("the compiled reader and Pillow differ")
    for read in (open_mask, open_image, panoptic.read_ids):
        with refusing():
            read(path)
    if first is not None or second is not None:
        good = MapFiles(folder / "good.json", folder / "maps")
        evaluate_panoptic_json(good, MapFiles(good.json, path.parent))


def image(data, folder):
    with suppress(Exception), open_pillow(io.BytesIO(data)) as opened:
        if opened.width * opened.height > MOST_PIXELS:
            return
    path = _written(folder / "a.png", data)
    for read in (read_id_runs, open_mask, open_image, image_size):
        with refusing():
            read(path)


_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def packed_png(data):
    """Make a PNG: kind (4 bytes), length (2) and content of each chunk, the pixels as filtered rows.

    Bits of the first byte: 1 the pixels are compressed already, 2 they end a byte early, 4 in two chunks, 8 the last
    checksum is wrong, 16 without the end.
    """
    flags, at, parts = data[0] if data else 0, 1, [_SIGNATURE]
    while at + 6 <= len(data):
        kind, length = struct.unpack_from(">4sH", data, at)
        content, at = data[at + 6 : at + 6 + length], at + 6 + length
        if kind == b"IDAT" and not flags & 1:
            content = zlib.compress(content, 1)
        if kind == b"IDAT" and flags & 2:
            content = content[:-1]
        half = len(content) // 2 if kind == b"IDAT" and flags & 4 else len(content)
        for part in (content[:half], content[half:]):
            if part or half == 0:
                parts.append(struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part)))
    if not flags & 16:
        parts.append(b"\0\0\0\0IEND\xaeB\x60\x82")
    file = b"".join(parts)
    return file[:-1] + b"\0" if flags & 8 else file


def config(data, folder):
    for name in ("classes.ini", "classes.json"):
        with refusing():
            parse_class_list(data, name)
    found = load_config(_written(folder / "a.ini", data))
    text = config_to_string(found)
    if config_to_string(config_from_string(text)) != text:
        raise Violation("a configuration changes when it is written and read")
    check_training(found, "a.ini")


def coco_panoptic(data, folder):
    """A COCO panoptic JSON: scored, as either side, and converted."""
    path = _written(folder / "given.json", data)
    given, good = (MapFiles(json_path, folder / "maps") for json_path in (path, folder / "good.json"))
    for pair in ((given, good), (good, given), (given, given)):
        with refusing():
            evaluate_panoptic_json(*pair)
    photos, masks = (tree_files(folder / name, name) for name in ("photos", "maps"))
    source = panoptic.PanopticSource(photos, masks, panoptic.load_json(path), str(path))
    listed = build_class_list(coco_categories(source.content.get("categories"), source.name), [], source.name)
    for frame in panoptic.find_frames(source, _QUIET)[:4]:
        with refusing():
            panoptic.read_instances(frame, listed, 255)


_QUIET = ConversionOptions(workers=1, log=lambda text: None)


def coco_objects(data, folder):
    path = _written(folder / "given.json", data)
    content = panoptic.load_json(path)
    listed = build_class_list(coco_categories(content.get("categories"), str(path)), [], str(path))
    for frame in coco_instances.find_frames((str(folder / "photos"), str(path)), content, listed, _QUIET)[:4]:
        with refusing():
            coco_instances.read_instances(frame, listed)


def tar(data, folder):
    path = _written(folder / "a.tar", data)
    with suppress(OSError, ValueError, tarfile.TarError), tarfile.open(path, tarinfo=LimitedTarInfo) as file:
        list(file)


def archive(data, folder):
    path = _written(folder / "a.zip", data)
    with refusing():
        for member in list(tree_files(path, "images").values())[:50]:
            with refusing():
                member.read_bytes()
    open_model(path)


def safetensors(data, folder):
    load_tensors(_written(folder / "a.safetensors", data), "a.safetensors")


def cityscapes(data, folder):
    """Raw Cityscapes in a zip file: lines of paths, a zero byte, and the pixels of all annotations."""
    listed, _, values = data.partition(b"\0")
    paths = list(dict.fromkeys(filter(None, listed.decode(errors="replace").splitlines())))[:20]
    pixels = np.frombuffer(values[: 2 * SIZE[0] * SIZE[1]].ljust(2 * SIZE[0] * SIZE[1], b"\0"), "<u2").reshape(SIZE)
    annotation = io.BytesIO()
    Image.fromarray(pixels).save(annotation, "PNG", compress_level=1)
    photo = (folder / "photos" / "1.png").read_bytes()
    with zipfile.ZipFile(path := folder / "a.zip", "w") as file:
        for name in paths:
            file.writestr(name, annotation.getvalue() if "instanceIds" in name else photo)
    _convert(folder, lambda out: prepare_cityscapes(path, out, options=_QUIET))


def instance_list(data, folder):
    """The text file of a frame of instance results of Cityscapes: its masks are inside of the folder of results."""
    root = folder / "pred"
    for found in read_instance_list(_written(root / "a.txt", data), root):
        if root not in (found.mask, *found.mask.parents):
            raise Violation(f"the mask {found.mask} is outside of the folder")


def cvat(data, folder):
    """An export of CVAT: labelmap, list, and the pixels of both images, with a zero byte between them."""
    labelmap, listed, pixels = (*data.split(b"\0", 2), b"", b"")[:3]
    export = folder / "export"
    for path, content in (("labelmap.txt", labelmap), ("ImageSets/Segmentation/a.txt", listed)):
        (export / path).parent.mkdir(parents=True, exist_ok=True)
        _written(export / path, content)
    count = 3 * SIZE[0] * SIZE[1]
    for kind, values in (("Class", pixels[:count]), ("Object", pixels[count : 2 * count])):
        (export / f"Segmentation{kind}").mkdir(exist_ok=True)
        colours = np.frombuffer(values.ljust(count, b"\0"), np.uint8).reshape(*SIZE, 3)
        Image.fromarray(colours).save(export / f"Segmentation{kind}" / "1.png", "PNG", compress_level=1)
    given = {"a": (str(folder / "photos"), str(export))}
    _convert(folder, lambda out: prepare_cvat(out, given, folder / "classes.json", _QUIET))


def label_studio(data, folder):
    given = {"a": (str(folder / "photos"), str(_written(folder / "tasks.json", data)))}
    _convert(folder, lambda out: prepare_label_studio(out, given, folder / "classes.json", _QUIET))


def labelme(data, folder, extension=".json"):
    labels = folder / extension[1:]
    labels.mkdir(exist_ok=True)
    _written(labels / f"1{extension}", data)
    given = {"a": (str(folder / "photos"), str(labels))}
    _convert(folder, lambda out: prepare_folders(out, given, folder / "classes.json", options=_QUIET))


def yolo(data, folder):
    labelme(data, folder, ".txt")


def _convert(folder, prepare):
    """Convert to a data set, which must have no errors, and nothing that seems complete if the source is refused."""
    out = folder / "inside" / "out"
    shutil.rmtree(out.parent, ignore_errors=True)
    out.parent.mkdir()
    before = set(os.listdir(folder))
    try:
        prepare(out)
    except SeamsegError:
        if (out / "metadata.bin").exists():
            raise Violation("a refused source leaves a data set that seems complete") from None
        raise
    finally:
        others = set(os.listdir(folder)) - before | set(os.listdir(out.parent)) - {"out"}
        if others:
            raise Violation(f"writes {others}")
    if errors := check_dataset(out, workers=1).errors:
        raise Violation(f"the data set has errors: {errors[0]}")


TARGETS = {
    target.__name__: target
    for target in (
        metadata, snapshot, png, image, config, coco_panoptic, coco_objects, tar, archive, safetensors,
        cityscapes, instance_list, cvat, label_studio, labelme, yolo,
    )
}  # fmt: skip
CORPUS = Path(__file__).parent / "corpus"


def corpus(name):
    with zipfile.ZipFile(CORPUS / f"{name}.zip") as file:
        return {entry: file.read(entry) for entry in file.namelist()}
