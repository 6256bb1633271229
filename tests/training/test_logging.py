"""Outputs of a training: log, metrics, and TensorBoard files."""

import json
import re

import pytest
from PIL import Image
from support.micro import train

from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.maps.metrics_file import MetricsFile, read_metrics

pytestmark = pytest.mark.usefixtures("narrow")


def test_metrics_of_a_run(micro_run):
    lines = read_metrics(micro_run)
    assert [(m["kind"], m["step"], m["epoch"]) for m in lines] == [
        ("train", 1, 0), ("train", 2, 0), ("validation", 2, 0), ("train", 3, 1), ("train", 4, 1), ("validation", 4, 1),
    ]  # fmt: skip
    first = lines[0]
    assert first["loss"] == pytest.approx(sum(v for k, v in first.items() if k.endswith("_loss")), rel=1e-5)
    assert first["images_per_second"] == pytest.approx(2 / first["step_seconds"])
    assert 0 <= first["data_share"] <= 1
    assert first["grad_norm"] > 0
    assert first["skipped"] == 0
    assert first["lr_other"] == pytest.approx(0.005 * 0.6665)
    assert 0.05 < first["rss_peak_gib"] < 64
    last = lines[-1]
    assert load_snapshot(micro_run / "model_last.pth.tar").training_meta["last_score"] == last["PQ"]
    assert set(last["per_class"]) == {"sky", "road", "car"}
    assert last["n_images"] == 3
    assert last["seconds"] > 0
    assert "box" not in last


def test_the_numbers_in_tensorboard_and_in_the_log(micro_run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(micro_run), {"scalars": 0, "images": 0})
    events.Reload()
    with Image.open(micro_run / "validation" / "0_target_prediction.jpg") as image:
        assert image.size == (2 * 96, 64)
    written = {m["step"]: m for m in read_metrics(micro_run) if m["kind"] == "train"}
    for event in events.Scalars("train/grad_norm"):
        assert event.value == pytest.approx(written[event.step]["grad_norm"])
    log = (micro_run / "training.log").read_text()
    cars = [m["per_class"]["car"] for m in read_metrics(micro_run) if m["kind"] == "validation"]
    assert log.count("no detection is above [general] score_threshold yet") == sum(not c["TP"] + c["FP"] for c in cars)
    assert re.search(r"loss \d+\.\d{4}  grad \S+  \d+\.\d\d s/step \(data .*\)  \S+ images/s  \S+ GiB  0:0", log)


def test_steps_between_the_lines_are_shown_on_the_console(micro, micro_config, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("seamseg.training.logging.reporter.LINE_SECONDS", 0.0)
    train(micro_config, micro, tmp_path, "general.log_interval=3", "dataloader.val_set=")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch ")]
    shown = [line for line in lines if "loss" not in line]
    pace = r"\d+\.\d\d s/step \(data \d+\.\d\d\)  \d+\.\d images/s  \d+\.\d GiB"
    assert len(shown) == 2
    assert re.fullmatch(rf"epoch 1/2 \[1/2\]  {pace}", shown[0])
    assert re.fullmatch(rf"epoch 2/2 \[1/2\]  {pace}  0:00:\d\d left", shown[1])
    log = (tmp_path / "training.log").read_text().splitlines()
    assert ["loss" in line for line in log if "epoch " in line and "s/step" in line] == [True, True]


# --- metrics.jsonl: complete lines, no step twice after a resume, reading after a kill


def written(folder, *lines, resumed=None):
    metrics = MetricsFile(folder, resumed)
    for kind, step, epoch in lines:
        metrics.write(kind, step, epoch, {"loss": step / 2})
    metrics.close()
    return folder / "metrics.jsonl"


@pytest.mark.parametrize("tail", [b'{"kind": "tra', b"\xff\xfe"])
def test_incomplete_line_is_ignored(tmp_path, tail):
    path = written(tmp_path, ("train", 1, 0), ("train", 2, 0))
    path.write_bytes(path.read_bytes() + tail)
    assert [m["step"] for m in read_metrics(path)] == [1, 2]
    written(tmp_path, ("train", 3, 0), resumed=(2, -1))
    assert [m["step"] for m in read_metrics(path)] == [1, 2, 3]
    assert all(json.loads(line) for line in path.read_text().splitlines())
    MetricsFile(tmp_path / "new").write("train", 1, 0, {"loss": float("inf"), "per_class": {"car": float("nan")}})
    (line,) = read_metrics(tmp_path / "new")
    assert (line["loss"], line["per_class"]) == (None, {"car": None})


def test_resumed_run_drops_lines_of_repeated_steps(tmp_path):
    lines = [("train", 2, 0), ("validation", 2, 0), ("train", 4, 1), ("validation", 4, 1), ("train", 5, 2)]
    assert len(read_metrics(written(tmp_path, *lines))) == 5
    # stopped within the second epoch, after its last step, but before its validation counted
    path = written(tmp_path, ("validation", 4, 1), resumed=(4, 0))
    kept = [("train", 2), ("validation", 2), ("train", 4), ("validation", 4)]
    assert [(m["kind"], m["step"]) for m in read_metrics(path)] == kept
    assert [m["step"] for m in read_metrics(written(tmp_path, ("train", 1, 0)))] == [1], "a new run starts a new file"
