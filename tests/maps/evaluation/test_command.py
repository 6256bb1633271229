"""`seamseg evaluate --gt --pred`: the table, the JSON, and one line with exit code 2 for bad usage."""

from __future__ import annotations

import json

import numpy as np
import pytest

from seamseg.cli.main import main
from seamseg.maps.formats.id_png import write_id_png

CATEGORIES = [{"id": 1, "name": "road", "isthing": 0}, {"id": 2, "name": "car", "isthing": 1}]


@pytest.fixture
def files(tmp_path):
    for name, ids in (("gt", [[1, 1, 1, 2]]), ("pred", [[1, 1, 2, 2]])):
        write_id_png(tmp_path / name / "a.png", np.array(ids))
        segments = [{"id": i, "category_id": i, "iscrowd": 0, "area": ids[0].count(i)} for i in (1, 2)]
        annotation = {"image_id": "a", "file_name": "a.png", "segments_info": segments}
        (tmp_path / f"{name}.json").write_text(json.dumps({"annotations": [annotation], "categories": CATEGORIES}))
    return str(tmp_path / "gt.json"), str(tmp_path / "pred.json")


def test_table_and_json(files, tmp_path, capsys):
    out = tmp_path / "results" / "metrics.json"
    assert main(["evaluate", "--gt", files[0], "--pred", files[1], "--json", str(out), "--quiet"]) == 0
    content = json.loads(out.read_text())
    # road matches with IoU 2/3; the car's IoU is one half, which is not enough
    assert content["PQ"] == pytest.approx(1 / 3)
    assert content["PQ_things"] == 0.0
    assert content["PQ_stuff"] == pytest.approx(2 / 3)
    assert content["mIoU"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    captured = capsys.readouterr()
    assert "33.33" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to score"),
        (["--gt", "GT"], "--gt and --pred must be given together"),
        (["model.zip", "data", "--gt", "GT", "--pred", "PRED"], "are mutually exclusive"),
        (["--gt", "GT", "--pred", "PRED", "--tta", "flip"], "--tta and --gt / --pred are mutually exclusive"),
        (["--gt", "GT", "--pred", "PRED", "--protocol", "cityscapes", "--precision", "bf16"], "--precision"),
        (["model.zip", "data", "--workers", "2"], "--workers"),
        (["--gt", "GT", "--pred", "PRED", "--workers", "0"], "at least 1"),
        (["model.zip", "data", "--photos", "p"], "--photos"),
        (["--gt", "GT", "--pred", "PRED", "--out", "GT"], "must be a folder"),
        (["--gt", "GT", "--pred", "PRED", "--out", "o", "--legacy-metrics"], "are mutually exclusive"),
        (["--gt", "missing.json", "--pred", "PRED"], "missing.json: no such file"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(files, capsys, arguments, words):
    replaced = [{"GT": files[0], "PRED": files[1]}.get(a, a) for a in arguments]
    assert main(["evaluate", *replaced]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert "\n" not in error
