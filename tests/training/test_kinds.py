"""Detection and instance segmentation networks: training, validation, evaluation, and snapshots of other kinds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support.micro import make_dataset, narrow_body
from support.predictors import RedCars

from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.config import config_from_string, load_config
from seamseg.maps.formats.metadata import read_metadata, write_metadata
from seamseg.maps.metrics_file import read_metrics
from seamseg.maps.predictions import Prediction
from seamseg.training.run import TrainingOptions, run_training
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError
from seamseg.validation.evaluate import evaluate_model
from seamseg.validation.options import EvaluationOptions
from seamseg.validation.validator import Validator

pytestmark = pytest.mark.usefixtures("narrow")

LOSSES = ("obj_loss", "bbx_loss", "roi_cls_loss", "roi_bbx_loss", "roi_msk_loss")
# of an untrained network, all boxes score about one half
ALL_BOXES = "roi.score_threshold=0.01"


def train(config, data, run, kind, *overrides, **options):
    words = (f"general.kind={kind}", ALL_BOXES, *overrides)
    return run_training(TrainingOptions(config, data, run, overrides=words, device="cpu", **options)).validation


def evaluate(model, data, *overrides, **options):
    return evaluate_model(EvaluationOptions(model, data, "cpu", quiet=True, overrides=overrides, **options))


def test_mostly_void_labels(micro_config, tmp_path, capsys):
    data = make_dataset(tmp_path / "data", [1, 1], [1])
    for name in ("train0", "train1"):
        mask = np.array(Image.open(data / "msk" / f"{name}.png"))
        mask[mask < 3] = 0
        Image.fromarray(mask).save(data / "msk" / f"{name}.png")
    for kind, warned in (("panoptic", 1), ("detection", 0)):
        train(micro_config, data, tmp_path / kind, kind, "scheduler.epochs=1")
        assert capsys.readouterr().err.count("92% of the pixels are void, which losses and scores ignore") == warned


@pytest.fixture(scope="module")
def runs(micro, micro_config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    with narrow_body():
        for kind in ("detection", "instance_seg"):
            train(micro_config, micro, folder / kind, kind)
    return folder


@pytest.mark.parametrize(("kind", "maps"), [("detection", ["det_map"]), ("instance_seg", ["det_map", "msk_map"])])
def test_a_run_folder(runs, micro, kind, maps):
    losses = LOSSES[: 3 + len(maps)]
    snapshot = load_snapshot(runs / kind / "model_last.pth.tar")
    meters = [f"{name}_meter" for name in (*losses, "loss")]
    assert {*snapshot.state_dict} == {"body", "rpn_head", "roi_head", "optimizer", *meters}
    assert ("conv.conv1.weight" in snapshot.state_dict["roi_head"]) == (kind == "instance_seg")
    config = config_from_string(snapshot.config)
    assert config.general.kind == kind == load_config(runs / kind / "config.ini").general.kind
    lines = read_metrics(runs / kind)
    assert [name for name in lines[0] if name.endswith("_loss")] == list(losses)
    assert lines[0]["loss"] == pytest.approx(sum(lines[0][name] for name in losses))
    last = lines[-1]
    assert [name for name in last if name.endswith("_map")] == maps
    assert snapshot.training_meta["last_score"] == last[maps[-1]]
    # the same numbers as in the training
    scores = evaluate(runs / kind, micro)
    assert scores.to_json() == {name: last[name] for name in scores.to_json()}
    assert [line.split()[0] for line in scores.table().splitlines()[1:3] if line] == ["boxes", "masks"][: len(maps)]
    assert scores.n_images == 3


def test_snapshots_of_kinds_that_have_more_or_lack_parts(runs, micro, micro_config, micro_run, tmp_path):
    detector = runs / "detection" / "model_last.pth.tar"
    with pytest.raises(InputError, match="is a model for detection, not for instance_seg"):
        evaluate(detector, micro, "general.kind=instance_seg")
    for kind, message in (
        ("panoptic", "has no 'sem_head': it is a snapshot of another kind of network"),
        ("instance_seg", r"does not fit this network: .* roi_head\.conv\.conv1\.weight \(not in the"),
    ):
        with pytest.raises(InputError, match=message):
            train(micro_config, micro, tmp_path, kind, resume=detector)
    with pytest.raises(InputError, match="this network has no sem_head"):
        train(micro_config, micro, tmp_path, "detection", pretrain=[f"sem_head:{detector}"])
    for kind, other in (("detection", runs / "instance_seg"), ("instance_seg", micro_run)):
        with pytest.raises(InputError, match="parameters a group"):
            train(micro_config, micro, tmp_path / "b", kind, resume=other / "model_last.pth.tar")
        options = {"evaluate": True, "pretrain": [str(other / "model_last.pth.tar")]}
        wanted = train(micro_config, micro, tmp_path / "c", kind, **options)
        found = evaluate(other, micro, f"general.kind={kind}", ALL_BOXES)
        assert found.to_json() == wanted.to_json()
        assert "msk_map" not in found.to_json() or kind == "instance_seg"


def test_what_is_refused(runs, micro, micro_config, tmp_path, refused):
    run = ("--log-dir", tmp_path / "run", "--device", "cpu", "--set", "general.kind=detection")
    stuff = make_dataset(tmp_path / "data", [0], [0])
    metadata = read_metadata(stuff / "metadata.bin")
    write_metadata(stuff / "metadata.bin", replace(metadata, num_stuff=3, num_thing=0))
    assert "the data set has 0 thing classes" in refused("train", micro_config, stuff, *run)
    said = refused("evaluate", runs / "detection", micro, "--out", tmp_path / "out", "--device", "cpu")
    assert "is a model for detection; an evaluation folder holds panoptic maps" in said
    assert not (tmp_path / "out").exists()


class Finder(RedCars):
    kind = "detection"

    def __init__(self, blind=(), masks=True):
        super().__init__()
        self.blind = blind
        self.masks = masks
        self.count = -1

    def found(self, image):
        self.count += 1
        boxes = self.boxes(image)[: self.count not in self.blind]
        logits = torch.full((len(boxes), 28, 28), 9.0) if self.masks else None
        size = tuple(image.shape[1:])
        return Prediction(boxes, torch.zeros(len(boxes)).long(), torch.ones(len(boxes)), logits, None, size)


@pytest.mark.parametrize("kind", ["detection", "instance_seg"])
def test_every_image_counts_but_not_in_legacy_scores(micro_config, tmp_path, kind):
    single = make_dataset(tmp_path / "data", [1], [1, 1, 1])
    config = load_config(micro_config, overrides=(f"general.kind={kind}", "dataloader.val_batch_size=1"))
    masks = kind == "instance_seg"

    def scores(blind, legacy):
        return Validator.open(single, "val", config, World(), legacy, quiet=True)(Finder(blind, masks))

    whole = scores((), False)
    assert whole.selection.value > 0.8
    validator = Validator.open(single, "val", config, World(), quiet=True)
    seen = []
    assert replace(validator, least_score=1.0)(Finder((), masks), seen.append).selection.value == 0
    assert [one.result for one in seen] == [None] * 3, "for custom metrics only"
    assert list(whole.maps) == ["det_map", "msk_map"][: 1 + masks]
    missed = scores([1], False)
    assert missed.selection.value == pytest.approx(whole.selection.value * 2 / 3, abs=0.03)
    assert scores([1], True).selection.value == pytest.approx(whole.selection.value, abs=0.03)
    for legacy in (False, True):
        nothing = scores(range(3), legacy)
        assert nothing.selection.value == 0
        assert math.isnan(nothing.maps["det_map"]) == legacy
        assert nothing.to_json()["det_map"] == (None if legacy else 0)
        assert "val/det_map" not in nothing.scalars() or not legacy
