"""Checkpoints in the layout of the original, in both directions."""

import hashlib
import os
from pathlib import Path

import pytest
import torch
from support.classes import make_class_folders, write_config

from seamseg.checkpoints import imagenet
from seamseg.checkpoints.snapshot import load_tensors
from seamseg.contrib.classification.checkpoint import load_checkpoint, parse_checkpoint
from seamseg.contrib.classification.config import ClassifierConfig, load_classifier_config, parse_classifier_config
from seamseg.contrib.classification.network import Classifier, build_classifier
from seamseg.contrib.classification.train import train_classifier
from seamseg.training.run import TrainingOptions
from seamseg.utils.errors import InputError


def train(config: Path, data: Path, run: Path, *overrides: str, **options: object) -> None:
    train_classifier(TrainingOptions(config, data, run, overrides=overrides, device="cpu", **options))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    make_class_folders(folder / "data")
    write_config(folder / "c.json")
    train(folder / "c.json", folder / "data", folder / "run", "optimizer.schedule.epochs=1")
    return folder


@pytest.fixture
def config(trained: Path) -> ClassifierConfig:
    return load_classifier_config(trained / "c.json")


def as_of_the_original(source: Path, target: Path, **changes: object) -> Path:
    """A file as the original writes it: no key of ours, no counters of the norms; momentum as a list of groups."""
    content = torch.load(source, weights_only=True)
    kept = {key: content[key] for key in ("epoch", "arch", "state_dict", "best_prec1", "optimizer")}
    kept["state_dict"] = {k: v for k, v in kept["state_dict"].items() if "num_batches_tracked" not in k}
    torch.save({key: value for key, value in {**kept, **changes}.items() if value is not None}, target)
    return target


def test_the_layout_of_the_original(trained: Path, config: ClassifierConfig) -> None:
    content = load_tensors(trained / "run" / "checkpoint.pth.tar", "checkpoint")
    assert set(content) == {"epoch", "arch", "state_dict", "best_prec1", "optimizer", "seamseg"}
    assert (content["epoch"], content["arch"]) == (1, "resnext50")
    assert 0 <= content["best_prec1"] <= 100
    own = Classifier(build_classifier(config)).body.state_dict()
    assert list(content["state_dict"]) == [f"module.{key}" for key in own]
    # as DataParallel around the network of the original loads it, and its optimizer
    torch.nn.DataParallel(build_classifier(config)).load_state_dict(content["state_dict"], strict=True)
    net = build_classifier(config)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    optimizer.load_state_dict(content["optimizer"])
    moved = [optimizer.state[p]["momentum_buffer"].abs().sum() for p in net.parameters()]
    assert sum(m > 0 for m in moved) > len(moved) / 2
    assert os.path.samefile(trained / "run" / "model_best.pth.tar", trained / "run" / "checkpoint.pth.tar")


def test_a_file_of_the_original_resumes(trained: Path, config: ClassifierConfig, tmp_path: Path) -> None:
    ours = trained / "run" / "checkpoint.pth.tar"
    theirs = as_of_the_original(ours, tmp_path / "theirs.pth.tar", best_prec1=torch.tensor(12.5))
    snapshot = parse_checkpoint(load_tensors(theirs, "t"), "t", config)
    assert snapshot.training_meta == {"epoch": 0, "global_step": None, "last_score": 0.125, "best_score": 0.125}

    for name, source in (("a", ours), ("b", theirs)):
        train(trained / "c.json", trained / "data", tmp_path / name, resume=source)
    first, second = (torch.load(tmp_path / name / "checkpoint.pth.tar", weights_only=True) for name in "ab")
    assert first["epoch"] == second["epoch"] == 2
    steps = [content["seamseg"]["training_meta"]["global_step"] for content in (first, second)]
    assert steps == [6, 6], "three steps an epoch"
    for key, value in first["state_dict"].items():
        if "num_batches_tracked" not in key:
            assert torch.equal(value, second["state_dict"][key]), key


def test_another_network_is_named(tmp_path: Path) -> None:
    net = build_classifier(parse_classifier_config({"network": {"arch": "resnet18", "classes": 4}}))
    torch.save({"state_dict": net.state_dict()}, tmp_path / "f.pth.tar")
    other = parse_classifier_config({"network": {"arch": "resnet34", "classes": 4}})
    with pytest.raises(InputError, match=r"f\.pth\.tar: does not fit this network: .* is it another architecture"):
        load_checkpoint(tmp_path / "f.pth.tar", other)


def test_other_values_and_releases_are_refused(trained, config, tmp_path, monkeypatch):
    path = tmp_path / "f.pth.tar"
    as_of_the_original(trained / "run" / "checkpoint.pth.tar", path)
    load_checkpoint(path, config)
    paths = trained / "c.json", trained / "data", tmp_path / "run"
    loads = (load_checkpoint, lambda *_: train(*paths, pretrain=[str(path)]))
    with monkeypatch.context() as patch:
        patch.setattr(imagenet, "_RELEASE_0_0_1", (hashlib.md5(path.read_bytes()).hexdigest()[:8],))
        for load in loads:
            with pytest.raises(InputError, match=r"only compatible with release 0\.0\.1"):
                load(path, config)
    content = torch.load(path, weights_only=True)
    content["state_dict"]["module.mod1.conv1.weight"].fill_(torch.inf)
    torch.save(content, path)
    for load in loads:
        with pytest.raises(InputError, match=r"f.pth.tar: body.mod1.conv1.weight holds values that are not finite"):
            load(path, config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "resnet50"}, "is a checkpoint of resnet50, but .*c.json describes resnext50"),
        ({"state_dict": {}}, "not a checkpoint of a classifier"),
        ({"state_dict": {"module.classifier.fc.weight": torch.zeros(5, 8)}}, "has 5 classes, but .*classes = 3"),
        ({"state_dict": {"module.mod1.conv1.weight": torch.zeros(64, 3, 7, 7)}}, "70 tensors differ, first body.mod2"),
    ],
)
def test_files_that_are_refused(trained, config, tmp_path, changes, message):
    path = as_of_the_original(trained / "run" / "checkpoint.pth.tar", tmp_path / "f.pth.tar", **changes)
    with pytest.raises(InputError, match=message) as caught:
        load_checkpoint(path, config)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_resumed(trained: Path, tmp_path: Path) -> None:
    path = as_of_the_original(trained / "run" / "checkpoint.pth.tar", tmp_path / "f.pth.tar", optimizer=None)
    with pytest.raises(InputError, match="has no optimizer state"):
        train(trained / "c.json", trained / "data", tmp_path / "run", resume=path)
    assert not (tmp_path / "run").exists(), "nothing is left behind"
