"""Training of a small classifier: files, resume to the bit, processes, moving average, options, errors; the command;
checkpoints in the layout of the original, in both directions."""

import hashlib
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from config.test_ignored_keys import recorded
from PIL import Image
from support.classes import make_class_folders, write_config
from support.interruptions import signals_at
from support.processes import launch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seamseg.checkpoints import imagenet
from seamseg.checkpoints.snapshot import load_tensors
from seamseg.contrib.classification import config as classifier
from seamseg.contrib.classification.checkpoint import load_checkpoint, parse_checkpoint
from seamseg.contrib.classification.config import ClassifierConfig, load_classifier_config, parse_classifier_config
from seamseg.contrib.classification.network import Classifier, build_classifier
from seamseg.contrib.classification.train import train_classifier
from seamseg.contrib.classification.validate import ClassifierScores, validate_classifier
from seamseg.maps.metrics_file import read_metrics
from seamseg.training.preemption import Preempted
from seamseg.training.run import TrainingOptions
from seamseg.utils.errors import InputError, SeamsegError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_class_folders(tmp_path_factory.mktemp("classes") / "data")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path / "c.json")


def train(config: Path, data: Path, run: Path, *overrides: str, **options: object) -> ClassifierScores | None:
    options = TrainingOptions(config, data, run, overrides=overrides, device="cpu", **options)
    return train_classifier(options).validation


def weights(run: Path, name: str = "checkpoint.pth.tar") -> dict[str, torch.Tensor]:
    return torch.load(run / name, weights_only=True)["state_dict"]


