"""Readers take time in proportion to what they read: twice the input takes at most two and a half times as long."""

from __future__ import annotations

import base64
import gc
import io
import json
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image
from support.source_files import brush

from seamseg.maps.evaluation.coco_ap import instances_of_map
from seamseg.maps.evaluation.evaluate_files import evaluate_panoptic_json
from seamseg.maps.evaluation.matching import match_segments
from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats import label_studio
from seamseg.maps.formats.coco_panoptic import read_coco_panoptic
from seamseg.maps.formats.coco_writer import CocoPanopticWriter, encode_panoptic
from seamseg.maps.formats.cvat import parse_labelmap
from seamseg.maps.formats.id_png import check_png
from seamseg.maps.formats.label_png import look_up
from seamseg.maps.formats.metadata import ImageInfo, Metadata, pack_metadata, parse_metadata
from seamseg.maps.idmaps.histogram import joint_histogram
from seamseg.maps.panoptic_map import ClassInfo, PanopticResult, Segment, SegmentInfo
from seamseg.maps.prepare import annotation_tools, coco_instances, label_folders, panoptic
from seamseg.maps.prepare.archives import SourceTree
from seamseg.maps.prepare.cityscapes import find_frames
from seamseg.maps.prepare.class_file import parse_class_list
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.maps.prepare.merge import merged_classes, read_rules
from seamseg.maps.prepare.pairs import FilesByName
from seamseg.maps.prepare.writer import SourceFrame
from seamseg.predicting.find import find_sources
from seamseg.predicting.folder import OutputFolder, header
from seamseg.utils.errors import InputError, did_you_mean, harmless

CLASSES = Metadata(1, 2, ["road", "car", "person"], [(128, 64, 128), (0, 0, 142), (220, 20, 60)], [7, 26, 24])
LIST = json.dumps([{"id": 1, "name": "car"}, {"id": 2, "name": "person"}]).encode()
LISTED = parse_class_list(LIST, "classes.json")
ENOUGH, MOST = 0.03, 2.5
"""Seconds of a measurement, and ratio of two."""


def class_list(content: Callable[[int], object]) -> Callable[[int, Path], Callable[[], object]]:
    def prepare(n: int, folder: Path) -> Callable[[], object]:
        data = json.dumps(content(n)).encode()
        return lambda: parse_class_list(data, "classes.json")

    return prepare


def text(make: Callable[[int], object], read: Callable[..., object]) -> Callable[[int, Path], Callable[[], object]]:
    def prepare(n: int, folder: Path) -> Callable[[], object]:
        content = make(n)
        return lambda: read(content)

    return prepare


def photo_frame(folder: Path, content: object, size: int = 64, name: str = "labels.json") -> SourceFrame:
    photo, labels = folder / "photo.png", folder / name
    Image.new("RGB", (size, size)).save(photo)
    labels.write_text(content if isinstance(content, str) else json.dumps(content))
    return SourceFrame("photo", photo, labels, "photo.png")


