"""Prediction through the Python API and the command: formats, options, anonymisation, unreadable or unusual images."""

import csv
import json
import shutil
from collections import Counter
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco_masks

import seamseg
from seamseg.inference.predictor import Predictor
from seamseg.maps.formats.id_png import read_id_png
from seamseg.maps.panoptic_map import PanopticResult
from seamseg.maps.predictions import Prediction
from seamseg.predicting import job
from seamseg.predicting.folder import PredictSettings
from seamseg.predicting.source import Video
from seamseg.predicting.writers.images import OVERLAY_QUALITY
from seamseg.results.anonymize import private_regions

pytestmark = pytest.mark.usefixtures("narrow")

CPU = ("--device", "cpu", "--workers", "0")


@pytest.fixture(scope="module")
def photos(micro, tmp_path_factory):
    """Images in two folders: equal names, several formats and sizes, one broken, one empty, and one other file."""
    folder = tmp_path_factory.mktemp("photos")
    street = Image.open(micro / "img" / "val0.png")
    (folder / "sub").mkdir()
    street.save(folder / "street.jpg")
    street.resize((200, 100)).save(folder / "sub" / "street.png")
    street.convert("L").save(folder / "sub" / "street.bmp")
    street.transpose(Image.Transpose.ROTATE_90).save(folder / "tall.png")
    Image.new("RGB", (1, 1), (10, 200, 30)).save(folder / "dot.png")
    (folder / "broken.jpg").write_bytes((folder / "street.jpg").read_bytes()[:200])
    (folder / "empty.png").write_bytes(b"")
    (folder / "readme.txt").write_text("not an image")
    return folder


GOOD = ["dot", "street", "sub/street.bmp", "sub/street.png", "tall"]


def predict(main, model, photos, out, *words):
    return main("predict", model, photos, out, *CPU, *words)


def written(out):
    return sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())


def test_all_formats(micro_run, photos, tmp_path, seamseg_main, capsys):
    out = tmp_path / "out"
    assert predict(seamseg_main, micro_run, photos, out, "--format", "overlay,coco,raw", "--show") == 1
    printed, errors = capsys.readouterr()
    assert printed == f"{out / GOOD[0]}.jpg\n"
    assert "readme.txt" not in errors
    assert "5 images in" in errors
    assert "2 failed" in errors
    expected = [f"{n}.jpg" for n in GOOD] + [f"{n}.pth.tar" for n in GOOD] + [f"panoptic/{n}.png" for n in GOOD]
    assert written(out) == sorted([*expected, "panoptic.json", "predictions.jsonl"])

    for name, size in (("street", (96, 64)), ("tall", (64, 96)), ("dot", (1, 1))):
        with Image.open(out / f"{name}.jpg") as overlay:
            assert overlay.size == size
    content = json.loads((out / "panoptic.json").read_text())
    assert [i["id"] for i in content["images"]] == GOOD
    assert {i["id"]: i["file_name"] for i in content["images"]}["sub/street.bmp"] == "sub/street.bmp"
    for annotation in content["annotations"]:
        ids = read_id_png(out / "panoptic" / annotation["file_name"])
        assert set(np.unique(ids)) - {0} == {s["id"] for s in annotation["segments_info"]}
        for segment in annotation["segments_info"]:
            assert segment["area"] == (ids == segment["id"]).sum()


def test_json_and_csv(micro_run, micro, tmp_path, seamseg_main):
    out = tmp_path / "out"
    assert predict(seamseg_main, micro_run, micro / "img", out, "--format", "coco,json,csv") == 0
    coco = json.loads((out / "panoptic.json").read_text())
    names = {c["id"]: c["name"] for c in coco["categories"]}
    colors = {c["name"]: list(c["color"]) for c in coco["categories"]}
    rows = list(csv.DictReader((out / "counts.csv").open(newline="")))
    found = 0
    for image, annotation in zip(coco["images"], coco["annotations"], strict=True):
        content = json.loads((out / "json" / f"{image['id']}.json").read_text())
        assert {key: content[key] for key in ("image", "width", "height")} == {
            "image": image["file_name"],
            **{side: image[side] for side in ("width", "height")},
        }
        ids = read_id_png(out / "panoptic" / annotation["file_name"])
        segments = {s["id"]: s for s in content["segments"]}
        assert [names[c["id"]] for c in content["classes"]] == [c["name"] for c in content["classes"]]
        assert all(c["color"] == colors[c["name"]] for c in content["classes"])
        for stated in annotation["segments_info"]:
            segment = segments.pop(stated["id"])
            assert all(segment[key] == stated[key] for key in ("category_id", "bbox", "area"))
            mask = coco_masks.decode(segment["segmentation"]).astype(bool)
            assert np.array_equal(mask, ids == stated["id"])
            found += 1
        assert not segments
        counts = Counter(s["class"] for s in content["segments"])
        own = [row for row in rows if row["image"] == image["file_name"]]
        assert {row["class"]: int(row["count"]) for row in own} == counts
        assert sum(int(row["area"]) for row in own) == (ids > 0).sum()
    assert found > 0


