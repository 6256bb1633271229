"""Two processes on one machine (gloo): no hang whoever has things, exact validation, shared prediction."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch

from engine.conftest import make_dataset, narrow_body, write_config
from engine.processes import launch
from seamseg.cli.main import main
from seamseg.engine.snapshot import load_snapshot
from seamseg.engine.train.run import TrainingOptions, run_training
from seamseg.engine.train.trainer import Trainer
from seamseg.engine.validate import evaluate_model

pytestmark = pytest.mark.distributed

RUNS = ("mixed", "resumed", "empty", "negatives", "plain", "evaluated")


def work(rank: int, join: Callable[[], None], folder: Path) -> None:
    """Everything that two processes do, one thing after the other: starting them takes longer than all of it."""
    save = Trainer._save

    def watched(trainer, is_best=False):
        save(trainer, is_best)
        if rank == 0:
            trainer._saver.wait()
        tensors = [*trainer.net.state_dict().values()]
        digest = hashlib.sha256(b"".join(t.contiguous().numpy().tobytes() for t in tensors)).hexdigest()
        with open(folder / f"{trainer.run.path.name}.{rank}.sha", "a") as file:
            file.write(digest + "\n")
        if rank == 0 and trainer.run.path.name == "mixed" and trainer.progress.epoch == 0:
            shutil.copy(trainer.run.last, folder / "half.tar")

    def train(name, *overrides, data="data", config="sync.ini", **options):
        join()
        overrides = ("dataloader.train_batch_size=1", "dataloader.val_batch_size=1", *overrides)
        run = TrainingOptions(
            folder / config, folder / data, folder / name, overrides=overrides, device="cpu", **options
        )
        scores = run_training(run)
        (folder / f"{name}.{rank}.json").write_text(json.dumps(scores.to_json()))

    with narrow_body(), mock.patch.object(Trainer, "_save", watched):
        train("mixed")
        train("resumed", resume=folder / "half.tar")
        train("empty", data="empty")
        train("negatives", "roi.sample_empty_images=yes")
        train("plain", config="bn.ini")
        train("evaluated", evaluate=True, resume=folder / "mixed" / "model_last.pth.tar")
        join()
        words = [
            "predict",
            folder / "mixed",
            folder / "photos",
            folder / "out",
            "--format",
            "overlay,coco",
            "--device",
            "cpu",
        ]
        (folder / f"predict.{rank}.code").write_text(str(main([str(w) for w in [*words, "--workers", "0"]])))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which two processes have worked."""
    folder = tmp_path_factory.mktemp("two")
    # one image a process and step: in most steps only one process has things, in some none
    make_dataset(folder / "data", [2, 0, 0, 3, 0], [1, 2, 0])
    make_dataset(folder / "empty", [0, 0, 0], [0])
    write_config(folder / "sync.ini", "syncbn")
    write_config(folder / "bn.ini", "bn")
    (folder / "photos").mkdir()
    for name in ("val0", "val1", "val2"):
        shutil.copy(folder / "data" / "img" / f"{name}.png", folder / "photos")
    (folder / "photos" / "val1.png").write_bytes(b"broken")
    launch(work, 2, folder)
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_both_processes_end_with_the_same_scores(folder, name):
    first, second = (json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(2))
    assert first == second and first["n_images"] == (1 if name == "empty" else 3)


@pytest.mark.parametrize("name", [name for name in RUNS if name != "evaluated"])
def test_both_processes_hold_the_same_network_after_each_epoch(folder, name):
    first, second = ((folder / f"{name}.{rank}.sha").read_text().split() for rank in range(2))
    assert first == second and len(first) == (1 if name == "resumed" else 2)
    assert len(set(first)) == len(first)


def test_a_resumed_run_ends_with_the_same_bits(folder):
    assert (folder / "resumed.0.sha").read_text().split() == (folder / "mixed.0.sha").read_text().split()[1:]
    one, two = (load_snapshot(folder / name / "model_last.pth.tar") for name in ("mixed", "resumed"))
    momentum = [s.state_dict["optimizer"]["state"][0]["momentum_buffer"] for s in (one, two)]
    assert torch.equal(*momentum) and one.training_meta == two.training_meta
    assert one.training_meta["global_step"] == 2 * 3


def test_scores_equal_those_of_one_process(folder):
    with narrow_body():
        alone = evaluate_model(folder / "mixed" / "model_last.pth.tar", folder / "data", device="cpu", quiet=True)
    assert alone.scores.to_json() == json.loads((folder / "evaluated.0.json").read_text())


def test_only_the_first_process_writes_the_run_folder(folder):
    names = sorted(p.name.partition(".tfevents")[0] for p in (folder / "mixed").iterdir())
    assert names == [
        "config.ini",
        "events.out",
        "metadata.bin",
        "model_best.pth.tar",
        "model_last.pth.tar",
        "snapshots",
        "training.log",
    ]
    assert "in 2 processes on the CPU" in (folder / "mixed" / "training.log").read_text()


def test_prediction_is_shared_out_and_merged(folder):
    assert [(folder / f"predict.{rank}.code").read_text() for rank in range(2)] == ["1", "1"]
    assert sorted(p.name for p in (folder / "out").glob("*.jpg")) == ["val0.jpg", "val2.jpg"]
    content = json.loads((folder / "out" / "panoptic.json").read_text())
    assert [i["id"] for i in content["images"]] == ["val0", "val2"]
    assert sorted(p.name for p in (folder / "out" / "panoptic").iterdir()) == ["val0.png", "val2.png"]
