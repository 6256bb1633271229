"""The cells of the notebook run, in order, on a small model."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "own_photos.ipynb"


@pytest.mark.usefixtures("narrow")
def test_the_cells_run(micro_run, micro, tmp_path, monkeypatch, capsys):
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    cells = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in content["cells"]), "store it without outputs"
    for name, value in (("MODEL", micro_run), ("PHOTOS", micro / "img"), ("WORK", tmp_path / "work")):
        monkeypatch.setenv(f"SEAMSEG_{name}", str(value))
    monkeypatch.delenv("SEAMSEG_TASKS", raising=False)
    names = {}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"cell {number}", "exec"), names)
    assert "stuff" in capsys.readouterr().out
    assert len(list((tmp_path / "work" / "out").glob("*.jpg"))) == 7
    metrics = json.loads((tmp_path / "work" / "metrics.json").read_text())
    # the predictions are the ground truth
    assert metrics["PQ"] == pytest.approx(1)
    report = (tmp_path / "work" / "evaluation" / "report.html").read_text(encoding="utf-8")
    assert "train0" in report
