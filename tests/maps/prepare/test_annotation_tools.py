"""Results of a panoptic network in the layouts of CVAT and Label Studio, read back by `prepare`; and their exports."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from support.source_files import brush, segment_masks

from seamseg.maps.folder import DatasetFolder
from seamseg.maps.formats.cvat import encode_masks, label_colors, labelmap_text, parse_labelmap
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.panoptic_map import PanopticResult, Segment
from seamseg.maps.prepare.account import SplitAccount
from seamseg.maps.prepare.annotation_tools import prepare_cvat, prepare_label_studio
from seamseg.maps.prepare.convert import ConversionOptions
from seamseg.predicting.folder import make_writers
from seamseg.predicting.source import Source
from seamseg.results import Panoptic
from seamseg.utils.errors import InputError

ONE = ConversionOptions(workers=1)
# the last colour is that of another class, that of the third is black
CLASSES = Metadata(
    2, 3, ["sky", "road & co", "car", "person", "bus"], [(70, 130, 180), (9, 9, 9), (0, 0, 0), (128, 0, 0), (9, 9, 9)],
    [23, 7, 26, 24, 28],
)  # fmt: skip
CLASS_LIST = "[sky]\nid = 0\nkind = stuff\n[car]\nid = 1\nkind = thing\n"


def scene(seed, size=(40, 56)):
    rng = np.random.default_rng(seed)
    ids = np.ones(size, np.int32)
    ids[size[0] // 2 :] = 7
    classes = {1: 0, 7: 1}
    for identity in range(10, 22):
        y, x = rng.integers(0, size[0] - 9), rng.integers(0, size[1] - 9)
        ids[y : y + 9, x : x + 9] = identity
        classes[identity] = 2 + identity % 3
    ids[-6:, -6:], classes[30] = 30, 3
    ids[:3, :5] = 0
    segments = [
        Segment(i, c, c > 1, 0.5 if c > 1 else None, int((ids == i).sum()), (0, 0, 1, 1), i == 30)
        for i, c in classes.items()
        if (ids == i).any()
    ]
    return Panoptic.of_map(PanopticResult(ids, segments), CLASSES)


@pytest.fixture
def written(tmp_path):
    results = {}
    writers = make_writers(["cvat", "labelstudio"], tmp_path, CLASSES)
    records = []
    for seed, name in enumerate(("a", "sub/a")):
        source = Source(tmp_path / "photos" / f"{name}.jpg", name, f"{name}.jpg")
        result = results[name.replace("/", "_")] = scene(seed)
        source.path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", result.size[::-1]).save(source.path)
        records.append([writer.write(source, None, None, result) for writer in writers])
        assert all(path.is_file() for writer in writers for path in writer.paths(source))
    for k, writer in enumerate(writers):
        writer.finish(lambda k=k: (record[k] for record in records))
        assert all(path.is_file() for path in writer.finals())
    return tmp_path, results


@pytest.mark.parametrize("tool", ["cvat", "labelstudio"])
@pytest.mark.parametrize("packed", [False, True])
def test_results_are_read_back_equal(written, tmp_path, tool, packed, seamseg_main, capsys):
    root, results = written
    export = shutil.make_archive(tmp_path / "export", "zip", root / tool) if packed else root / tool
    words = ("--split", "val", root / "photos", export, "--quiet", "--workers", "1")
    assert seamseg_main("prepare", tool, tmp_path / "data", *words) == 0
    assert "2 images in val; 2 stuff and 3 thing classes" in capsys.readouterr().out
    assert replace(DatasetFolder(tmp_path / "data").metadata, images=[]) == CLASSES
    # tasks of Label Studio hold objects only
    kept = {name: [s for s in result.segments if tool == "cvat" or not s.iscrowd] for name, result in results.items()}
    assert segment_masks(tmp_path / "data") == {
        name: {(s.name, int(s.iscrowd), results[name].mask(s).tobytes()) for s in segments}
        for name, segments in kept.items()
    }


def test_the_files_of_cvat(written):
    root, results = written
    assert (root / "cvat" / "ImageSets" / "Segmentation" / "default.txt").read_text() == "a\nsub/a\n"
    colors = parse_labelmap((root / "cvat" / "labelmap.txt").read_text(), "labelmap.txt")
    assert list(colors) == ["background", *CLASSES.categories]
    assert [colors[name] for name in ("background", "sky", "person")] == [(0, 0, 0), (70, 130, 180), (128, 0, 0)]
    objects = np.asarray(Image.open(root / "cvat" / "SegmentationObject" / "a.png"))
    result = results["a"]
    first = [s for s in result.segments if not s.iscrowd][:3]
    # the palette of Pascal VOC
    voc = [[128, 0, 0], [0, 128, 0], [128, 128, 0]]
    assert [objects[result.mask(s)][0].tolist() for s in first] == voc


def test_classes_and_images_that_cvat_cannot_hold():
    with pytest.raises(InputError, match="the class 'a:b' cannot be a label"):
        label_colors(Metadata(1, 0, ["a:b"], [(1, 2, 3)], [0]))
    ids = np.arange(1, 257, dtype=np.int32)[None]
    segments = [Segment(int(k), 0, True, 1.0, 1, (0, 0, 1, 1)) for k in ids[0]]
    with pytest.raises(InputError, match="image x: 256 segments, more than the 255 objects"):
        encode_masks(ids, segments, [(1, 2, 3)], "x")


def cvat_export(root, labels, objects=None, labelmap="background:0,0,0::\nsky:1,2,3::\ncar:0,0,9::\n"):
    for folder, pixels in (("SegmentationClass", labels), ("SegmentationObject", objects)):
        if pixels is not None:
            (root / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(pixels, np.uint8)).save(root / folder / "a.png")
    (root / "ImageSets" / "Segmentation").mkdir(parents=True, exist_ok=True)
    (root / "ImageSets" / "Segmentation" / "default.txt").write_text("a\n")
    (root / "labelmap.txt").write_text(labelmap)
    (root / "JPEGImages").mkdir(exist_ok=True)
    Image.new("RGB", (3, 1)).save(root / "JPEGImages" / "a.jpg")
    (root.parent / "classes.ini").write_text(CLASS_LIST)
    return root


def read_export(root):
    listed = root.parent / "classes.ini"
    prepare_cvat(root.parent / "out", {"train": (str(root), str(root))}, listed if listed.exists() else None, ONE)
    return segment_masks(root.parent / "out")["a"]


def test_one_channel_holds_the_number_of_the_label_and_objects_are_optional(tmp_path):
    found = read_export(cvat_export(tmp_path / "export", [[0, 1, 2]]))
    assert {(name, crowd) for name, crowd, _ in found} == {("sky", 0), ("car", 1)}
    found = read_export(cvat_export(tmp_path / "b" / "export", [[0, 2, 2]], [[0, 1, 2]]))
    assert [(name, crowd) for name, crowd, _ in found] == [("car", 0)] * 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"labels": [[0, 1, 3]]}, "value 3 is not in labelmap.txt"),
        ({"labels": [[[1, 2, 3]] * 2 + [[5, 6, 7]]]}, "colour 5,6,7 is not in labelmap.txt"),
        ({"labelmap": "sky:1,2::\n"}, "line 1: expected label:red,green,blue::"),
        ({"labelmap": "sky:1,2,3::\ntram:0,0,9::\n"}, "the label 'tram' is not in the class list; it has sky, car"),
        ({"remove": "SegmentationClass/a.png"}, "0 images found that have an annotation in SegmentationClass"),
        ({"remove": "labelmap.txt"}, "it has no labelmap.txt"),
        ({"remove": "../classes.ini"}, r"has no classes.json: pass a class list with the names of its labels"),
        ({"remove": "ImageSets/Segmentation/default.txt"}, "has no list, none for train"),
    ],
)
def test_broken_exports_of_cvat(tmp_path, change, reason):
    gone = change.get("remove")
    root = cvat_export(tmp_path / "export", **({"labels": [[0, 1, 2]]} | ({} if gone else change)))
    if gone:
        (root / gone).unlink()
    with pytest.raises(InputError, match=reason):
        read_export(root)
    assert not (tmp_path / "out" / "metadata.bin").exists()


def region(label, mask=None, points=None, kind="brushlabels"):
    if mask is not None:
        return {"type": kind, "value": {"format": "rle", "rle": brush(mask), kind: [label]}}
    return {"type": kind, "value": {"points": points, kind: [label]}}


def label_studio_export(root, tasks):
    root.mkdir(parents=True)
    (root / "p.json").write_text(json.dumps(tasks))
    (root / "photos").mkdir()
    for name in ("a", "without"):
        Image.new("RGB", (20, 10)).save(root / "photos" / f"{name}.jpg")
    (root.parent / "classes.ini").write_text(CLASS_LIST)
    return root


def read_tasks(root, options=ONE):
    given = {"train": (root / "photos", root / "p.json")}
    return prepare_label_studio(root.parent / "out", given, root.parent / "classes.ini", options)


def box(y0, x0, y1, x1):
    mask = np.zeros((10, 20), bool)
    mask[y0:y1, x0:x1] = True
    return mask


@pytest.mark.parametrize("address", ["/data/local-files/?d=here%2Fa.jpg", "/data/upload/3/0a1b2c3d-a.jpg"])
def test_tasks_of_label_studio(tmp_path, address):
    """Polygons and brush; the last annotation that was not cancelled; stuff below things; overlap in layers."""
    left, right = [[0, 0], [50, 0], [50, 100], [0, 100]], [[25, 0], [100, 0], [100, 100], [25, 100]]
    result = [
        region("sky", box(0, 0, 10, 20)),
        region("car", points=left, kind="polygonlabels"),
        region("car", points=right, kind="polygonlabels"),
        {"type": "rectanglelabels", "value": {"x": 1, "y": 1, "width": 2, "height": 2, "rectanglelabels": ["car"]}},
        {"type": "brushlabels", "value": {"rle": [1]}},
    ]
    task = {
        "id": 4,
        "data": {"image": address},
        "annotations": [{"result": []}, {"result": result}, {"result": [], "was_cancelled": True}],
        "predictions": [{"result": []}],
    }
    root = label_studio_export(tmp_path / "e", [task])
    account = read_tasks(root).accounts["train"]
    skipped = {FURTHER: (1, f"{root / 'p.json'}: task 4")}
    skipped["region without a mask or label"] = (2, str(root / "photos" / "a.jpg"))
    skipped["image without annotation"] = (1, str(root / "photos" / "without.jpg"))
    assert account == SplitAccount(1, 2, 2, skipped)
    folder = DatasetFolder(tmp_path / "out")
    (info,) = folder.metadata.images
    assert [folder.metadata.categories[c] for c in info.cat[1:]] == ["car", "car"]
    layers = folder.read_mask("a")
    assert len(layers) == 2
    assert sorted(int((layers == k).sum()) for k in (1, 2)) == [100, 150]


FURTHER = "annotation of a task besides the one that counts: the ground truth, else the last one with regions"


@pytest.mark.parametrize(("given", "counts"), [([(True, 0), (False, 4)], 0), ([(False, 4), (False, 0)], 4)])
def test_several_annotators(tmp_path, given, counts):
    annotations = [{"ground_truth": t, "result": [region("car", box(0, 0, 1, n))] if n else []} for t, n in given]
    root = label_studio_export(tmp_path / "e", {"data": {"image": "a.jpg"}, "annotations": annotations})
    assert read_tasks(root).accounts["train"].skipped[FURTHER][0] == 1
    assert int((DatasetFolder(tmp_path / "out").read_mask("a") > 0).sum()) == counts


def test_frames_and_tasks_without_annotation(tmp_path):
    """Their images may be missing, too."""
    root = cvat_export(tmp_path / "export", [[0, 1, 2]])
    (root / "ImageSets" / "Segmentation" / "default.txt").write_text("b\nmissing\na\n")
    shutil.copy(root / "JPEGImages" / "a.jpg", root / "JPEGImages" / "b.jpg")
    done = prepare_cvat(tmp_path / "out", {"train": (str(root), str(root))}, tmp_path / "classes.ini", ONE)
    assert done.accounts["train"].skipped["frame without annotation"] == (2, "b")
    assert done.splits == {"train": 1}
    tasks = [{"data": {"image": name}, "annotations": [{"result": []}] * n} for name, n in (("x.jpg", 0), ("a.jpg", 1))]
    done = read_tasks(label_studio_export(tmp_path / "tasks" / "e", tasks))
    assert done.accounts["train"].skipped["task without annotation"][0] == 1


def test_stuff_gets_the_pixels_that_no_thing_covers(tmp_path):
    result = [
        region("car", box(2, 2, 6, 6)),
        region("sky", box(0, 0, 5, 20)),
        region("sky", box(8, 0, 10, 20), kind="labels"),
    ]
    root = label_studio_export(tmp_path / "e", {"data": {"photo": "a.jpg"}, "annotations": [{"result": result}]})
    read_tasks(root)
    sky = (box(0, 0, 5, 20) | box(8, 0, 10, 20)) & ~box(2, 2, 6, 6)
    assert segment_masks(tmp_path / "out")["a"] == {("car", 0, box(2, 2, 6, 6).tobytes()), ("sky", 0, sky.tobytes())}


def test_a_class_background_in_cvat(tmp_path):
    """It is the label of this name that each task has; void is, too."""
    classes = Metadata(1, 1, ["background", "car"], [(0, 0, 0), (0, 0, 9)], [0, 1])
    assert label_colors(classes) == [(0, 0, 0), (0, 0, 9)]
    assert labelmap_text(classes, label_colors(classes)).splitlines()[1:] == ["background:0,0,0::", "car:0,0,9::"]
    segments = [Segment(k, k - 1, k == 2, 1.0, 1, (0, 0, 1, 1)) for k in (1, 2)]
    labels, objects = encode_masks(np.array([[0, 1, 2]], np.int32), segments, label_colors(classes), "x")
    assert labels.tolist() == [[0, 0, 9 << 16]]
    assert objects.tolist() == [[0, 0, 128]]


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ({"regions": [{"value": {"rle": 20_000_000_000, "brushlabels": ["car"]}}]}, "not tasks of Label Studio"),
        ({"data": {"image": "b.jpg"}, "annotations": [{"result": []}]}, "task: 'b.jpg' is not among the 2 images in"),
        ({"regions": [region("tram", box(0, 0, 1, 1))]}, "the label 'tram' is not in the class list"),
        ({"regions": [region("car", np.ones((3, 3), bool))]}, "a region of .*a.jpg: its RLE has 36 values"),
        ({"regions": [{**region("car", box(0, 0, 1, 1)), "image_rotation": 90}]}, "on a rotated image"),
        (
            {"regions": [{**region("car", points=[[0, 0], [9, 0], [9, 9]]), "original_width": 40}]},
            "a region: is of an image of 40 x None pixels .width x height., but .*a.jpg has 20 x 10",
        ),
        ({"data": {"image": "a.jpg"}, "annotations": [], "predictions": [8]}, "0 images found that have an annotation"),
    ],
)
def test_broken_tasks(tmp_path, task, reason):
    if "regions" in task:
        task = {"data": {"image": "a.jpg"}, "predictions": [{"result": task["regions"]}]}
    root = label_studio_export(tmp_path / "e", [task])
    with pytest.raises(InputError, match=reason):
        read_tasks(root)


CPU = ("--device", "cpu", "--workers", "0")


@pytest.mark.usefixtures("narrow")
def test_formats_of_the_command(micro_run, micro, tmp_path, seamseg_main, capsys):
    out = tmp_path / "out"
    assert seamseg_main("predict", micro_run, micro / "img", out, *CPU, "--format", "coco,cvat,labelstudio") == 0
    segments = sum(len(a["segments_info"]) for a in json.loads((out / "panoptic.json").read_text())["annotations"])
    for tool in ("cvat", "labelstudio"):
        words = ("prepare", tool, tmp_path / tool, "--split", "val", micro / "img", out / tool, "--workers", "1")
        assert seamseg_main(*words) == 0
        data = DatasetFolder(tmp_path / tool)
        assert replace(data.metadata, images=[]) == replace(DatasetFolder(micro).metadata, images=[])
        assert sum(len(i.cat) - 1 - sum(i.iscrowd) for i in data.metadata.images) == segments > 0
    # a frame of a video has no address that Label Studio could show
    (tmp_path / "drive.mp4").touch()
    capsys.readouterr()
    words = ("predict", micro_run, tmp_path / "drive.mp4", tmp_path / "t", *CPU)
    assert seamseg_main(*words, "--format", "labelstudio") == 2
    assert "not frames of drive.mp4; save them as images first" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
    # its list has one name per line
    Image.new("RGB", (48, 32)).save(tmp_path / "new\nline.png")
    assert seamseg_main("predict", micro_run, tmp_path / "new\nline.png", tmp_path / "t", *CPU, "--format", "cvat") == 1
    assert "ImageSets/Segmentation has one name per line, in UTF-8" in capsys.readouterr().err
