"""The cells of the notebooks run, in order, on small models."""

import json
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_cells(name):
    """Run the cells of a notebook; return its variables."""
    content = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    cells = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
    assert not any(cell.get("outputs") for cell in content["cells"]), "store it without outputs"
    names = {}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"{name} cell {number}", "exec"), names)
    return names


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_own_photos(micro_run, micro, tmp_path, monkeypatch, capsys):
    for name, value in (("MODEL", micro_run), ("PHOTOS", micro / "img"), ("WORK", tmp_path / "work")):
        monkeypatch.setenv(f"SEAMSEG_{name}", str(value))
    monkeypatch.delenv("SEAMSEG_TASKS", raising=False)
    run_cells("own_photos")
    assert "stuff" in capsys.readouterr().out
    assert len(list((tmp_path / "work" / "out").glob("*.jpg"))) == 7
    metrics = json.loads((tmp_path / "work" / "metrics.json").read_text())
    # the predictions are the ground truth
    assert metrics["PQ"] == pytest.approx(1)
    report = (tmp_path / "work" / "evaluation" / "report.html").read_text(encoding="utf-8")
    assert "train0" in report


@pytest.mark.slow
@pytest.mark.usefixtures("narrow")
def test_optuna_search(micro_config, micro, tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna", reason="`pip install optuna` for this test")
    config = tmp_path / "five.ini"
    config.write_text(micro_config.read_text().replace("epochs = 2", "epochs = 5"))
    values = {"CONFIG": config, "DATA": micro, "RUNS": tmp_path / "runs", "TRIALS": 10}
    for name, value in values.items():
        monkeypatch.setenv(f"SEAMSEG_{name}", str(value))
    study = run_cells("optuna_search")["study"]
    assert len(study.trials) == 10
    for trial in study.trials:
        log = (tmp_path / "runs" / str(trial.number) / "training.log").read_text()
        assert ("pruned" in log) == (trial.state.name == "PRUNED")
        assert (max(trial.intermediate_values) == 5) == (trial.state.name == "COMPLETE")
    assert "PRUNED" in {trial.state.name for trial in study.trials}
    assert study.best_trial.value == max(t.value for t in study.trials if t.value is not None)
    assert "runs/0: lr" in capsys.readouterr().out.replace(str(tmp_path) + "/", "")
