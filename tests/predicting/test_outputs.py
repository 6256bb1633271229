"""The outputs of `predict`: each image once, whatever fails."""

import gc
import json
import os
import re
import signal

import pytest
from PIL import Image

from seamseg.inference.predictor import Predictor

pytestmark = pytest.mark.usefixtures("narrow")
CPU = ("--device", "cpu", "--workers", "0", "--quiet")
NAMES = ["a", "b.v1", "sub/a", "sub/c"]


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
    words = ("--device", "cpu", "--workers", "0", "--format", "coco")

    def again(*more):
        assert seamseg_main("predict", micro_run, photos, tmp_path / "out", *words, *more) == 0
        found = content_of_folder(tmp_path / "out")
        names = [line["name"] for line in lines(found["predictions.jsonl"])]
        assert [i["id"] for i in json.loads(found["panoptic.json"])["images"]] == names
        assert not [name for name in found if "rank" in name or "partial" in name]
        return int(re.findall(r"(\d+) images? in ", capsys.readouterr().err)[0]), names

    assert again("--limit", "2") == (2, NAMES[:2])
    assert again() == (2, NAMES)
    assert again() == (0, NAMES)
    Image.new("RGB", (48, 32), (1, 2, 3)).save(photos / "a.png")
    assert again() == (1, NAMES)
    (tmp_path / "out" / "panoptic" / "sub" / "a.png").unlink()
    assert again() == (1, NAMES)
    assert seamseg_main("predict", micro_run, photos, tmp_path / "out", *words, "--min-area", "5") == 2
    assert "min_area None (now 5)" in capsys.readouterr().err
    assert again("--min-area", "5", "--restart") == (4, NAMES)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_run_gracefully(micro_run, photos, tmp_path, seamseg_main, capsys, monkeypatch, number, code):
    see, seen = Predictor.raw, []

    def signalled(self, images):
        seen.append(images)
        if len(seen) == 3:
            os.kill(os.getpid(), number)
        return see(self, images)

    monkeypatch.setattr(Predictor, "raw", signalled)
    words = ("predict", micro_run, photos, tmp_path / "out", *CPU)
    # Python ignores what a handler raises within a callback of the garbage collector, and Hypothesis has one
    gc.disable()
    try:
        assert seamseg_main(*words) == code
    finally:
        gc.enable()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "seamseg predict: interrupted; re-run the same command to resume"
    # the second may have been in the network only
    written = len(lines((tmp_path / "out" / "predictions.rank0.jsonl").read_bytes()))
    assert written in (1, 2)
    done = len(seen)
    assert seamseg_main(*words) == 0
    assert len(seen) - done == len(NAMES) - written


def test_unreadable_photos_have_a_line_and_are_retried(micro_run, photos, tmp_path, seamseg_main):
    (photos / "a.png").write_bytes(b"no image")
    words = ("predict", micro_run, photos, tmp_path / "out", *CPU)
    for _ in range(2):
        assert seamseg_main(*words) == 1
        found = lines((tmp_path / "out" / "predictions.jsonl").read_bytes())
        assert [line["status"] for line in found] == ["unreadable", "ok", "ok", "ok"]
