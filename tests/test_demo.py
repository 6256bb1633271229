"""`seamseg demo` at its smallest: every stage leaves what the next one, and the user, needs; a notebook."""

import json
from pathlib import Path

import pytest

from seamseg.checkpoints.bundle import open_model
from seamseg.cli.main import main

SETTINGS = ["--train", "2", "--val", "2", "--set", "scheduler.epochs=1", "--set", "dataloader.train_batch_size=1"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "run"
    assert main(["demo", "--out", str(out), "--device", "cpu", "--quiet", *SETTINGS]) == 0
    return out


def test_leaves_a_model_numbers_and_a_page(demo):
    metrics = json.loads((demo / "metrics.json").read_text())
    assert {"PQ", "SQ", "RQ", "PQ_things", "PQ_stuff", "PQ_dagger", "mIoU", "per_class"} <= metrics.keys()
    assert metrics["n_images"] == 2
    assert 0 <= metrics["PQ"] <= 1
    assert open_model(demo).metadata.num_thing == 8
    page = (demo / "report.html").read_text()
    assert "<title>Toy city: held-out scenes</title>" in page
    assert page.count('class="image"') == 2
    assert '"without_photo":0' in page
    assert len(list((demo / "predictions").rglob("*.jpg"))) == 2
    assert (demo / "predictions" / "panoptic.json").is_file()
    head = json.loads((demo / "predictions" / "predictions.jsonl").read_text().partition("\n")[0])
    assert head["settings"]["format"] == "overlay,coco", "as the command writes it"


def test_goes_on_where_it_stopped_in_a_folder_of_its_own(demo, tmp_path, capsys):
    before = (demo / "model_last.pth.tar").stat().st_mtime_ns
    (demo / "report.html").unlink()
    assert main(["demo", "--out", str(demo), "--device", "cpu", "--quiet", *SETTINGS]) == 0
    assert (demo / "model_last.pth.tar").stat().st_mtime_ns == before
    assert (demo / "report.html").is_file()
    assert main(["demo", "--out", str(demo), "--device", "cpu", "--seed", "7", *SETTINGS]) == 2
    assert "holds files of other settings (demo.json: seed 0 (now 7));" in capsys.readouterr().err
    (tmp_path / "config.ini").write_text("")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"seamseg demo: {tmp_path}: holds files, but no demo; choose another folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["config.ini"]


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