@pytest.fixture
def drive(tmp_path):
    """A video of five frames of odd sides, 10 in a second, of a colour that differs between the standards."""
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "drive.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 121, 67, "bgr0"
        for _ in range(5):
            frame = av.VideoFrame.from_ndarray(np.full((67, 121, 3), (200, 30, 30), np.uint8))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return tmp_path / "drive.mkv"


def test_a_video_of_overlays(micro_run, drive, tmp_path, seamseg_main, capsys, monkeypatch):
    out = tmp_path / "out.mp4"
    with monkeypatch.context() as change:
        # its frames stay for the next run
        change.setattr(job, "write_video", raising(KeyboardInterrupt))
        assert predict(seamseg_main, micro_run, drive, out, "--set", "format overlay.opacity=0") == 130
    assert not out.exists()
    overlay = tmp_path / "out.mp4.frames" / "drive" / "frame_000003.jpg"
    overlay.unlink()
    assert predict(seamseg_main, micro_run, drive, out, "--set", "format overlay.opacity=0", "--show") == 0
    captured = capsys.readouterr()
    assert captured.out == f"{out}\n"
    assert "1 image in" in captured.err
    assert not overlay.parents[1].exists()
    frames = [np.asarray(item.open()) for item in Video(str(out), "out", "out").items()]
    assert [frame.shape for frame in frames] == [(66, 120, 3)] * 5
    assert all(np.abs(frame[10:-10, 10:-10] - np.array([200.0, 30, 30])).max() < 12 for frame in frames)
    import av

    with av.open(str(out)) as container:
        assert container.streams.video[0].average_rate == 10
    # the folder is removed at the end: it must be that of the command
    own = tmp_path / "c.mp4.frames" / "mine.jpg"
    own.parent.mkdir()
    own.touch()
    assert predict(seamseg_main, micro_run, drive, tmp_path / "c.mp4") == 2
    assert "is for the frames of c.mp4, but holds other files; choose another OUT" in capsys.readouterr().err
    assert own.exists()
    before = out.read_bytes()
    other = shutil.copy(drive, tmp_path / "other.mkv")
    for words, message in (
        ((drive, out), "out.mp4: exists already; choose another file for the overlays, or remove it"),
        ((drive, drive, "--restart"), "drive.mkv: exists already; choose another file for the overlays, or remove it"),
        ((drive, tmp_path / "b.mp4", "--format", "coco"), "--format coco: a video has overlays"),
        ((drive, tmp_path / "b.avi"), "b.avi: videos are written as .mp4, .mov, .mkv; for images OUT is a folder"),
        ((drive, other, tmp_path / "b.mp4"), "OUT is a video, so IN must be one video"),
    ):
        assert seamseg_main("predict", micro_run, *words, *CPU) == 2
        assert message in capsys.readouterr().err
    assert out.read_bytes() == before


def raising(error):
    def fail(*arguments):
        raise error

    return fail


def test_overlays_with_labels(micro_run, photos, tmp_path, seamseg_main):
    words = ("--labels", "--set", "format overlay.opacity=0.25")
    assert seamseg_main("predict", micro_run, photos / "street.jpg", tmp_path / "out", *CPU, *words) == 0
    predictor = seamseg.load(micro_run, "cpu")
    buffer = BytesIO()
    result = predictor.predict(photos / "street.jpg")
    result.draw(labels=True, opacity=0.25).save(buffer, "JPEG", quality=OVERLAY_QUALITY)
    assert (tmp_path / "out" / "street.jpg").read_bytes() == buffer.getvalue()
    legend = np.asarray(Image.open(tmp_path / "out" / "legend.png")).reshape(-1, 3)
    assert set(map(tuple, predictor.metadata.palette)) <= set(map(tuple, legend.tolist()))


