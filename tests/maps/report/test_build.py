"""The data of the report is that of the evaluation; one-line errors; the page of a folder of predictions."""

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from support.browsers import blocks, decode_index_map
from support.onnx_scenes import record, scene, write_network

from seamseg.cli.main import main
from seamseg.maps.evaluation.record import IMAGES, SUMMARY
from seamseg.maps.evaluation.scores import pixel_iou_titles
from seamseg.maps.formats.id_png import read_id_png
from seamseg.maps.idmaps.segments import resize_nearest
from seamseg.maps.report import find_evaluation, is_gallery, write_gallery
from seamseg.maps.report.summary import summarise_training as summarise
from seamseg.utils.errors import InputError, printable


@pytest.fixture(scope="module")
def page(runs):
    assert main(["report", str(runs[0]), "--size", "128", "--quiet"]) == 0
    return runs[0] / "report.html"


@pytest.fixture
def copy(runs, tmp_path):
    """A copy of the first run's evaluation without the maps, for modifications."""
    shutil.copytree(runs[0] / "evaluation", tmp_path / "evaluation")
    summary = tmp_path / "evaluation" / SUMMARY
    content = json.loads(summary.read_text())
    for side in ("ground_truth", "prediction"):
        for key in ("json", "folder"):
            content[side][key] = str((runs[0] / "evaluation" / content[side][key]).resolve())
    content["photos"] = str((runs[0] / "evaluation" / content["photos"]).resolve())
    summary.write_text(json.dumps(content))
    return tmp_path / "evaluation"


def test_headline_classes_and_confusion_are_those_of_the_evaluation(page):
    evaluation = find_evaluation(page.parent)
    found = blocks(page)["summary"][0]
    scores = evaluation.scores
    text = page.read_text(encoding="utf-8")  # no name ends its block
    assert text.count("</script>") == len(re.findall(r"<script[ >]", text)) == 1 + 2 + 10
    values = {row["name"]: row["values"] for row in found["headline"]}
    assert values["PQ"] == [scores["PQ"]]
    assert values["PQ†"] == [scores["PQ_dagger"]]
    assert {name for name in values if "mIoU" in name} == set(pixel_iou_titles(scores).values())
    assert values["mIoU (segments)"] == [scores["mIoU_segments"]]
    assert found["confusion"] == evaluation.confusion.tolist()
    for row, info, colour, expected in zip(
        found["classes"], evaluation.classes, evaluation.colours, scores["per_class"].values()
    ):
        assert (row["name"], row["thing"], tuple(row["color"])) == (printable(info.name), info.isthing, colour)
        assert all(row[key] == [expected[key]] for key in ("PQ", "SQ", "RQ", "IoU", "TP", "FP", "FN"))


def test_histograms_count_every_segment_once(page):
    found = blocks(page)["summary"][0]["histograms"][0]
    images = list(find_evaluation(page.parent).images())
    truth = [s for i in images for s in i.ground_truth if s.outcome != "crowd"]
    counted = [s for i in images for s in i.prediction if s.outcome != "forgiven"]
    assert sum(found["pq"]) == len(images)
    assert sum(found["area_matched"]) == sum(s.outcome == "matched" for s in truth)
    assert sum(found["area_missed"]) == sum(s.outcome == "missed" for s in truth) > 0
    assert sum(found["score_matched"]) + sum(found["score_false"]) + found["unscored"] == len(counted)
    k = next(k for k, n in enumerate(found["area_matched"]) if n) + found["area_from"]
    assert any(2**k <= s.area < 2 ** (k + 1) for s in truth if s.outcome == "matched")


