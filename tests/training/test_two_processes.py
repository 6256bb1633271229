"""Two processes on one machine (gloo): no hang with things in one only, exact validation."""

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.interruptions import spoiled_image
from support.micro import TENSORBOARD, make_dataset, narrow_body, write_config
from support.predictors import RedCars
from support.processes import launch

from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.config import load_config
from seamseg.maps.metrics_file import read_metrics
from seamseg.maps.predictions import Prediction
from seamseg.training.run import TrainingOptions, run_training
from seamseg.training.trainer import Trainer
from seamseg.utils.distributed import World, distributed
from seamseg.utils.errors import SeamsegError
from seamseg.validation.evaluate import evaluate_model
from seamseg.validation.options import EvaluationOptions
from seamseg.validation.validator import Validator

pytestmark = pytest.mark.distributed

AP = ("general.eval_coco=yes", "roi.score_threshold=0.01", "dataloader.val_batch_size=1")


class Eye(RedCars):
    def found(self, image):
        boxes = torch.cat([self.boxes(image), torch.tensor([[20.0, 10.0, 40.0, 36.0]])])
        # equal scores, too: the order of the images decides
        scores = torch.tensor([0.8, 0.5][-len(boxes) :])
        logits = torch.full((len(boxes), 28, 28), 9.0)
        classes = torch.zeros(len(boxes), dtype=torch.long)
        return Prediction(boxes, classes, scores, logits, (~self.red(image)).long(), tuple(image.shape[1:]))


def seen(folder: Path, world: World) -> dict:
    config = load_config(folder / "sync.ini", overrides=AP)
    return Validator.open(folder / "data", "val", config, world, quiet=True)(Eye()).to_json()


@contextmanager
def trainings(rank: int, join: Callable[[], None], folder: Path) -> Iterator[Callable[..., None]]:
    save = Trainer._save

    def watched(trainer, is_best=False):
        save(trainer, is_best)
        if trainer._position is not None:  # before a validation
            return
        if rank == 0:
            trainer.writer.wait()
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
        done = run_training(run)
        (folder / f"{name}.{rank}.json").write_text(json.dumps(done.validation.to_json()))
        (folder / f"{name}.{rank}.best").write_text(str(done.best))

    with narrow_body(), mock.patch.object(Trainer, "_save", watched):
        yield train


def work_more(rank: int, join: Callable[[], None], folder: Path) -> None:
    with trainings(rank, join, folder) as train:
        train("empty", data="empty_data")
        train("negatives", "roi.sample_empty_images=yes")
        train("plain", config="bn.ini")
        train("detection", "general.kind=detection", AP[1])


def work(rank: int, join: Callable[[], None], folder: Path) -> None:
    """Run all cases in the same two processes: starting them takes longer than all cases together."""
    with trainings(rank, join, folder) as train:
        train("mixed", *AP, TENSORBOARD)
        train("resumed", resume=folder / "half.tar")
        train("evaluated", *AP, evaluate=True, resume=folder / "mixed" / "model_last.pth.tar")
        with pytest.raises(SeamsegError) as stopped, spoiled_image("train4", math.nan):
            train("poisoned", config="bn.ini")
        (folder / f"poisoned.{rank}.txt").write_text(str(stopped.value))
        join()
        with distributed("cpu") as world:
            (folder / f"seen2.{rank}.json").write_text(json.dumps(seen(folder, world)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    # one image a process and step: in most steps only one process has things, in some none
    make_dataset(folder / "data", [2, 0, 0, 3, 0], [1, 2, 0])
    make_dataset(folder / "empty_data", [0, 0, 0], [0])
    write_config(folder / "sync.ini", "syncbn")
    write_config(folder / "bn.ini", "bn")
    launch(work, 2, folder, seconds=450)
    return folder


def check_equal(folder, name):
    first, second = (json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(2))
    assert first == second
    best = [(folder / f"{name}.{rank}.best").read_text() for rank in range(2)]
    assert best[0] == best[1]
    assert first["n_images"] == (1 if name == "empty" else 3)
    if name == "evaluated":
        return
    first, second = ((folder / f"{name}.{rank}.sha").read_text().split() for rank in range(2))
    assert first == second
    assert len(first) == (1 if name == "resumed" else 2)
    assert len(set(first)) == len(first)


@pytest.mark.slow
def test_both_processes_have_the_same_scores_and_network_in_rare_cases(folder):
    launch(work_more, 2, folder, seconds=450)
    for name in ("empty", "negatives", "plain", "detection"):
        check_equal(folder, name)


def test_a_resumed_run_ends_with_the_same_bits(folder):
    for name in ("mixed", "resumed", "evaluated"):
        check_equal(folder, name)
    assert (folder / "resumed.0.sha").read_text().split() == (folder / "mixed.0.sha").read_text().split()[1:]
    one, two = (load_snapshot(folder / name / "model_last.pth.tar") for name in ("mixed", "resumed"))
    momentum = [s.state_dict["optimizer"]["state"][0]["momentum_buffer"] for s in (one, two)]
    assert torch.equal(*momentum)
    # the best score is that of the snapshots in each folder
    meta = ("epoch", "global_step", "last_score")
    assert [one.training_meta[key] for key in meta] == [two.training_meta[key] for key in meta]
    assert one.training_meta["global_step"] == 2 * 3


def test_scores_are_the_same_in_one_and_two_processes(folder):
    with narrow_body():
        model = folder / "mixed" / "model_last.pth.tar"
        options = EvaluationOptions(model, folder / "data", "cpu", quiet=True, overrides=AP)
        of_model = evaluate_model(options).to_json()
    of_eye = seen(folder, World())
    assert of_model == json.loads((folder / "evaluated.0.json").read_text())
    # as while training
    last = [m for m in read_metrics(folder / "mixed") if m["kind"] == "validation"][-1]
    assert {key: last[key] for key in of_model} == of_model
    assert 0.1 < of_eye["mask"]["AP"] < 0.9
    assert 0.1 < of_eye["box"]["AP75"] < 0.9
    assert [json.loads((folder / f"seen2.{rank}.json").read_text()) for rank in range(2)] == [of_eye] * 2


def test_a_bad_loss_of_one_process_stops_both_with_its_name(folder):
    first, second = ((folder / f"poisoned.{rank}.txt").read_text() for rank in range(2))
    assert re.fullmatch(r"training stopped at step \d+: .*sem_loss = nan.* \(process \d, images train4\); .*", first)
    assert second == first
    assert first in (folder / "poisoned" / "training.log").read_text()