@pytest.mark.parametrize(
    ("on_gpu", "words", "largest"), [(True, (), 4), (True, ("--batch-size", "2"), 2), (False, (), 1)]
)
def test_a_gpu_computes_batches(micro_run, micro, tmp_path, seamseg_main, monkeypatch, on_gpu, words, largest):
    sizes, load = [], PredictSettings.load

    def counting(settings, device):
        predictor = load(settings, device)
        # one after the other, as on a GPU
        predictor.network.on_gpu, predictor.network.concurrent = on_gpu, False
        predictor = Predictor(predictor.network, predictor.metadata, predictor.input_size, predictor.thresholds)
        start = predictor.start
        predictor.start = lambda images: sizes.append(len(images)) or start(images)
        return predictor

    monkeypatch.setattr(PredictSettings, "load", counting)
    assert predict(seamseg_main, micro_run, micro / "img", tmp_path / "out", "--format", "coco", *words) == 0
    assert (max(sizes), sum(sizes)) == (largest, 7)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{run}", "{photos}", "no://bucket/out"), "no://bucket/out: a URL, where a local path is needed; `python -m"),
        (("{run}", "{photos}", "{photos}/tall.png"), "tall.png: the output must be a folder, this is a file or image"),
        (("{run}", "{photos}", ""), "OUT is empty"),
        (("{run}", "{photos}/street.jpg", "{photos}"), "would overwrite an input image"),
        (("{run}", "{photos}", "{out}", "--tiles", "7"), "--tiles 7: too small"),
        (("{run}", "{photos}", "{out}", "--tiles", "many"), "auto, off or a side"),
        (("{run}", "{photos}", "{out}", "--anonymize", ""), "no class is given"),
        (("{run}", "{photos}", "{out}", "--classes", "car", "--format", "raw"), "--format raw contains all classes"),
        (("{run}", "p-{{0..3}}.tar", "{out}"), "`python -m seamseg.contrib.ray --input webdataset` predicts"),
    ],
)
def test_bad_usage(micro_run, photos, tmp_path, refused, words, message):
    out = tmp_path / "out"
    out.mkdir()
    filled = [word.format(run=micro_run, photos=photos, out=out) for word in words]
    assert message in refused("predict", *filled, "--device", "cpu")
    assert not list(out.iterdir())


def test_unknown_files_are_not_overwritten(micro_run, photos, tmp_path, seamseg_main, capsys):
    place = tmp_path
    for mine, words in (("street.jpg", ()), ("panoptic.json", ("--format", "coco"))):
        (tmp_path / mine).write_text("mine")
        assert predict(seamseg_main, micro_run, photos / "street.jpg", place, "--quiet", *words) == 2
        assert f"{mine}: exists already, and no predictions.jsonl lists it" in capsys.readouterr().err
        assert written(tmp_path) == [mine]
        assert (tmp_path / mine).read_text() == "mine"
        (tmp_path / mine).unlink()
    (tmp_path / "street.jpg").write_text("mine")
    for words in (("--restart",), ()):
        assert predict(seamseg_main, micro_run, photos / "street.jpg", place, "--quiet", *words) == 0
        assert (tmp_path / "street.jpg").read_bytes()[:2] == b"\xff\xd8"
        (tmp_path / "street.jpg").unlink()


@pytest.fixture
def small(micro_run, monkeypatch):
    """A network of a CPU with three threads, whose inputs are small; later tests have the threads of before."""
    threads, restore = torch.get_num_threads(), torch.set_num_threads
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    yield seamseg.load(micro_run, device="cpu")
    restore(threads)


def test_several_photos_at_a_time_give_the_same_files_and_scores(small, micro_run, micro, tmp_path, seamseg_main):
    for out, threads in (("many", 3), ("one", 1)):
        torch.get_num_threads = lambda threads=threads: threads
        words = ("predict", micro_run, micro / "img", tmp_path / out, "--format", "overlay,coco", "--workers", "0")
        assert seamseg_main(*words, "--device", "cpu") == 0
        words = ("evaluate", micro_run, micro, "--json", tmp_path / f"{out}.json", "--device", "cpu")
        assert seamseg_main(*words) == 0
    many, one = (
        {p.relative_to(tmp_path / out): p.read_bytes() for p in (tmp_path / out).rglob("*.[jp]*g")}
        for out in ("many", "one")
    )
    assert len(one) == 14
    assert many == one
    scores = [json.loads((tmp_path / f"{out}.json").read_text()) for out in ("many", "one")]
    assert scores[0]["PQ"] == scores[1]["PQ"]
    assert scores[0]["per_class"] == scores[1]["per_class"]


# --- Fewer classes, and hidden ones


@pytest.fixture
def names(micro_run):
    return seamseg.load(micro_run, device="cpu").metadata.categories


def street(micro):
    return micro / "img" / "val0.png"


