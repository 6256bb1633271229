"""Resumed runs: finished images are kept, new or changed ones are processed, folders of other runs are refused."""

import gc
import json
import os
import re
import signal

import pytest
from PIL import Image

from seamseg.inference.predictor import Predictor
from seamseg.ops import fused

pytestmark = pytest.mark.usefixtures("narrow")

CPU = ("--device", "cpu", "--workers", "0")
NAMES = ["a", "b", "sub/c.v1", "sub/d"]


@pytest.fixture
def photos(tmp_path):
    for number, name in enumerate(NAMES):
        path = tmp_path / "photos" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 32), (90 + 20 * number, 150, 220)).save(path)
    return tmp_path / "photos"


def content_of_folder(out):
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}


def lines(data):
    return [json.loads(line) for line in data.splitlines()[1:]]


def test_missing_new_or_changed_photos_are_processed(micro_run, photos, tmp_path, seamseg_main, capsys):
    words = (*CPU, "--format", "coco")

    def again(*more):
        assert seamseg_main("predict", micro_run, photos, tmp_path / "out", *words, *more) == 0
        found = content_of_folder(tmp_path / "out")
        names = [line["name"] for line in lines(found["predictions.jsonl"])]
        assert [i["id"] for i in json.loads(found["panoptic.json"])["images"]] == names
        assert not [name for name in found if "partial" in name]
        return int(re.findall(r"(\d+) images? in ", capsys.readouterr().err)[0]), names

    assert again("--limit", "2") == (2, NAMES[:2])
    assert again() == (2, NAMES)
    assert again() == (0, NAMES)
    Image.new("RGB", (48, 32), (1, 2, 3)).save(photos / "a.png")
    assert again() == (1, NAMES)
    (tmp_path / "out" / "panoptic" / "sub" / "d.png").unlink()
    assert again() == (1, NAMES)
    assert seamseg_main("predict", micro_run, photos, tmp_path / "out", *words, "--min-area", "5") == 2
    assert "min_area None (now 5)" in capsys.readouterr().err
    assert again("--min-area", "5", "--restart") == (4, NAMES)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_run_gracefully(micro_run, photos, tmp_path, seamseg_main, capsys, monkeypatch, number, code):
    see, seen = Predictor.start, []

    def signalled(self, images):
        seen.append(images)
        if len(seen) == 3:
            os.kill(os.getpid(), number)
        return see(self, images)

    monkeypatch.setattr(Predictor, "start", signalled)
    words = ("predict", micro_run, photos, tmp_path / "out", *CPU, "--quiet")
    # Python ignores what a handler raises within a callback of the garbage collector, and Hypothesis has one
    gc.disable()
    try:
        assert seamseg_main(*words) == code
    finally:
        gc.enable()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "seamseg predict: interrupted; re-run the same command to resume"
    # the second may have been in the network only
    written = len(lines((tmp_path / "out" / "predictions.jsonl").read_bytes()))
    assert written in (1, 2)
    done = len(seen)
    assert seamseg_main(*words) == 0
    assert len(seen) - done == len(NAMES) - written


def test_an_image_that_fails_now_loses_its_earlier_outputs(micro_run, photos, tmp_path, seamseg_main, capsys):
    out = tmp_path / "out"
    words = ("predict", micro_run, photos, out, *CPU, "--format", "overlay")
    assert seamseg_main(*words) == 0
    (made,) = (path for path in out.rglob("b.*"))
    (photos / "b.png").write_bytes(b"no image")
    capsys.readouterr()
    assert seamseg_main(*words) == 1
    assert "0 images in" in (text := capsys.readouterr().err)
    assert ", 3 were there already, 1 failed" in text
    assert not made.exists()
    assert len(list(out.rglob("a.*"))) == 1


def test_nothing_found(micro_run, photos, tmp_path, seamseg_main, capsys):
    words = ("predict", micro_run, photos, tmp_path / "out", *CPU)
    assert seamseg_main(*words, "--score-threshold", "1", "--min-area", "1000000") == 0
    assert capsys.readouterr().err.endswith("nothing was found in 4 of 4 images; --score-threshold is 1\n")


def test_the_manifest_has_the_actual_precision(micro_run, photos, tmp_path, seamseg_main, monkeypatch, capsys):
    words = ("predict", micro_run, photos, tmp_path / "out", *CPU, "--quiet")
    monkeypatch.setattr(fused, "bf16_is_fast", lambda *_: False)
    assert seamseg_main(*words, "--precision", "auto") == 0
    assert seamseg_main(*words, "--precision", "fp32") == 0
    monkeypatch.setattr(fused, "bf16_is_fast", lambda *_: True)
    assert seamseg_main(*words, "--precision", "auto") == 2
    assert "precision float32 (now bfloat16)" in capsys.readouterr().err
