"""Training and evaluation of semantic networks: IoU at native size against counts by hand, run folders, resuming."""

import json

import numpy as np
import pytest
import torch
from support.micro import narrow_body
from support.semantic_networks import SEMANTIC

from seamseg.checkpoints.bundle import open_model
from seamseg.config import config_from_string
from seamseg.formats.metadata import read_metadata
from seamseg.predictions import Prediction
from seamseg.training.logging.metrics import read_metrics
from seamseg.training.run import TrainingOptions, run_training
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.validation.evaluate import EvaluationOptions, evaluate_model
from seamseg.validation.validator import Validator


@pytest.fixture(scope="module")
def run(micro, tmp_path_factory):
    """A run folder after two epochs."""
    folder = tmp_path_factory.mktemp("semantic")
    config = folder / "semantic.ini"
    config.write_text(SEMANTIC)
    with narrow_body():
        run_training(TrainingOptions(config, micro, folder / "run", device="cpu"))
    return folder / "run"


class Fixed(torch.nn.Module):
    """Predicts class 0 everywhere, and class 1 in the lower half."""

    kind = "semantic"

    def predict(self, images):
        found = []
        for image in images:
            height, width = image.shape[-2:]
            classes = torch.zeros(height, width, dtype=torch.int64)
            classes[height // 2 :] = 1
            nothing = torch.zeros(0)
            found.append(Prediction(nothing.view(0, 4), nothing.long(), nothing, None, classes, (height, width)))
        return found


def test_iou_at_native_size(micro):
    config = config_from_string(SEMANTIC, overrides=["dataloader.shortest_size=32"])
    validator = Validator.open(micro, "val", config, World(device=torch.device("cpu")), quiet=True)
    scores = validator(Fixed())
    counts = np.zeros((3, 3), int)
    for index in range(3):
        _, mask, info = validator.dataset.read(index)
        truth = np.array([255 if c == 255 else c for c in info.cat])[mask[0]]
        predicted = np.zeros(info.size, int)
        predicted[info.size[0] // 2 :] = 1
        known = truth != 255
        np.add.at(counts, (truth[known], predicted[known]), 1)
    iou = np.diag(counts) / (counts.sum(0) + counts.sum(1) - np.diag(counts))
    assert [c.IoU for c in scores.per_class] == pytest.approx(iou.tolist())
    assert scores.mIoU == pytest.approx(iou.mean())
    assert scores.accuracy == pytest.approx(np.diag(counts).sum() / counts.sum())
    assert scores.best == scores.mIoU
    assert scores.n_images == 3
    assert "human" not in scores.table()
    assert json.loads(json.dumps(scores.to_json()))["per_class"]["car"]["IoU"] == pytest.approx(iou[2])


def test_run_folder(run, micro, seamseg_main, tmp_path):
    with narrow_body():
        model = open_model(run)
        assert model.config.kind == "semantic"
        assert {"body", "head", "cls", "sem_loss_meter"} <= set(model.snapshot.state_dict)
        assert model.metadata == read_metadata(micro / "metadata.bin").without_images()
        scores = evaluate_model(run, micro, EvaluationOptions(device="cpu", quiet=True)).scores
        assert seamseg_main("evaluate", run, micro, "--device", "cpu", "--json", tmp_path / "s.json") == 0
    assert json.loads((tmp_path / "s.json").read_text())["mIoU"] == scores.mIoU
    validations = [line for line in read_metrics(run / "metrics.jsonl") if line["kind"] == "validation"]
    assert len(validations) == 2
    assert validations[-1]["mIoU"] == pytest.approx(scores.mIoU)


def test_refused(run, micro, tmp_path):
    with narrow_body():
        with pytest.raises(InputError, match="evaluation folder holds panoptic maps"):
            evaluate_model(run, micro, EvaluationOptions(device="cpu", quiet=True, out=tmp_path / "out"))
        with pytest.raises(InputError, match="legacy"):
            evaluate_model(run, micro, EvaluationOptions(device="cpu", quiet=True, legacy=True))
        with pytest.raises(InputError, match="is a model for semantic, not for panoptic"):
            open_model(run, overrides=["general.kind=panoptic", "optimizer.loss_weights=(1,1,1,1,1,1)"])