def test_chosen_classes(micro_run, micro, tmp_path, seamseg_main, names):
    kept = names[1].upper()
    words = ("--classes", kept, "--format", "coco,overlay", "--min-area", "0")
    assert seamseg_main("predict", micro_run, street(micro), tmp_path, *CPU, "--quiet", *words) == 0
    content = json.loads((tmp_path / "panoptic.json").read_text())
    found = {s["category_id"] for a in content["annotations"] for s in a["segments_info"]}
    category = {c["name"]: c["id"] for c in content["categories"]}
    assert found <= {category[names[1]]}
    ids = read_id_png(tmp_path / "panoptic" / "val0.png")
    everything = seamseg.load(micro_run, device="cpu", min_stuff_area=0).predict(street(micro))
    assert np.array_equal(ids > 0, everything.classes == 1)
    assert seamseg.load(micro_run, device="cpu", min_stuff_area=0, classes=[kept]).predict(street(micro)) == (
        everything.only(kept)
    )


def photo_with_secrets(path):
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "SecretCamera"
    exif.get_ifd(0x8825)[1] = "N"
    exif.get_ifd(0x8825)[2] = (52.0, 31.0, 12.0)
    pixels = np.random.default_rng(0).integers(0, 256, (60, 100, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(
        path, quality=95, exif=exif, comment=b"SecretComment", icc_profile=b"SecretProfile" * 20
    )


def test_anonymize_from_the_command(micro_run, tmp_path, seamseg_main, names):
    photo_with_secrets(tmp_path / "a.jpg")
    assert b"SecretCamera" in (tmp_path / "a.jpg").read_bytes()
    out = tmp_path / "out"
    assert (
        seamseg_main("predict", micro_run, tmp_path / "a.jpg", out, *CPU, "--quiet", "--anonymize", ",".join(names))
        == 0
    )
    assert sorted(p.name for p in out.rglob("*")) == ["a.jpg", "predictions.jsonl"]
    content = (out / "a.jpg").read_bytes()
    assert b"Secret" not in content
    assert b"Exif" not in content
    with Image.open(out / "a.jpg") as picture:
        assert picture.size == (60, 100)
        assert dict(picture.getexif()) == {}
        assert "icc_profile" not in picture.info
        hidden = np.asarray(picture).astype(int)
    # every class is hidden, so no noise remains
    assert abs(np.diff(hidden, axis=0)).mean() < 8


def test_objects_of_other_classes_are_still_anonymised(micro_run, tmp_path, seamseg_main, names):
    pixels = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    words = ("--anonymize", names[-1], "--anonymize-score", "1", "--score-threshold", "0")
    plain = []
    for out, more in (("all", ()), ("less", ("--classes", names[0]))):
        assert (
            seamseg_main("predict", micro_run, tmp_path / "a.png", tmp_path / out, *CPU, "--quiet", *words, *more) == 0
        )
        with Image.open(tmp_path / out / "a.jpg") as picture:
            changed = np.abs(np.asarray(picture).astype(int) - pixels).mean(2) > 20
        plain.append(~changed)
    assert plain[0].mean() < 0.9, "nothing was hidden"
    assert (plain[1] & ~plain[0]).mean() < 0.01


def seen(score=0.3, semantic=None, masks=True):
    """One detection of the first thing on the right half of 40 x 60, and a class map."""
    return Prediction(
        torch.tensor([[10.0, 30, 30, 60]]),
        torch.tensor([0]),
        torch.tensor([score]),
        torch.full((1, 28, 28), 5.0) if masks else None,
        semantic,
        (40, 60),
    )


def hidden(regions, size=(80, 120)):
    out = np.zeros(size, bool)
    for region in regions:
        (y, x), (h, w) = region.corner, region.mask.shape
        out[y : y + h, x : x + w] |= region.mask
    return out


EMPTY = PanopticResult(np.zeros((80, 120), np.int32), [])


def test_objects_that_the_map_omits_are_hidden():
    """Classes: 0 is stuff, 1 and 2 are things; the image is twice as large as the network's input."""
    found = hidden(private_regions(EMPTY, seen(), [1], 1))
    assert found[30:50, 70:110].all()
    assert not found[:, :55].any()
    assert not hidden(private_regions(EMPTY, seen(), [2], 1)).any()
    assert not hidden(private_regions(EMPTY, seen(0.1), [1], 1)).any()
    assert hidden(private_regions(EMPTY, seen(0.1), [1], 1, least_score=0.05)).any()
    box = np.zeros((80, 120), bool)
    box[20:60, 60:120] = True
    assert np.array_equal(hidden(private_regions(EMPTY, seen(masks=False), [1], 1)), box)

    semantic = torch.zeros((40, 60), dtype=torch.int64)
    semantic[2:4, 5:9] = 2  # far too small for the panoptic map
    found = hidden(private_regions(EMPTY, seen(semantic=semantic), [2], 1))
    assert found[4:8, 10:18].all()
    assert found.sum() == 4 * 8
    assert not hidden(private_regions(EMPTY, None, [1, 2], 1)).any()
