"""Resumed runs: finished photos are kept, new or changed ones are processed, folders of other runs are refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from seamseg.config import loader
from seamseg.formats import coco_writer
from seamseg.models import folding

pytestmark = pytest.mark.usefixtures("narrow")


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "photos").mkdir()
    for name in "abc":
        Image.new("RGB", (48, 32), (90, 150, 220)).save(tmp_path / "photos" / f"{name}.png")
    return tmp_path / "photos"


@pytest.fixture
def written(monkeypatch):
    """The names of the PNGs that are written."""
    names, write = [], coco_writer.write_id_png
    monkeypatch.setattr(coco_writer, "write_id_png", lambda path, *ids: (names.append(path.stem), write(path, *ids)))
    return names


@pytest.mark.parametrize("remote", [False, True])
def test_photos_without_instances_are_done(micro_run, photos, tmp_path, seamseg_main, capsys, remote):
    """The lists of their instances are empty files; another empty file is a lost one."""
    out = tmp_path / "out"
    words = ("predict", micro_run, photos, f"file://{out}" if remote else out, "--device", "cpu", "--workers", "0")
    options = ("--format", "vistas", "--set", "roi.score_threshold=1")
    assert seamseg_main(*words, *options) == 0
    assert (out / "vistas" / "instances" / "a.txt").read_bytes() == b""
    assert "nothing was found" not in capsys.readouterr().err  # stuff was
    assert seamseg_main(*words, *options) == 0
    assert "0 photos in" in (text := capsys.readouterr().err)
    assert "nothing was found" not in text
    assert "3 were there already" in text
    (out / "vistas" / "labels" / "b.png").write_bytes(b"")
    assert seamseg_main(*words, *options) == 0
    assert "2 were there already" in capsys.readouterr().err


def test_nothing_found(micro_run, photos, tmp_path, seamseg_main, capsys):
    words = ("predict", micro_run, photos, tmp_path / "out", "--device", "cpu", "--workers", "0")
    assert seamseg_main(*words, "--score-threshold", "1", "--min-area", "1000000") == 0
    assert capsys.readouterr().err.endswith("nothing was found in 3 of 3 photos; --score-threshold is 1\n")


def test_missing_new_or_changed_photos_are_processed(micro_run, photos, tmp_path, seamseg_main, written, capsys):
    out = tmp_path / "out"

    def again(*words):
        del written[:]
        options = ("--device", "cpu", "--workers", "0", "--format", "coco", *words)
        assert seamseg_main("predict", micro_run, photos, out, *options) == 0
        ids = [i["id"] for i in json.loads((out / "panoptic.json").read_text())["images"]]
        return sorted(written), ids

    assert again("--limit", "2") == (["a", "b"], ["a", "b"])
    assert again() == (["c"], ["a", "b", "c"])
    assert "1 photo in" in (text := capsys.readouterr().err)
    assert "2 were there already" in text
    everything = (out / "panoptic.json").read_bytes()
    (out / "panoptic.json").unlink()
    assert again() == ([], ["a", "b", "c"])
    assert (out / "panoptic.json").read_bytes() == everything
    (out / "panoptic" / "b.png").unlink()
    assert again()[0] == ["b"]
    os.utime(photos / "a.png", ns=(1, 1))
    assert again()[0] == ["a"]
    assert again("--restart")[0] == ["a", "b", "c"]


def test_other_settings_are_refused(micro_run, photos, tmp_path, seamseg_main, capsys):
    words = ("predict", micro_run, photos, tmp_path / "out", "--device", "cpu", "--workers", "0", "--quiet")
    assert seamseg_main(*words, "--format", "coco") == 0
    assert seamseg_main(*words, "--format", "coco", "--min-area", "5") == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert "min_area None (now 5)" in error
    assert "--restart" in error
    # how the work is done does not matter
    assert seamseg_main(*words, "--format", "coco,coco", "--batch-size", "2") == 0
    assert seamseg_main(*words, "--format", "coco", "--min-area", "5", "--restart") == 0


def test_a_changed_config_of_the_run_folder_is_refused(micro_run, photos, tmp_path, seamseg_main, capsys):
    model = shutil.copytree(micro_run, tmp_path / "run")
    words = ("predict", model, photos, tmp_path / "out", "--device", "cpu", "--workers", "0", "--quiet")
    assert seamseg_main(*words) == 0
    config = model / "config.ini"
    config.write_text(config.read_text() + "\n; a remark\n")
    assert seamseg_main(*words) == 2
    assert "config config.ini " in capsys.readouterr().err


def test_the_name_of_a_packaged_configuration(micro_run, photos, tmp_path, seamseg_main, monkeypatch):
    monkeypatch.setattr(loader, "packaged", lambda name: micro_run / "config.ini" if name == "micro" else None)
    words = ("predict", micro_run, photos, tmp_path / "out", "--device", "cpu", "--workers", "0", "--quiet")
    assert seamseg_main(*words, "--config", "micro") == 0
    head = json.loads((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()[0])
    assert head["settings"]["config"] == "micro"


def test_the_manifest_has_the_actual_precision(micro_run, photos, tmp_path, seamseg_main, monkeypatch, capsys):
    words = ("predict", micro_run, photos, tmp_path / "out", "--device", "cpu", "--workers", "0", "--quiet")
    monkeypatch.setattr(folding, "bf16_is_fast", lambda *_: False)
    assert seamseg_main(*words, "--precision", "auto") == 0
    assert seamseg_main(*words, "--precision", "fp32") == 0
    monkeypatch.setattr(folding, "bf16_is_fast", lambda *_: True)
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
@pytest.mark.parametrize(
    ("out", "images", "kills"),
    [
        ("folder", 30, 1),
        pytest.param("folder", 60, 2, marks=pytest.mark.slow),
        pytest.param("shards", 60, 2, marks=pytest.mark.slow),
        pytest.param("url", 60, 2, marks=pytest.mark.slow),
    ],
)
def test_killed_and_resumed(tmp_path, out, images, kills):
    """A small version of benchmarks/soak_predict.py, in two processes."""
    root = Path(__file__).parents[2]
    words = [sys.executable, root / "benchmarks" / "soak_predict.py", "--images", images, "--kills", kills]
    words += ["--seed", "1", "--out", out]
    environment = {**os.environ, "PYTHONPATH": str(root), "TMPDIR": str(tmp_path)}
    done = subprocess.run(list(map(str, words)), env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every photo once" in done.stdout
    assert f"kills: {kills}" in done.stdout