def test_maps_and_segments_are_exact(page):
    evaluation = find_evaluation(page.parent)
    pictures = blocks(page)["image"]
    assert len(pictures) == 10
    for picture, image in zip(pictures, evaluation.images()):
        height, width = picture["height"], picture["width"]
        assert max(height, width) == 128
        photo = Image.open(io.BytesIO(base64.b64decode(picture["photo"])))
        assert photo.size == (width, height)
        assert photo.format == "JPEG"
        (result,) = picture["results"]
        for files, png, segments, name in (
            (evaluation.ground_truth, image.ground_truth_png, image.ground_truth, "truth"),
            (evaluation.prediction, image.prediction_png, image.prediction, "prediction"),
        ):
            indices = decode_index_map(result[name], height, width, len(segments))
            ids = np.array([0, *(s.id for s in segments)])[indices]
            assert np.array_equal(ids, resize_nearest(read_id_png(files.folder / png), (height, width)))
            listed = result[f"{name}_segments"]
            assert [s[:4] for s in listed] == [[s.id, s.category, s.area, s.outcome] for s in segments]
            assert [s[5] for s in listed] == [None if s.iou is None else round(s.iou, 4) for s in segments]
            others = image.prediction if name == "truth" else image.ground_truth
            partners = [others[s[4] - 1].id if s[4] else None for s in listed]
            assert partners == [s.partner for s in segments]


def test_limited_images_are_the_worst_and_the_best(runs, tmp_path):
    out = tmp_path / "deep" / "few.html"
    assert main(["report", str(runs[0]), "--out", str(out), "--images", "4", "--size", "64", "--quiet"]) == 0
    found = blocks(out)
    shown = sorted(i["pq"][0] for i in found["summary"][0]["images"])
    all_of_them = sorted(i.PQ or 0 for i in find_evaluation(runs[0]).images())
    assert shown == all_of_them[:2] + all_of_them[-2:]
    assert len(found["image"]) == 4
    assert found["summary"][0]["total"] == 10
    assert [p.name for p in out.parent.iterdir()] == ["few.html"]


def test_against_joins_images_by_id(runs, tmp_path):
    out = tmp_path / "a.html"
    assert main(["report", str(runs[0]), "--against", str(runs[1]), "--out", str(out), "--size", "64", "--quiet"]) == 0
    found = blocks(out)
    summary = found["summary"][0]
    assert summary["titles"] == ["run0", "run1"]  # the titles of the evaluations are equal
    other = {i.image_id: i for i in find_evaluation(runs[1]).images()}
    assert [i["pq"][1] for i in summary["images"]] == [other[i["name"]].PQ for i in summary["images"]]
    for entry, picture in zip(summary["images"], found["image"]):
        first, second = picture["results"]
        assert first["truth"] is not None
        assert second["truth"] is None
        assert [s[0] for s in second["prediction_segments"]] == [s.id for s in other[entry["name"]].prediction]


def test_against_skips_images_of_one_run_only_and_keeps_the_report(runs, copy):
    lines = (copy / IMAGES).read_text().splitlines(keepends=True)
    (copy / IMAGES).write_text("".join(reversed(lines[3:])))
    assert main(["report", str(copy), "--against", str(runs[1]), "--size", "64", "--quiet"]) == 0
    assert not (copy / "report.html").exists()
    summary = blocks(copy / f"report-against-{runs[1].name}.html")["summary"][0]
    assert (summary["unpaired"], summary["total"], summary["n_images"]) == (3, 7, [7, 10])


@pytest.mark.parametrize("spoil", ["none", "broken", "outside"])
def test_images_without_photos(copy, spoil, tmp_path, capsys):
    photos = tmp_path / "photos"
    photos.mkdir()
    lines = [json.loads(line) for line in (copy / IMAGES).read_text().splitlines()]
    for line in lines:
        line["photo"] = {"none": None, "outside": "../photos/x.jpg"}.get(spoil, "x.jpg")
    (photos / "x.jpg").write_bytes(b"no picture")
    if spoil == "outside":
        Image.new("RGB", (8, 8)).save(photos / "x.jpg")
    (copy / IMAGES).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["report", str(copy), "--photos", str(photos), "--size", "64"]) == 0
    assert "10 of 10 images are missing or unreadable" in capsys.readouterr().err
    found = blocks(copy / "report.html")
    assert found["ending"] == [{"without_photo": 10}]
    assert all(p["photo"] is None for p in found["image"])


