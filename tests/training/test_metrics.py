"""metrics.jsonl: complete lines, no step twice after a resume, reading after a kill."""

import json
import time

import pytest

from seamseg.training.logging.logs import remaining
from seamseg.training.logging.metrics import MetricsFile, read_metrics
from seamseg.utils.errors import InputError


def written(folder, *lines, resumed=None):
    metrics = MetricsFile(folder, resumed)
    for kind, step, epoch in lines:
        metrics.write(kind, step, epoch, {"loss": step / 2})
    metrics.close()
    return folder / "metrics.jsonl"


def test_each_line_is_written_at_once(tmp_path):
    metrics = MetricsFile(tmp_path)
    assert read_metrics(tmp_path) == []
    metrics.write("train", 1, 0, {"loss": 0.5, "grad_norm": float("inf"), "per_class": {"car": float("nan")}})
    (line,) = read_metrics(tmp_path)
    assert abs(line.pop("time") - time.time()) < 600
    assert line == {
        "kind": "train", "step": 1, "epoch": 0, "loss": 0.5, "grad_norm": None, "per_class": {"car": None}
    }  # fmt: skip
    metrics.close()
    metrics.write("train", 2, 0, {})
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1


@pytest.mark.parametrize("tail", [b"", b'{"kind": "tra', b'{"kind": "train", "step": 9}', b"\xff\xfe"])
def test_incomplete_line_is_ignored(tmp_path, tail):
    path = written(tmp_path, ("train", 1, 0), ("train", 2, 0))
    path.write_bytes(path.read_bytes() + tail)
    assert [m["step"] for m in read_metrics(path)] == [1, 2]
    written(tmp_path, ("train", 3, 0), resumed=(2, -1))
    assert [m["step"] for m in read_metrics(path)] == [1, 2, 3]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_resumed_run_drops_lines_of_repeated_steps(tmp_path):
    lines = [("train", 2, 0), ("validation", 2, 0), ("train", 4, 1), ("validation", 4, 1), ("train", 5, 2)]
    assert len(read_metrics(written(tmp_path, *lines))) == 5
    # stopped within the second epoch, after its last step, but before its validation counted
    path = written(tmp_path, ("validation", 4, 1), resumed=(4, 0))
    assert [(m["kind"], m["step"]) for m in read_metrics(path)] == [
        ("train", 2),
        ("validation", 2),
        ("train", 4),
        ("validation", 4),
    ]
    assert [m["step"] for m in read_metrics(written(tmp_path, ("train", 1, 0)))] == [1], "a new run starts a new file"


def test_failed_write_loses_one_line(tmp_path):
    class Full:
        def __init__(self, file):
            self.file, self.room = file, 5

        def write(self, data):
            if self.room is None:
                return self.file.write(data)
            self.file.write(data[: self.room])
            self.room = None
            raise OSError("No space left on device")

        def close(self):
            self.file.close()

    metrics = MetricsFile(tmp_path)
    metrics._file = Full(metrics._file)
    for step in (1, 2, 3):
        metrics.write("train", step, 0, {})
    metrics.close()
    assert [m["step"] for m in read_metrics(tmp_path)] == [2, 3]


def test_no_folder_and_no_file(tmp_path):
    MetricsFile(None).write("train", 1, 0, {})
    with pytest.raises(InputError, match=r"metrics\.jsonl: no such file"):
        read_metrics(tmp_path)


def test_remaining_time():
    assert remaining(59.6) == "0:01:00"
    noon = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))
    assert remaining(3 * 3600 + 60, noon) == "3:01:00 (until 21 Nov 15:01)"
