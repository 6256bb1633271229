"""Two processes (gloo): divided batches, the same weights, every validation image counted once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.classes import make_class_folders, write_config
from support.processes import launch

from seamseg.contrib.classification.train import train_classifier
from seamseg.contrib.classification.validate import ClassifierScores, validate_classifier
from seamseg.training.run import TrainingOptions

pytestmark = pytest.mark.distributed


def score(folder: Path, config: Path) -> ClassifierScores:
    return validate_classifier(config, folder / "run" / "checkpoint.pth.tar", folder / "data", device="cpu")


def work(rank: int, join: Callable[[], None], folder: Path, config: Path) -> None:
    """Train, then validate, in each process."""
    join()
    overrides = ("optimizer.schedule.epochs=1",)
    options = TrainingOptions(config, folder / "data", folder / "run", overrides=overrides, device="cpu")
    trained = train_classifier(options).validation
    join()
    scores = score(folder, config)
    (folder / f"{rank}.json").write_text(json.dumps([s.to_json() for s in (trained, scores) if s is not None]))


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    # four validation images a class: 6 of the 12 in each process, in batches of 2
    make_class_folders(tmp_path / "data", train=3, val=4)
    config = write_config(tmp_path / "c.json", network={"bn_mode": "sync"})
    run = tmp_path / "run"
    launch(work, 2, tmp_path, config)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    names = ("top1", "top5", "loss", "n_images")
    (trained, scored), others = found[0], found[1]
    assert [{n: s[n] for n in names} for s in others] == [{n: s[n] for n in names} for s in (trained, scored)]
    assert trained["n_images"] == scored["n_images"] == 12
    alone = score(tmp_path, config)
    assert scored["top1"] == alone.top1
    assert scored["loss"] == pytest.approx(alone.loss, abs=1e-5)
    assert {path.name for path in run.glob("training_*.log")} == {"training_0.log", "training_1.log"}
    assert "batch 2 x 2 processes" in (run / "training_0.log").read_text()
    # 9 images in batches of 2: 5 batches, of which one is used by both processes
    assert "[3/3]" in (run / "training_1.log").read_text()
    assert torch.load(run / "checkpoint.pth.tar", weights_only=True)["epoch"] == 1