@pytest.mark.parametrize(
    ("change", "words", "lines"),
    [
        ({"prediction_png": "none.png"}, "none.png: no such panoptic PNG", 1),
        ({"width": 193}, "were evaluated; evaluate again", 2),
    ],
)
def test_broken_maps(copy, change, words, lines, capsys):
    first, *rest = (copy / IMAGES).read_text().splitlines()
    (copy / IMAGES).write_text("\n".join([json.dumps({**json.loads(first), **change}), *rest]))
    assert main(["report", str(copy), "--quiet"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("failed scene 000: ")
    assert words in error
    assert error.count("\n") == lines
    images = blocks(copy / "report.html")["image"]
    assert len(images) == 10
    for image, is_drawn in zip(images, (False, True)):
        (result,) = image["results"]
        segments = len(result["prediction_segments"])
        assert decode_index_map(result["prediction"], image["height"], image["width"], segments).any() == is_drawn


def test_other_classes_cannot_be_compared(runs, copy, capsys):
    content = json.loads((copy / SUMMARY).read_text())
    content["classes"][0]["name"] = "river"
    (copy / SUMMARY).write_text(json.dumps(content))
    assert main(["report", str(runs[0]), "--against", str(copy)]) == 2
    assert "for example 'river'; compare runs on one data set" in capsys.readouterr().err
    content["classes"][0]["name"] = find_evaluation(runs[0]).classes[0].name
    (copy / SUMMARY).write_text(json.dumps(content))
    (copy / IMAGES).write_text((copy / IMAGES).read_text().replace('"scene ', '"other '))
    assert main(["report", str(runs[0]), "--against", str(copy)]) == 2
    assert "have no image in common; compare runs on one data set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["{tmp}"], "use `seamseg evaluate {tmp} DATA --out {tmp}/evaluation`"),
        (["{tmp}/none"], "no such folder"),
        (["{run}", "--images", "-1"], "--images -1: must be 0 or more"),
        (["{run}", "--size", "9"], "--size 9: must be 32 to 4096"),
        (["{run}", "--photos", "{tmp}/none"], "no such folder"),
        (["{run}", "--out", "{tmp}"], "is a folder; name a file"),
    ],
)
def test_wrong_usage(runs, tmp_path, argv, words, capsys):
    names = {"tmp": tmp_path, "run": runs[0]}
    assert main(["report", *(a.format(**names) for a in argv)]) == 2
    error = capsys.readouterr().err
    assert words.format(**names) in error
    assert error.count("\n") == 1


LINES = [
    {"kind": "train", "step": 10, "epoch": 0, "loss": 4.0, "step_seconds": 2.0, "images_per_second": 1.0},
    {"kind": "train", "step": 14, "epoch": 0, "loss": 0.5, "step_seconds": 1.0, "images_per_second": 3.0},
    {"kind": "validation", "step": 14, "epoch": 0, "seconds": 5.0, "PQ": 0.25},
    {"kind": "train", "step": 24, "epoch": 2, "loss": None, "step_seconds": 0.5, "images_per_second": 2.0},
    {"kind": "validation", "step": 24, "epoch": 2, "seconds": 1.0, "mIoU": 0.5},
]
WANTED = {
    "steps": 24, "seconds": 35.0, "images_per_second": 2.0, "memory_gib": None, "epochs": [1, 3], "loss": [3.0, None],
    "PQ": [0.25, None],
}  # fmt: skip


def test_summary_of_a_training():
    assert summarise(LINES) == WANTED
    assert summarise(LINES[2:3]) is None
    assert summarise([]) is None

    # a file that begins with a resumed training
    later = [{**line, "step": line["step"] + 5000, "epoch": line["epoch"] + 50} for line in LINES]
    assert summarise(later) == {**WANTED, "epochs": [51, 53]}
    assert summarise(later[:1])["loss"] == [4.0]
    peaks = {"rss_peak_gib": 2.0, "allocated_peak_gib": 3, "reserved_peak_gib": 5}
    assert summarise([LINES[0] | peaks])["memory_gib"] == 5.0, "that of the GPU"


