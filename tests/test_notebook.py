"""The cells of a notebook run, in order, on a small model."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "own_photos.ipynb"


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_own_photos(micro_run, micro, tmp_path, monkeypatch, capsys):
    for name, value in (("MODEL", micro_run), ("PHOTOS", micro / "img"), ("WORK", tmp_path / "work")):
        monkeypatch.setenv(f"SEAMSEG_{name}", str(value))
    monkeypatch.delenv("SEAMSEG_TASKS", raising=False)
    cells, names = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"], {}
    assert not any(cell.get("outputs") for cell in cells), "store it without outputs"
    for number, cell in enumerate(cell for cell in cells if cell["cell_type"] == "code"):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert "stuff" in capsys.readouterr().out
    assert len(list((tmp_path / "work" / "out").glob("*.jpg"))) == 7
    metrics = json.loads((tmp_path / "work" / "metrics.json").read_text())
    # the predictions are the ground truth
    assert metrics["PQ"] == pytest.approx(1)
    report = (tmp_path / "work" / "evaluation" / "report.html").read_text(encoding="utf-8")
    assert "train0" in report
