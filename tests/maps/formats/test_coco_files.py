"""COCO panoptic files: written, read, evaluated, and rejected if broken."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from seamseg.maps.evaluation import evaluate_panoptic_json
from seamseg.maps.evaluation.record import MapFiles
from seamseg.maps.formats.coco_panoptic import read_coco_panoptic
from seamseg.maps.formats.coco_writer import CocoPanopticWriter
from seamseg.maps.formats.id_png import read_id_png, write_id_png
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.panoptic_map import PanopticResult, Segment
from seamseg.utils.errors import InputError

PALETTE = [(0, 0, 0), (70, 130, 180), (0, 0, 142), (220, 20, 60)]
META = Metadata(2, 2, ["road", "sky", "car", "person"], PALETTE, [7, 23, 26, 24])


def random_result(seed, shift=0, size=(24, 31)):
    rng = np.random.default_rng(seed)
    ids = np.zeros(size, np.int32)
    for i in range(1, 9):
        y, x = rng.integers(0, size[0] - 4), rng.integers(0, size[1] - 4)
        ids[y : y + rng.integers(3, 12), x : x + rng.integers(3, 12)] = i
    ids = np.roll(ids, shift, 1)
    segments = []
    for i in np.unique(ids[ids > 0]).tolist():
        rows, columns = np.nonzero(ids == i)
        box = (rows.min(), columns.min(), rows.max() + 1, columns.max() + 1)
        category = i % 4 if i < 3 else 2 + i % 2
        score = 0.5 if category > 1 else None
        segments.append(Segment(i, category, category > 1, score, rows.size, tuple(map(float, box)), i == 8))
    return PanopticResult(ids, segments)


def write(path, results, meta=META):
    writer = CocoPanopticWriter(path, meta)
    return writer.write_json(writer.write(name, one, f"{name}.jpg") for name, one in results.items())


@pytest.fixture
def pair(tmp_path):
    names = ("a", "sub/b", "c")
    gt = write(tmp_path / "gt.json", {n: random_result(i) for i, n in enumerate(names)})
    pred = write(tmp_path / "pred.json", {n: random_result(i, shift=1) for i, n in enumerate(names)})
    return gt, pred


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.uint32, np.int64])
def test_values_are_written_in_place_of_ids(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr("seamseg.maps.idmaps.id_runs.BAND_BYTES", 1)  # a band a row
    write_id_png(tmp_path / "x.png", np.array([[0, 1, 200], [3, 3, 1]], dtype), [(3, 70_000), (1, 5)])
    assert read_id_png(tmp_path / "x.png").tolist() == [[0, 5, 0], [70_000, 70_000, 5]]


def test_what_does_not_fit_a_png(tmp_path):
    for ids, values in ((np.array([[1 << 24]]), None), (np.array([[1]]), [(1, 1 << 24)])):
        with pytest.raises(ValueError, match="16777215"):
            write_id_png(tmp_path / "x.png", ids, values)
    with pytest.raises(ValueError, match=r"\(0, 4\)"):
        write_id_png(tmp_path / "x.png", np.zeros((0, 4), np.int32))
    assert not any(tmp_path.iterdir())


def test_writer_describes_each_segment(tmp_path):
    one = random_result(0)
    path = write(tmp_path / "out" / "panoptic.json", {"a": one})
    read = read_coco_panoptic(path)
    assert [c.id for c in read.categories] == [7, 23, 26, 24]
    assert [c.isthing for c in read.categories] == [False, False, True, True]
    ids = read_id_png(read.png(read.annotations[0]))
    entries = read.annotations[0].segments_info
    kept = [s for s in one.segments if not s.iscrowd]
    assert len({e["id"] for e in entries}) == len(entries) == len(kept)
    for s, e in zip(kept, entries):
        assert ((ids == e["id"]) == (one.id_map == s.id)).all()
        assert e["category_id"] == META.original_ids[s.category]
        assert e["area"] == s.area
        y0, x0, y1, x1 = s.box
        assert e["bbox"] == [x0, y0, x1 - x0, y1 - y0]
    crowd = next(s for s in one.segments if s.iscrowd)
    assert not ids[one.id_map == crowd.id].any()
    assert read.image_names == {"a": "a.jpg"}
    writer = CocoPanopticWriter(tmp_path / "twice.json", META)
    with pytest.raises(InputError, match="two images have the id a"):
        writer.write_json(writer.write("a", random_result(k)) for k in range(2))
    assert not writer.json_path.exists()
    path = write(tmp_path / "x.json", {"a": one}, replace(META, original_ids=[1, 1, 2, 3]))
    assert [c.id for c in read_coco_panoptic(path).categories] == [1, 2, 3, 4], "where the original ids are not unique"


@pytest.mark.parametrize("name", ["../a", "b/../../a", "{tmp}/a"])
def test_names_stay_in_the_folder(tmp_path, name):
    writer = CocoPanopticWriter(tmp_path / "out" / "x.json", META)
    with pytest.raises(InputError, match="is not a path inside this folder"):
        writer.write(name.format(tmp=tmp_path), random_result(0))
    assert not list(tmp_path.rglob("*.png"))
    writer.write("b/at 12:30", random_result(0))
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.png")] == ["out/x/b/at 12:30.png"]


def test_folders_elsewhere_and_threads(pair, tmp_path):
    gt, pred = pair
    wanted = evaluate_panoptic_json(gt, pred).to_json()
    (tmp_path / "gt").rename(tmp_path / "g")
    (tmp_path / "pred").rename(tmp_path / "p")
    moved = MapFiles(gt, tmp_path / "g"), MapFiles(pred, tmp_path / "p")
    assert evaluate_panoptic_json(*moved, workers=4).to_json() == wanted
    with pytest.raises(InputError, match=r"gt: no such folder \(PNGs of gt\.json\)"):
        evaluate_panoptic_json(gt, pred)


def first_segments(content):
    return content["annotations"][0]["segments_info"]


@pytest.mark.parametrize(
    ("side", "change", "words"),
    [
        (1, lambda c: first_segments(c).pop(), "image a.*is in the predicted map but not among its segments"),
        (1, lambda c: first_segments(c).append({"id": 12345, "category_id": 7}), "image a.*12345 has no pixel"),
        (1, lambda c: first_segments(c)[0].update(category_id=999), "image a.*category_id 999"),
        (1, lambda c: first_segments(c).append(dict(first_segments(c)[0])), "image a.*is listed twice"),
        (1, lambda c: first_segments(c)[0].pop("id"), "image a.*invalid segment"),
        (1, lambda c: c.update(annotations=c["annotations"][:1]), "'c'.*and 1 more.*first .* image 'a'"),
        (1, lambda c: c.pop("annotations"), r"pred\.json.*annotations"),
        (1, lambda c: c["annotations"][0].update(file_name="\ud800.png"), "not a readable PNG"),
        (0, lambda c: c["annotations"].append(c["annotations"][0]), r"gt\.json: image a is annotated twice"),
        (0, lambda c: c["categories"][0].update(isthing=2), "not a COCO panoptic file .ValueError: isthing 2"),
        (0, lambda c: first_segments(c)[0].update(area=1e-12), "annotated area of 1e-12, but more pixels in its map"),
        (0, lambda c: c.pop("categories"), "has no `categories`"),
    ],
)
def test_broken_files_are_one_line_errors(pair, side, change, words):
    edit(pair[side], change)
    with pytest.raises(InputError, match=words) as error:
        evaluate_panoptic_json(*pair, workers=2)
    assert "\n" not in str(error.value)


def test_predictions_are_found_by_the_name_of_the_photo(pair):
    gt, pred = pair
    wanted = evaluate_panoptic_json(gt, pred).to_json()

    def number(content):
        for i, (image, annotation) in enumerate(zip(content["images"], content["annotations"])):
            image["id"] = annotation["image_id"] = 1000 + i

    def rename(content):
        for annotation in content["annotations"]:
            annotation["image_id"] = f"city/{annotation['image_id']}_leftImg8bit"

    edit(gt, number)
    edit(pred, rename)
    edit(
        pred,
        lambda c: [s.update(category_id=str(s["category_id"])) for a in c["annotations"] for s in a["segments_info"]],
    )
    assert evaluate_panoptic_json(gt, pred).to_json() == wanted
    # ambiguous: the same name in two folders
    edit(pred, lambda content: content["annotations"].append({**content["annotations"][0], "image_id": "other/a"}))
    with pytest.raises(
        InputError, match=r"no prediction for image 1000 .*; the first prediction is for image 'city/a_"
    ):
        evaluate_panoptic_json(gt, pred)


def test_broken_pngs(pair):
    png = pair[1].with_suffix("") / "a.png"
    data = png.read_bytes()
    for spoil, words in (
        (lambda: png.write_bytes(data[: len(data) // 2]), r"a\.png: not a readable PNG"),
        (lambda: png.unlink(), r"a\.png: no such panoptic PNG"),
        (lambda: Image.new("I;16", (31, 24)).save(png), "three channels of 8 bits"),
        (
            lambda: write_id_png(png, np.zeros((10, 12), int)),
            r"pred/a\.png: the prediction is 12 x 10 pixels .* truth 31 x 24",
        ),
    ):
        spoil()
        with pytest.raises(InputError, match=words):
            evaluate_panoptic_json(*pair)