def labelme(n: int, folder: Path) -> Callable[[], object]:
    """Objects of two masks of one pixel each on a large image."""
    file = io.BytesIO()
    Image.new("L", (1, 1), 255).save(file, "PNG")
    mask = base64.b64encode(file.getvalue()).decode()
    points = [(k // 200, k % 200) for k in range(2 * n)]
    shapes = [
        {"label": "car", "shape_type": "mask", "points": [[x, y], [x + 1, y + 1]], "mask": mask, "group_id": k // 2}
        for k, (x, y) in enumerate(points)
    ]
    frame = photo_frame(folder, {"shapes": shapes}, 1200)
    return lambda: list(label_folders._read_labelme(frame, (1200, 1200), LISTED))


def yolo(n: int, folder: Path) -> Callable[[], object]:
    frame = photo_frame(folder, "1 .1 .1 .2 .1 .2 .2\n" * n, name="labels.txt")
    return lambda: list(label_folders._read_yolo(frame, (64, 64), LISTED))


def polygons(make: Callable[[int], object]) -> Callable[[int, Path], Callable[[], object]]:
    def prepare(n: int, folder: Path) -> Callable[[], object]:
        shape = make(n)
        return lambda: coco_instances.decode_segmentation(shape, (512, 512), "a")

    return prepare


def star(n: int) -> list[float]:
    angle = np.arange(n) * (2 * np.pi / n)
    return np.stack((256 + 200 * np.cos(angle), 256 + 200 * np.sin(angle)), 1).ravel().tolist()


def coco_file(n: int, folder: Path) -> Callable[[], object]:
    """A COCO file of many images and annotations, whose photos are in folders of their own."""
    files = {f"{k}/rgb.png": Path(f"{k}/rgb.png") for k in range(n)}
    content = {
        "images": [{"id": k, "file_name": f"train/{k}/rgb.png"} for k in range(n)],
        "annotations": [{"id": k, "image_id": k, "category_id": 1, "segmentation": []} for k in range(n)],
    }

    def read() -> None:
        images = coco_instances._objects_of(content, "a.json", LISTED, ConversionOptions().begin())
        photos = FilesByName(files, (name for name, _ in images))
        assert all(photos.find(name) for name, _ in images)

    return read


def panoptic_file(n: int, folder: Path) -> Callable[[], object]:
    """An id map with many segments, and its JSON."""
    side = int((4 * n) ** 0.5) + 1
    ids = np.minimum(np.arange(side * side).reshape(side, side), n)
    rgb = np.stack([ids >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8)
    frame = photo_frame(folder, "", side)
    Image.fromarray(rgb).save(folder / "map.png")
    info = [(k, 1, 0) for k in range(1, n + 1)], (side, side)
    frame = SourceFrame("photo", frame.image, folder / "map.png", "photo.png", info=info)
    return lambda: panoptic.read_instances(frame, LISTED, 255)


def scattered(n: int, folder: Path) -> Callable[[], object]:
    """Objects all over an image: their boxes are nearly the whole."""
    ids = (np.arange(400 * 400) % (n + 1)).astype(np.int32).reshape(400, 400)
    return lambda: instances_of_map(ids, [255, *[1] * n], [0] * (n + 1), 1, 3)


def exported_tasks(n: int, folder: Path) -> Callable[[], object]:
    ids = (np.arange(600 * 600) % (600 * 600 // 4)).clip(max=n + 1).reshape(600, 600) % (n + 1)
    segments = [Segment(k, 1, True, 0.5, 4, (0, 0, 1, 1)) for k in range(1, n + 1)]
    return lambda: label_studio.task(PanopticResult(ids.astype(np.int32), segments), CLASSES, "a.png")


def brushes(n: int, folder: Path) -> Callable[[], object]:
    """A region of many runs."""
    mask = (np.arange(64 * n) % 3 == 0).reshape(64, n)
    data = bytes(brush(mask))
    return lambda: label_studio.decode_brush(data, (64, n))


def tasks(n: int, folder: Path) -> Callable[[], object]:
    photos, file = folder / "photos", folder / "tasks.json"
    photos.mkdir(exist_ok=True)
    for k in range(3):
        (photos / f"{k}.png").touch()
    region = {"value": {"points": [[0, 0], [1, 0], [1, 1]], "polygonlabels": ["car"]}}
    file.write_text(
        json.dumps([{"data": {"image": f"{k % 3}.png"}, "annotations": [{"result": [region]}]} for k in range(n)])
    )
    given = str(photos), str(file)
    return lambda: annotation_tools._label_studio_frames(
        given, {"tasks.json": file}, LISTED, ConversionOptions().begin()
    )


def addresses(n: int, folder: Path) -> Callable[[], object]:
    photos = FilesByName({"a": Path("a.png")})
    with_folders = {"image": "http://host/" + "upload/" * n + "1" * n}
    return lambda: refused(lambda: annotation_tools._image_of(with_folders, photos, "task", "photos"))


def cities(n: int, folder: Path) -> Callable[[], object]:
    for k in range(n):
        for part, end in (("leftImg8bit", "leftImg8bit"), ("gtFine", "gtFine_instanceIds")):
            (folder / part / "train" / f"c{k}").mkdir(parents=True, exist_ok=True)
            (folder / part / "train" / f"c{k}" / f"c{k}_{end}.png").touch()
    tree = SourceTree(folder)
    return lambda: find_frames(tree, "train", ConversionOptions().begin())


def upper_case(n: int, folder: Path) -> Callable[[], object]:
    (folder / "img").mkdir(exist_ok=True)
    for k in range(n):
        (folder / "img" / f"{k}.JPG").touch()
    data = object.__new__(DatasetFolder)
    data.root = folder
    return lambda: [data.image_path(str(k)) for k in range(n)]


def panoptic_json(n: int, folder: Path) -> Callable[[], object]:
    segments = [{"id": k, "category_id": 1, "area": 4} for k in range(3)]
    annotations = [{"image_id": k, "file_name": f"{k}.png", "segments_info": segments} for k in range(n)]
    images = [{"id": k, "file_name": f"{k}.jpg"} for k in range(n)]
    categories = [{"id": k, "name": f"c{k}", "isthing": 1} for k in range(n)]
    content = {"annotations": annotations, "images": images, "categories": categories}
    (folder / "a.json").write_text(json.dumps(content))
    (folder / "a").mkdir(exist_ok=True)
    return lambda: read_coco_panoptic(folder / "a.json")


def categories(n: int, folder: Path) -> Callable[[], object]:
    """As many categories as images, of which all show one map."""
    (folder / "a").mkdir(exist_ok=True)
    Image.new("RGB", (8, 8), (1, 0, 0)).save(folder / "a" / "map.png")
    segments = [{"id": 1, "category_id": 0}]
    content = {
        "annotations": [{"image_id": k, "file_name": "map.png", "segments_info": segments} for k in range(n)],
        "categories": [{"id": k, "name": f"c{k}", "isthing": 1} for k in range(n)],
    }
    (folder / "a.json").write_text(json.dumps(content))

    def read() -> None:
        with suppress(InputError):
            evaluate_panoptic_json(folder / "a.json", folder / "a.json")

    return read


def matching(n: int, folder: Path) -> Callable[[], object]:
    ids = np.arange(4 * n).reshape(2, -1) // 4 + 1
    segments = [SegmentInfo(k, k % 3) for k in range(1, n + 1)]
    pairs, counts = joint_histogram(ids, ids)
    return lambda: match_segments(pairs, counts, segments, segments)


def colours(n: int, folder: Path) -> Callable[[], object]:
    segments = [Segment(k, 1, True, 0.5, 4, (0, 0, 1, 1)) for k in range(1, n + 1)]
    classes = [ClassInfo("road", 7, False), ClassInfo("car", 26, True)]
    return lambda: encode_panoptic("a", segments, classes, CLASSES.palette)


def duplicate_images(n: int, folder: Path) -> Callable[[], object]:
    writer = CocoPanopticWriter(folder / "a.json", CLASSES)
    entries = [{"image": {"id": k}, "annotation": {}} for k in (*range(n), n - 1)]
    return lambda: refused(lambda: writer.write_json(entries))


def png(width: int, chunk: int) -> Callable[[int, Path], Callable[[], object]]:
    """A PNG of many chunks, or of much content, with more data after its end."""

    def prepare(n: int, folder: Path) -> Callable[[], object]:
        raw = np.random.default_rng(0).integers(0, 256, (n, width + 1), np.uint8)
        raw[:, 0] = 0
        stream = zlib.compress(raw.tobytes(), 0) + bytes(len(raw.tobytes()))
        parts = [(b"IHDR", struct.pack(">IIBBBBB", width, n, 8, 0, 0, 0, 0))]
        parts += [(b"IDAT", stream[k : k + chunk]) for k in range(0, len(stream), chunk)] + [(b"IEND", b"")]
        packed = [struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in parts]
        data = b"\x89PNG\r\n\x1a\n" + b"".join(packed)
        return lambda: check_png(data, complete=False)

    return prepare


def metadata(n: int, folder: Path) -> Callable[[], object]:
    images = [ImageInfo(f"{k}", [255, 0, 1], (4, 4), [0, 0, 0]) for k in range(n)]
    data = pack_metadata(Metadata(**{**vars(CLASSES), "images": images}))
    return lambda: parse_metadata(data)


def manifest(n: int, folder: Path) -> Callable[[], object]:
    head = header("model", "0", {})
    line = {"relative": "a.png", "stamp": "0", "status": "ok", "outputs": [], "records": []}
    lines = [head, *({**line, "name": str(k)} for k in range(n))]
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lambda: OutputFolder(folder, [], head).begin([])


def frames_of_one_name(folders: Callable[[int], tuple[str, str]]) -> Callable[[int, Path], Callable[[], object]]:
    def prepare(n: int, folder: Path) -> Callable[[], object]:
        names = [folders(k) for k in range(n)]
        files = {f"{own}/rgb": Path(f"{own}/rgb.png") for own, _ in names}

        def read() -> None:
            photos = FilesByName(files)
            for _, wanted in names:
                photos.path_of(f"{wanted}/rgb")

        return read

    return prepare


def tar(make: Callable[[int], list[tarfile.TarInfo]]) -> Callable[[int, Path], Callable[[], object]]:
    def prepare(n: int, folder: Path) -> Callable[[], object]:
        with tarfile.open(folder / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            for info in make(n):
                archive.addfile(info)
        return lambda: refused(lambda: SourceTree(folder / "a.tar"))

    return prepare


def global_headers(n: int, folder: Path) -> Callable[[], object]:
    """An archive of many headers for all files, and of files with headers of their own."""
    with tarfile.open(folder / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for k in range(n):
            records = b"".join(b"15 %05d-%03d=a\n" % (k, key) for key in range(1000))
            archive.addfile(_member("all", len(records), tarfile.XGLTYPE), io.BytesIO(records))
        for k in range(20 * n):
            archive.addfile(_member(f"{k}.png", comment="a"))
    return lambda: refused(lambda: SourceTree(folder / "a.tar"))


def refused(read: Callable[[], object]) -> None:
    with suppress(InputError):
        read()


def _member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, **headers: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.pax_headers = size, kind, headers
    return info


def zip_file(n: int, folder: Path) -> Callable[[], object]:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for k in range(n):
            archive.writestr(f"{k}/a.png", b"")
    return lambda: SourceTree(folder / "a.zip")


def image_list(name: Callable[[int], str]) -> Callable[[int, Path], Callable[[], object]]:
    def prepare(n: int, folder: Path) -> Callable[[], object]:
        (folder / "list.txt").write_text("".join(f"{name(k)}\n" for k in range(n)))
        return lambda: find_sources(folder / "list.txt")

    return prepare


def _cases(k: int) -> str:
    return (
        "".join(letter.upper() if k >> bit & 1 else letter for bit, letter in enumerate("abcdefghijklmnopqrst"))
        + ".jpg"
    )


def rules(n: int, folder: Path) -> Callable[[], object]:
    (folder / "rules.json").write_text(json.dumps({f"class {k}": "car" for k in range(n)}))
    data = object.__new__(DatasetFolder)
    data.root, data.metadata = folder, CLASSES
    return lambda: merged_classes([data], read_rules(folder / "rules.json"))


class Case(NamedTuple):
    make: Callable[[int, Path], Callable[[], object]]
    """Returns the function to measure for an input of size n."""
    start: int
    most: int
    """Largest size: what the limit of the file allows."""


MIB = 1 << 20
FAST = {
    "labelmap": Case(
        text(
            lambda n: "".join(f"c{k}:{k & 255},{k >> 8 & 255},{k >> 16}::\n" for k in range(n)),
            lambda lines: parse_labelmap(lines, "a"),
        ),
        1 << 13,
        1 << 16,
    ),
    "files of one name": Case(frames_of_one_name(lambda k: (f"{k}", f"train/{k}")), 1 << 10, 1 << 20),
}
SLOW = {
    "addresses of tasks": Case(addresses, 1 << 8, 1 << 20),
    "colours of segments": Case(colours, 1 << 9, 1 << 17),
    "similar names": Case(text(lambda n: "ab" * n, lambda name: did_you_mean(name, ["ba" * len(name)])), 1 << 8, MIB),
    "class list: void values": Case(
        class_list(lambda n: {"categories": [{"id": 0, "name": "a"}], "void": list(range(1, n))}), 1 << 10, 1 << 17
    ),
    "class list: void names": Case(
        class_list(lambda n: {"categories": [{"id": 0, "name": "a"}], "void": [f"{k}" for k in range(n)]}),
        1 << 10,
        1 << 16,
    ),
    "class list: data of YOLO": Case(
        text(lambda n: b"train: [" + b"a, " * n + b"a]\nnames: [a]", lambda data: parse_class_list(data, "data.yaml")),
        1 << 8,
        1 << 14,
    ),
    "masks of labelme": Case(labelme, 1 << 6, 1 << 14),
    "lines of YOLO": Case(yolo, 1 << 8, 1 << 20),
    "corners of a polygon": Case(polygons(lambda n: [star(n)]), 1 << 12, 1 << 22),
    "polygons of an object": Case(
        polygons(lambda n: [[k % 500, k // 500 % 500, k % 500 + 9, 9, 9, k % 300] for k in range(n)]), 1 << 6, 1 << 12
    ),
    "runs of an RLE": Case(polygons(lambda n: {"size": [512, 512], "counts": [1, 0] * n}), 1 << 12, 1 << 17),
    "compressed RLE": Case(polygons(lambda n: {"size": [512, 512], "counts": "11" + "0" * n}), 1 << 12, 1 << 17),
    "COCO file": Case(coco_file, 1 << 8, 1 << 20),
    "panoptic map": Case(panoptic_file, 1 << 10, 60_000),
    "scattered objects": Case(scattered, 1 << 8, 1 << 14),
    "tasks for Label Studio": Case(exported_tasks, 1 << 6, 1 << 13),
    "runs of a brush": Case(brushes, 1 << 8, 1 << 16),
    "tasks of Label Studio": Case(tasks, 1 << 8, 1 << 18),
    "cities": Case(cities, 1 << 6, 1 << 11),
    "endings in upper case": Case(upper_case, 1 << 7, 1 << 12),
    "panoptic JSON": Case(panoptic_json, 1 << 9, 1 << 17),
    "categories": Case(categories, 1 << 5, 1 << 14),
    "matches of segments": Case(matching, 1 << 9, 1 << 17),
    "duplicate images": Case(duplicate_images, 1 << 10, 1 << 18),
    "PNG of much content": Case(png(4096, 1 << 30), 1 << 10, 1 << 15),
    "PNG of many chunks": Case(png(63, 16), 1 << 8, 1 << 15),
    "metadata.bin": Case(metadata, 1 << 8, 1 << 18),
    "manifest": Case(manifest, 1 << 9, 1 << 17),
    "ids of a report": Case(
        text(lambda n: (np.arange(n).reshape(1, -1), [(k, 1) for k in range(n)]), lambda a: look_up(*a, np.int32)),
        1 << 14,
        1 << 21,
    ),
    "files of one name in other folders": Case(
        frames_of_one_name(lambda k: (f"a/{k}/b", f"b/x{k}/a")), 1 << 8, 1 << 20
    ),
    "files of one name without a folder": Case(frames_of_one_name(lambda k: (f"{k}", "")), 1 << 8, 1 << 20),
    "tar: files": Case(tar(lambda n: [_member(f"{k}.png") for k in range(n)]), 1 << 8, 1 << 16),
    "tar: headers of files": Case(tar(lambda n: [_member(f"{k}.png", comment="a") for k in range(n)]), 1 << 8, 1 << 16),
    "tar: a long header": Case(tar(lambda n: [_member("a.png", comment="1" * 60_000) for k in range(n)]), 4, 1 << 8),
    "tar: headers for all files": Case(global_headers, 1 << 2, 1 << 11),
    "zip": Case(zip_file, 1 << 9, 1 << 16),
    "list of images": Case(image_list(lambda k: f"{k}/a.jpg"), 1 << 8, 1 << 18),
    "list of images: cases": Case(image_list(_cases), 1 << 8, 1 << 18),
    "class mapping": Case(rules, 1 << 10, 1 << 15),
    "many similar names": Case(
        text(lambda n: [f"c{k}" for k in range(n)], lambda known: did_you_mean("class", known)), 1 << 8, 1 << 18
    ),
    "words of a message": Case(text(lambda n: "a" * 299 + " " + "b\0" * n, harmless), 1 << 10, MIB),
}


def seconds(case: Case, n: int, folder: Path) -> float:
    """CPU time of a reader, the least of three, for an input of size n."""
    folder.mkdir(exist_ok=True)
    read = case.make(n, folder)
    found = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            start = time.process_time()
            read()
            found.append(time.process_time() - start)
    finally:
        gc.enable()
    return min(found)


def check(case: Case, folder: Path) -> None:
    """Double an input until it takes long enough, then once more; noise may spoil two of three."""
    n, once = case.start, seconds(case, case.start, folder / str(case.start))
    ratios: list[float] = []
    while 2 * n <= case.most and len(ratios) < 3:
        twice = seconds(case, 2 * n, folder / str(2 * n))
        if once >= ENOUGH:
            if twice <= MOST * once:
                return
            ratios.append(twice / once)
        n, once = 2 * n, twice
    assert not ratios, f"{n} take {once:.2f} s, and twice as many take more: {ratios}"


@pytest.mark.parametrize("name", FAST)
def test_linear_time(tmp_path, name):
    check(FAST[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_linear_time_of_more(tmp_path, name):
    check(SLOW[name], tmp_path)