def test_the_files_of_a_run(config: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    scores = train(config, data, run, "training.log_hist=yes", "optimizer.schedule.epochs=4")
    assert scores is not None
    assert scores.n_images == 9
    names = {path.name for path in run.iterdir() if not path.name.startswith("events")}
    assert names == {
        "checkpoint.pth.tar", "model_best.pth.tar", "snapshots", "training_0.log", "metrics.jsonl", "config.json",
        "classes.json",
    }  # fmt: skip
    events = EventAccumulator(str(run)).Reload().Tags()
    assert {"train/top1", "val/top5"} <= {*events["scalars"]}
    assert "classifier.fc.weight" in events["histograms"]
    assert json.loads((run / "classes.json").read_text()) == ["blue", "green", "red"]
    assert " * Prec@1 " in (run / "training_0.log").read_text()
    lines = read_metrics(run)
    rates = [line["lr"] for line in lines if line["kind"] == "train"]
    assert rates == pytest.approx([0.1] * 3 + [0.05] * 3 + [0.025] * 3 + [0.0125] * 3)
    assert [line["top1"] for line in lines if line["kind"] == "validation"][-1] == scores.top1

    again = validate_classifier(run / "config.json", run / "checkpoint.pth.tar", data, device="cpu")
    assert (again.top1, again.loss) == pytest.approx((scores.top1, scores.loss))


def test_resume_to_the_bit(config: Path, data: Path, tmp_path: Path) -> None:
    extra = ["training.ema=0.9", "optimizer.classifier_lr=0.2", "optimizer.type=Adam"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config, data, whole, *extra)

    # in the middle of the second epoch
    with signals_at([4]), pytest.raises(Preempted) as stopped:
        train(config, data, parts, *extra)
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert torch.load(parts / "checkpoint.pth.tar", weights_only=True)["epoch"] == 1
    train(config, data, parts, *extra, "training.num_workers=1", resume="auto")
    first, second = weights(whole), weights(parts)
    assert [k for k in first if not torch.equal(first[k], second[k])] == []
    names = ("step", "loss", "top1", "lr", "grad_norm")
    first, second = ([{n: line.get(n) for n in names} for line in read_metrics(run)] for run in (whole, parts))
    assert first == second


@pytest.mark.slow
def test_the_moving_average_is_validated_and_starts_a_training_of_other_classes(
    config: Path, data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    scores = train(config, data, run, "training.ema=0.99")
    content = torch.load(run / "checkpoint.pth.tar", weights_only=True)
    average = content["seamseg"]["state"]["ema"]["body"]
    assert any(not torch.equal(average[k], content["state_dict"][f"module.{k}"]) for k in average)
    again = validate_classifier(config, run / "checkpoint.pth.tar", data, device="cpu")
    assert scores is not None
    assert again.loss == pytest.approx(scores.loss)
    for split in ("train", "val"):
        (tmp_path / "small" / split).mkdir(parents=True)
        for name in ("blue", "red"):
            os.symlink(data / split / name, tmp_path / "small" / split / name)
    still = ("optimizer.learning_rate=0", "network.classes=2", "optimizer.schedule.epochs=1")
    train(config, tmp_path / "small", tmp_path / "b", *still, pretrain=[str(run / "checkpoint.pth.tar")])
    started = weights(tmp_path / "b")
    assert started["module.classifier.fc.weight"].shape[0] == 2
    assert "classifier.fc.weight (3x64 in the file" in (tmp_path / "b" / "training_0.log").read_text()
    assert all(torch.equal(started[f"module.{k}"], v) for k, v in average.items() if k.endswith("conv2.weight"))


def test_errors_name_the_keys_of_the_json(config: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(SeamsegError, match=r"above training.loss_limit = 1e-06.*lower optimizer.learning_rate"):
        train(config, data, tmp_path / "run", "training.loss_limit=1e-6")


@pytest.mark.usefixtures("narrow")
def test_every_key_is_read(data: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.json", training={"num_workers": 0, "min_crop_area": 0.5})
    classes = {f.name: getattr(classifier, f"{f.name.title()}Config") for f in fields(classifier.ClassifierConfig)[:-1]}
    classes["optimizer.schedule"] = classifier.ScheduleConfig
    with recorded(classes) as reads:
        train(config, data, tmp_path / "run")
    assert reads == {f"{section}.{spec.name}" for section, cls in classes.items() for spec in fields(cls)}


def score_in(folder: Path, config: Path) -> ClassifierScores:
    return validate_classifier(config, folder / "run" / "checkpoint.pth.tar", folder / "data", device="cpu")


def work(rank: int, join: Callable[[], None], folder: Path, config: Path) -> None:
    join()
    overrides = ("optimizer.schedule.epochs=1",)
    options = TrainingOptions(config, folder / "data", folder / "run", overrides=overrides, device="cpu")
    trained = train_classifier(options).validation
    join()
    scores = score_in(folder, config)
    (folder / f"{rank}.json").write_text(json.dumps([s.to_json() for s in (trained, scores) if s is not None]))


@pytest.mark.slow
@pytest.mark.distributed
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
    alone = score_in(tmp_path, config)
    assert scored["top1"] == alone.top1
    assert scored["loss"] == pytest.approx(alone.loss, abs=1e-5)
    assert {path.name for path in run.glob("training_*.log")} == {"training_0.log", "training_1.log"}
    assert "batch 2 x 2 processes" in (run / "training_0.log").read_text()
    # 9 images in batches of 2: 5 batches, of which one is used by both processes
    assert "[3/3]" in (run / "training_1.log").read_text()
    assert torch.load(run / "checkpoint.pth.tar", weights_only=True)["epoch"] == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classify")
    make_class_folders(folder / "data")
    config = write_config(folder / "c.json")
    state = build_classifier(load_classifier_config(config)).state_dict()
    content = {"arch": "resnext50", "state_dict": {f"module.{key}": value for key, value in state.items()}}
    torch.save(content, folder / "model.pth.tar")
    return folder


def test_train_and_validate(folder, tmp_path, seamseg_main, capsys):
    run, one = tmp_path / "run", ("--set", "optimizer.schedule.epochs=1", "--device", "cpu", "--quiet")
    assert seamseg_main("classify", "train", folder / "c.json", folder / "data", "--log-dir", run, *one) == 0
    line = re.compile(r"9 images in [\d.]+ s, [\d.]+ images/s, loss [\d.]+\n \* Prec@1 \d+\.\d{3} Prec@5 100\.000\n")
    assert line.fullmatch(capsys.readouterr().out)
    words = ("validate", run / "config.json", run / "model_best.pth.tar", folder / "data", "--device", "cpu", "--quiet")
    scores = tmp_path / "scores.json"
    assert seamseg_main("classify", *words, "--ten-crops", "--crop", 24, "--scale", -1, "--json", scores) == 0
    assert line.fullmatch(capsys.readouterr().out)
    content = json.loads(scores.read_text())
    assert set(content) == {"top1", "top5", "loss", "n_images", "seconds", "images_per_second"}
    assert content["n_images"] == 9


def test_bad_arguments(folder: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    run = ("--log-dir", tmp_path / "run")
    train = ("classify", "train", folder / "c.json", folder / "data", *run)
    model = ("classify", "validate", folder / "c.json", folder / "model.pth.tar", folder / "data")
    assert "did you mean 'optimizer.learning_rate'" in refused(*train, "--set", "optimizer.lerning_rate=1")
    assert "--set optimizer.clip=x: expected a number" in refused(*train, "--set", "optimizer.clip=x")
    assert "no such file" in refused(*train, "--resume", tmp_path / "none.pth.tar")
    assert "mutually exclusive" in refused(*train, "--resume", folder / "model.pth.tar", "--pre-train", "x")
    assert "its training progress is missing" in refused(*train, "--resume", folder / "model.pth.tar")
    assert "no such config file" in refused("classify", "train", tmp_path / "c.json", folder / "data", *run)
    assert "no such folder" in refused("classify", "train", folder / "c.json", tmp_path, *run)
    assert "--set input.crop_val=0: expected a value from 1 to 16384" in refused(*model, "--crop", 0)
    assert "input.crop_val = 300: does not fit" in refused(*model, "--crop", 300)
    assert "name train or validate" in refused("classify")


def test_bad_data(folder: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    data = Path(shutil.copytree(folder / "data", tmp_path / "data"))
    train = ("classify", "train", folder / "c.json", data, "--log-dir", tmp_path / "run")
    model = ("classify", "validate", folder / "c.json", folder / "model.pth.tar", data)
    (data / "val" / "red" / "0.png").write_bytes(b"no image")
    assert re.search(r"val/red/0\.png: not an image", refused(*model))
    for name in ("blue", "green", "red"):
        Image.new("RGB", (10, 10)).save(data / "val" / name / "0.png")
    assert re.search(r"10 x 10 pixels.*crop", refused(*model, "--scale", -1, "--crop", 24, "--ten-crops"))
    empty = tmp_path / "empty"
    (empty / "val").mkdir(parents=True)
    (data / "train" / "yellow").mkdir()
    assert "hold no images: yellow" in refused(*train)
    (data / "train" / "yellow").rmdir()
    assert "--set network.classes=3 fits them" in refused(*train, "--set", "network.classes=4")
    assert "has no class folders" in refused("classify", "train", folder / "c.json", empty, *train[4:])
    shutil.rmtree(data / "train" / "red")
    assert "train and val have other class folders: red" in refused(*train)


# --- checkpoints


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    make_class_folders(folder / "data")
    write_config(folder / "c.json")
    train(folder / "c.json", folder / "data", folder / "run", "optimizer.schedule.epochs=1")
    return folder


@pytest.fixture
def stated(trained: Path) -> ClassifierConfig:
    return load_classifier_config(trained / "c.json")


def as_of_the_original(source: Path, target: Path, **changes: object) -> Path:
    """A file as the original writes it: no key of ours, no counters of the norms; momentum as a list of groups."""
    content = torch.load(source, weights_only=True)
    kept = {key: content[key] for key in ("epoch", "arch", "state_dict", "best_prec1", "optimizer")}
    kept["state_dict"] = {k: v for k, v in kept["state_dict"].items() if "num_batches_tracked" not in k}
    torch.save({key: value for key, value in {**kept, **changes}.items() if value is not None}, target)
    return target


def test_the_layout_of_the_original(trained: Path, stated: ClassifierConfig) -> None:
    content = load_tensors(trained / "run" / "checkpoint.pth.tar", "checkpoint")
    assert set(content) == {"epoch", "arch", "state_dict", "best_prec1", "optimizer", "seamseg"}
    assert (content["epoch"], content["arch"]) == (1, "resnext50")
    assert 0 <= content["best_prec1"] <= 100
    own = Classifier(build_classifier(stated)).body.state_dict()
    assert list(content["state_dict"]) == [f"module.{key}" for key in own]
    # as DataParallel around the network of the original loads it, and its optimizer
    torch.nn.DataParallel(build_classifier(stated)).load_state_dict(content["state_dict"], strict=True)
    net = build_classifier(stated)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    optimizer.load_state_dict(content["optimizer"])
    moved = [optimizer.state[p]["momentum_buffer"].abs().sum() for p in net.parameters()]
    assert sum(m > 0 for m in moved) > len(moved) / 2
    assert os.path.samefile(trained / "run" / "model_best.pth.tar", trained / "run" / "checkpoint.pth.tar")


def test_a_file_of_the_original_resumes(trained: Path, stated: ClassifierConfig, tmp_path: Path) -> None:
    ours = trained / "run" / "checkpoint.pth.tar"
    theirs = as_of_the_original(ours, tmp_path / "theirs.pth.tar", best_prec1=torch.tensor(12.5))
    snapshot = parse_checkpoint(load_tensors(theirs, "t"), "t", stated)
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


def test_other_values_and_releases_are_refused(trained, stated, tmp_path, monkeypatch):
    path = tmp_path / "f.pth.tar"
    as_of_the_original(trained / "run" / "checkpoint.pth.tar", path)
    load_checkpoint(path, stated)
    paths = trained / "c.json", trained / "data", tmp_path / "run"
    loads = (load_checkpoint, lambda *_: train(*paths, pretrain=[str(path)]))
    with monkeypatch.context() as patch:
        patch.setattr(imagenet, "_RELEASE_0_0_1", (hashlib.md5(path.read_bytes()).hexdigest()[:8],))
        for load in loads:
            with pytest.raises(InputError, match=r"only compatible with release 0\.0\.1"):
                load(path, stated)
    content = torch.load(path, weights_only=True)
    content["state_dict"]["module.mod1.conv1.weight"].fill_(torch.inf)
    torch.save(content, path)
    for load in loads:
        with pytest.raises(InputError, match=r"f.pth.tar: body.mod1.conv1.weight holds values that are not finite"):
            load(path, stated)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "resnet50"}, "is a checkpoint of resnet50, but .*c.json describes resnext50"),
        ({"state_dict": {}}, "not a checkpoint of a classifier"),
        ({"state_dict": {"module.classifier.fc.weight": torch.zeros(5, 8)}}, "has 5 classes, but .*classes = 3"),
        ({"state_dict": {"module.mod1.conv1.weight": torch.zeros(64, 3, 7, 7)}}, "70 tensors differ, first body.mod2"),
    ],
)
def test_files_that_are_refused(trained, stated, tmp_path, changes, message):
    path = as_of_the_original(trained / "run" / "checkpoint.pth.tar", tmp_path / "f.pth.tar", **changes)
    with pytest.raises(InputError, match=message) as caught:
        load_checkpoint(path, stated)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_resumed(trained: Path, tmp_path: Path) -> None:
    path = as_of_the_original(trained / "run" / "checkpoint.pth.tar", tmp_path / "f.pth.tar", optimizer=None)
    with pytest.raises(InputError, match="has no optimizer state"):
        train(trained / "c.json", trained / "data", tmp_path / "run", resume=path)
    assert not (tmp_path / "run").exists(), "nothing is left behind"
