"""The summary of a training in a report."""

import json

import pytest
from support.browsers import blocks

from seamseg.cli.main import main
from seamseg.maps.report.summary import summarise_training as summarise

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