@pytest.mark.parametrize("folder", ["", "evaluation"])
def test_a_report_of_a_run_contains_its_training(runs, folder, tmp_path):
    run, page = runs[0], tmp_path / "page.html"
    (run / folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    try:
        for arguments, wanted in (([], [WANTED]), (["--against", str(runs[1])], [WANTED, None])):
            assert main(["report", str(run / folder), *arguments, "--out", str(page), "--images", "1", "--quiet"]) == 0
            assert blocks(page)["summary"][0]["training"] == wanted
    finally:
        (run / folder / "metrics.jsonl").unlink()


# --- predictions without ground truth


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    """Two images, one of them without its overlay by now, and one that cannot be read."""
    root = tmp_path_factory.mktemp("gallery")
    network = write_network(root / "net.onnx", record())
    (root / "photos").mkdir()
    Image.fromarray(scene((90, 140))).save(root / "photos" / "a<b>.png")
    Image.fromarray(scene((90, 140))[:30]).save(root / "photos" / "c.png")
    (root / "photos" / "d.png").write_bytes(b"")
    assert main(["predict", str(network), str(root / "photos"), str(root / "out"), "--format", "json,overlay"]) == 1
    (root / "out" / "c.jpg").unlink()
    return root / "out"


def test_the_page_has_overlays_and_counts(predicted, capsys):
    assert main(["report", str(predicted)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"open {predicted / 'report.html'} (")
    assert captured.err.splitlines()[-1].endswith("1 of 2 images are missing or unreadable: their panels are on grey")
    found = blocks(predicted / "report.html")
    (summary,) = found["summary"]
    lines = [json.loads(line) for line in (predicted / "predictions.jsonl").read_text().splitlines()[1:]]
    counts = {line["name"]: line["segments"] for line in lines if line["status"] == "ok"}
    names = [one["name"] for one in summary["classes"]]
    shown = {one["name"]: {names[c]: n for c, n in one["classes"][0]} for one in summary["images"]}
    assert shown == counts
    assert [*shown] == ["a<b>", "c"]
    assert (summary["scored"], summary["failed"], summary["n_images"], summary["titles"]) == (False, [1], [2], ["out"])
    for one in summary["classes"]:
        has = [image[one["name"]] for image in counts.values() if one["name"] in image]
        assert (one["Images"], one["Found"]) == ([len(has)], [sum(has)])
    first, second = found["image"]
    assert Image.open(io.BytesIO(base64.b64decode(first["photo"]))).size == (first["width"], first["height"])
    assert (first["width"], first["height"], second["photo"]) == (140, 90, None)


def test_other_content(predicted, tmp_path):
    manifest = tmp_path / "predictions.jsonl"
    lines = (predicted / "predictions.jsonl").read_bytes().splitlines(keepends=True)
    ok = next(line for line in lines if b'"ok"' in line)
    manifest.write_bytes(lines[0] + ok + b'{"torn')
    assert is_gallery(tmp_path)
    assert write_gallery(tmp_path / "a.html", tmp_path).without_image == 1
    manifest.write_bytes(lines[0] + ok + b'{"name": "a"}\n')
    with pytest.raises(InputError, match=r"predictions\.jsonl, line 3: not a line of `seamseg predict`"):
        write_gallery(tmp_path / "a.html", tmp_path)
    manifest.write_bytes(lines[0] + ok.replace(b".jpg", b".png"))
    with pytest.raises(InputError, match="holds no overlay; predict with --format overlay"):
        write_gallery(tmp_path / "a.html", tmp_path)
    (tmp_path / "evaluation.json").touch()
    assert not is_gallery(tmp_path)
