"""Resumed runs: finished images are kept, new or changed ones are processed, folders of other runs are refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from seamseg.ops import fused

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "photos").mkdir()
    for name in "abc":
        Image.new("RGB", (48, 32), (90, 150, 220)).save(tmp_path / "photos" / f"{name}.png")
    return tmp_path / "photos"


def test_photos_without_instances_are_done(micro_run, photos, tmp_path, seamseg_main, capsys):
    """The lists of their instances are empty files; another empty file is a lost one."""
    out = tmp_path / "out"
    words = ("predict", micro_run, photos, out, "--device", "cpu", "--workers", "0")
    options = ("--format", "vistas", "--set", "roi.score_threshold=1")
    assert seamseg_main(*words, *options) == 0
    assert (out / "vistas" / "instances" / "a.txt").read_bytes() == b""
    assert "nothing was found" not in capsys.readouterr().err  # stuff was
    assert seamseg_main(*words, *options) == 0
    assert "0 images in" in (text := capsys.readouterr().err)
    assert "nothing was found" not in text
    assert "3 were there already" in text
    (out / "vistas" / "labels" / "b.png").write_bytes(b"")
    assert seamseg_main(*words, *options) == 0
    assert "2 were there already" in capsys.readouterr().err


def test_an_image_that_fails_now_loses_its_earlier_outputs(micro_run, photos, tmp_path, seamseg_main, capsys):
    out = tmp_path / "out"
    words = ("predict", micro_run, photos, out, "--device", "cpu", "--workers", "0", "--format", "overlay")
    assert seamseg_main(*words) == 0
    (made,) = (path for path in out.rglob("b.*"))
    (photos / "b.png").write_bytes(b"no image")
    capsys.readouterr()
    assert seamseg_main(*words) == 1
    assert "0 images in" in (text := capsys.readouterr().err)
    assert ", 2 were there already, 1 failed" in text
    assert not made.exists()
    assert len(list(out.rglob("a.*"))) == 1


def test_nothing_found(micro_run, photos, tmp_path, seamseg_main, capsys):
    words = ("predict", micro_run, photos, tmp_path / "out", "--device", "cpu", "--workers", "0")
    assert seamseg_main(*words, "--score-threshold", "1", "--min-area", "1000000") == 0
    assert capsys.readouterr().err.endswith("nothing was found in 3 of 3 images; --score-threshold is 1\n")


def test_the_manifest_has_the_actual_precision(micro_run, photos, tmp_path, seamseg_main, monkeypatch, capsys):
    words = ("predict", micro_run, photos, tmp_path / "out", "--device", "cpu", "--workers", "0", "--quiet")
    monkeypatch.setattr(fused, "bf16_is_fast", lambda *_: False)
    assert seamseg_main(*words, "--precision", "auto") == 0
    assert seamseg_main(*words, "--precision", "fp32") == 0
    monkeypatch.setattr(fused, "bf16_is_fast", lambda *_: True)
    assert seamseg_main(*words, "--precision", "auto") == 2
    assert "precision float32 (now bfloat16)" in capsys.readouterr().err


def test_content_of_a_manifest_line(micro_run, photos, tmp_path, seamseg_main):
    words = ("predict", micro_run, photos, tmp_path / "out", "--device", "cpu", "--workers", "0", "--quiet")
    assert seamseg_main(*words, "--format", "coco,overlay", "--min-area", "0") == 0
    head, first, *_ = map(json.loads, (tmp_path / "out" / "predictions.jsonl").read_text().splitlines())
    assert len(head["sha256"]) == 64
    assert head["settings"]["format"] == "coco,overlay"
    assert first["source"] == str(photos / "a.png")
    assert first["relative"] == "a.png"
    assert first["status"] == "ok"
    assert (first["height"], first["width"]) == (32, 48)
    assert first["seconds"] > 0
    assert first["outputs"] == ["panoptic/a.png", "a.jpg"]
    assert all((tmp_path / "out" / output).is_file() for output in first["outputs"])
    entry = first["records"][0]["annotation"]
    assert sum(first["segments"].values()) == len(entry["segments_info"]) > 0
    assert first["records"][1] is None


@pytest.mark.slow
@pytest.mark.distributed
def test_killed_and_resumed(tmp_path):
    """A small version of tests/predicting/soak_predict.py, in two processes."""
    root = Path(__file__).parents[2]
    words = [sys.executable, root / "tests" / "predict" / "soak_predict.py", "--images", 60, "--kills", 2]
    words += ["--seed", "1"]
    environment = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(tmp_path)}
    done = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every image once" in done.stdout
    assert "kills: 2" in done.stdout
