"""Options of `predict`: fewer classes, a preview, test-time augmentation, and anonymisation."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import seamseg
from seamseg.inference.anonymize import private_regions
from seamseg.maps.formats.id_png import read_id_png
from seamseg.maps.panoptic_map import PanopticResult
from seamseg.maps.predictions import Prediction

pytestmark = pytest.mark.usefixtures("narrow")
CPU = ("--device", "cpu", "--workers", "0", "--quiet")


@pytest.fixture
def names(micro_run):
    return seamseg.load(micro_run, device="cpu").metadata.categories


def street(micro):
    return micro / "img" / "val0.png"


def test_classes(micro_run, micro, tmp_path, seamseg_main, names):
    kept = names[1].upper()
    words = ("--classes", kept, "--format", "coco,overlay", "--min-area", "0")
    assert seamseg_main("predict", micro_run, street(micro), tmp_path, *CPU, *words) == 0
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
    assert seamseg_main("predict", micro_run, tmp_path / "a.jpg", out, *CPU, "--anonymize", ",".join(names)) == 0
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
        assert seamseg_main("predict", micro_run, tmp_path / "a.png", tmp_path / out, *CPU, *words, *more) == 0
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
