"""Training from end to end on a micro data set: files, reproducibility, errors."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.micro import make_dataset, train
from support.small_models import save_snapshot

from seamseg.checkpoints.snapshot import Snapshot, load_snapshot
from seamseg.config.kinds import KINDS
from seamseg.maps.evaluation.metric import Selection
from seamseg.maps.formats.metadata import read_metadata, write_metadata
from seamseg.structures import Batch, PackedSequence
from seamseg.training.checkpointing.checkpoint import TrainingProgress
from seamseg.training.prefetch import prefetched
from seamseg.training.run import TrainingOptions, run_training
from seamseg.training.trainer import Trainer
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("narrow")

NAN = float("nan")
CPU = ("--device", "cpu")
ONE_STILL_EPOCH = ("--set", "scheduler.epochs=1", "--set", "optimizer.lr=0", "--set", "dataloader.train_batch_size=4")
FROZEN = ("body.num_frozen=2", *ONE_STILL_EPOCH[1::2])


def states_equal(a: Snapshot, b: Snapshot) -> bool:
    assert a.state_dict.keys() == b.state_dict.keys()
    leaves = [torch.utils._pytree.tree_leaves(s.state_dict) for s in (a, b)]
    assert len(leaves[0]) == len(leaves[1])
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(*leaves))


def as_the_original_writes_it(path: Path) -> None:
    """Rewrite a snapshot in the original's layout: no classes, counters of norm layers, new fields of the optimizer."""
    snapshot = load_snapshot(path)
    state = snapshot.state_dict
    for part in KINDS["panoptic"].modules:
        state[part] = {k: v for k, v in state[part].items() if not k.endswith("num_batches_tracked")}
    known = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "params")
    optimizer = state["optimizer"]
    groups = [{k: group[k] for k in known} for group in optimizer["param_groups"]]
    state["optimizer"] = {"state": optimizer["state"], "param_groups": groups}
    meta = {**snapshot.training_meta, "last_score": np.float64(0.25), "best_score": torch.tensor(0.5)}
    torch.save({"config": snapshot.config, "state_dict": state, "training_meta": meta}, path)


@pytest.mark.parametrize(
    ("higher", "values", "best", "shown"),
    [
        (True, [-5.0, -1.0, NAN, -0.5, -1.0], [True, True, False, True, False], "gap -0.5"),
        (False, [NAN, 5.0, -1.0, -0.5, -3.0], [False, True, True, False, True], "gap -3"),
        (False, [120.0, 20.0, 5.0, 5.0], [True, True, True, False], "gap 5"),
    ],
)
def test_the_best_score_is_that_of_the_metric(higher, values, best, shown):
    progress, found = TrainingProgress(), []
    for value in values:
        found.append(progress.validated(Selection("gap", value, higher, percent=False), any(found)))
    assert found == best
    assert str(Selection("gap", progress.best_score, percent=False)) == shown
    # a best one of another score does not count, but that of the original, which has no name, does
    assert progress.validated(Selection("PQ", 0.0), True)
    for value, better in ((0.3, False), (0.5, True), (0.4, False)):
        assert TrainingProgress(epoch=1, best_score=0.4).validated(Selection("PQ", value), True) is better


def test_a_snapshot_of_the_original_resumes(
    micro, micro_config, micro_run, tmp_path, monkeypatch, seamseg_main, capsys
):
    run, step = tmp_path / "run", Trainer._step

    def interrupted(self, epoch, batches):
        if epoch == 1:
            raise KeyboardInterrupt
        return step(self, epoch, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted)
        assert seamseg_main("train", micro_config, micro, "--log-dir", run, *CPU) == 130
    assert capsys.readouterr().err.count("interrupted") == 1
    log = (run / "training.log").read_text()
    assert "interrupted; re-run the same command (`seamseg train`: with --resume auto) to resume from" in log
    last = run / "model_last.pth.tar"
    assert load_snapshot(last).training_meta["epoch"] == 0
    as_the_original_writes_it(last)
    assert seamseg_main("train", micro_config, micro, "--log-dir", run, "--resume", last, *CPU) == 0
    assert "resumed from" in capsys.readouterr().err
    straight = Path(shutil.copy(micro_run / "model_last.pth.tar", tmp_path))
    for path in (last, straight):
        as_the_original_writes_it(path)
    assert states_equal(load_snapshot(last), load_snapshot(straight))


def test_eval_repeats_the_last_validation(micro, micro_config, micro_run, tmp_path, seamseg_main, capsys):
    last = micro_run / "model_last.pth.tar"
    words = ("train", micro_config, micro, "--log-dir", tmp_path, *CPU)
    # losses play no part
    assert seamseg_main(*words, "--eval", "--resume", last, "--set", "optimizer.loss_weights=(1,1)") == 0
    assert f"{100 * load_snapshot(last).training_meta['last_score']:.2f}" in capsys.readouterr().out
    assert not (tmp_path / "model_last.pth.tar").exists()
    assert seamseg_main(*words, "--resume", last) == 0
    assert "all 2 epochs are done already" in capsys.readouterr().err


def test_pre_training(micro, micro_config, micro_run, tmp_path, capsys):
    last = micro_run / "model_last.pth.tar"
    weights = load_snapshot(last).state_dict
    body = {k.removeprefix("backbone."): v for k, v in weights["body"].items() if k.startswith("backbone.")}
    torch.save(body, tmp_path / "body.pth")
    overrides = (*FROZEN, "sem.hidden_channels=4", f"body.weights={tmp_path / 'body.pth'}")
    train(micro_config, micro, tmp_path / "run", *overrides, pretrain=[f"roi_head:{last}", f"sem_head:{last}"])
    assert "skipped" in capsys.readouterr().err
    start = load_snapshot(tmp_path / "run" / "model_last.pth.tar").state_dict
    for part, key in (("body", "backbone.mod1.conv1.weight"), ("roi_head", "roi_cls.weight")):
        assert torch.equal(start[part][key], weights[part][key])


def test_frozen_weights_are_loaded_or_the_original_is_imitated(micro, micro_config, tmp_path, capsys):
    with pytest.raises(InputError, match="not loaded"):
        train(micro_config, micro, tmp_path / "run", *FROZEN)
    assert not (tmp_path / "run").exists()
    train(micro_config, micro, tmp_path / "run", *FROZEN, legacy=True)
    assert "body.num_frozen=0, or load weights with `pretrain=body:F`" in capsys.readouterr().err
    train(micro_config, micro, tmp_path / "run", *FROZEN, "scheduler.epochs=2", resume="auto")
    assert "not loaded" not in capsys.readouterr().err


def test_pre_training_on_other_classes(micro, micro_config, micro_run, tmp_path, seamseg_main, capsys):
    data = tmp_path / "data"
    shutil.copytree(micro, data)
    classes = read_metadata(micro / "metadata.bin")
    # what was class 0 is class 1, and a class of things is new
    images = [replace(image, cat=[{0: 1, 1: 0}.get(c, c) for c in image.cat]) for image in classes.images]
    names = {"num_thing": 2, "categories": ["street", "sky", "car", "cow"], "images": images}
    palette, ids = [*classes.palette, (1, 2, 3)], [*classes.original_ids, 99]
    write_metadata(data / "metadata.bin", replace(classes, **names, palette=palette, original_ids=ids))
    (tmp_path / "table.ini").write_text("[classes]\nStreet = road\nsky = sky\ncar = truck, car\n")
    last, run = micro_run / "model_last.pth.tar", tmp_path / "run"
    words = ["train", micro_config, data, "--log-dir", run, *ONE_STILL_EPOCH, *CPU, "--restart", "--pre-train", last]
    table = ("--pre-train-classes", tmp_path / "table.ini")
    assert seamseg_main(*words, *table) == 0
    output = capsys.readouterr().err
    assert f"pre-trained {last}: class 'cow' starts at random: no class of the pre-training\n" in output
    assert "skipped" not in output
    before, after = (load_snapshot(path).state_dict for path in (last, run / "model_last.pth.tar"))
    old, new = (state["sem_head"]["conv_sem.weight"] for state in (before, after))
    assert torch.equal(new[:3], old[[1, 0, 2]])
    assert seamseg_main(*words) == 0
    output = capsys.readouterr().err
    assert f"pre-trained {last}: its classes are not those of the data set; --pre-train-classes TABLE copies" in output
    for more, message in (
        ((*table, "--eval"), "does not fill the network: class 'cow' starts at random"),
        (table, "nameless.tar: holds no names of classes: name a folder that holds"),
    ):
        assert seamseg_main(*words, *more) == 2
        assert message in capsys.readouterr().err
        content = torch.load(last, weights_only=False)
        torch.save({k: v for k, v in content.items() if k != "metadata"}, tmp_path / "nameless.tar")
        words[-1] = tmp_path / "nameless.tar"


@pytest.mark.parametrize(
    ("options", "overrides", "message"),
    [
        ({"pretrain": ["missing.pth"]}, (), "missing.pth: no such file"),
        ({"pretrain": ["roi_head:{data}/metadata.bin"]}, (), "not a snapshot"),
        ({"pretrain": ["body:{odd}"]}, (), "nothing in it fits this network"),
        ({"pretrain": ["a"], "resume": "b"}, (), "are mutually exclusive"),
        ({"pretrain": ["body:{run}"], "evaluate": True}, (), "gives no weights for rpn_head, roi_head, sem_head"),
        ({"pretrain": ["{run}"], "evaluate": True}, ("sem.hidden_channels=24",), "does not fill the network"),
        ({}, ("body.num_frozen=1",), r"that were not loaded \(3 tensors, the first mod1.conv1.weight\)"),
        ({}, ("dataloader.train_set=",), "train_set is required"),
        ({}, ("dataloader.train_batch_size=",), "train_batch_size is required"),
        ({}, ("dataloader.train_set=nowhere",), "no split 'nowhere'"),
    ],
)
def test_refused(micro, micro_config, micro_run, tmp_path, options, overrides, message):
    paths = {"data": micro, "run": micro_run / "model_best.pth.tar", "odd": tmp_path / "odd.pth"}
    torch.save({"foo": torch.zeros(2)}, paths["odd"])
    if "pretrain" in options:
        options = {**options, "pretrain": [name.format(**paths) for name in options["pretrain"]]}
    with pytest.raises(InputError, match=message):
        train(micro_config, micro, tmp_path / "run", *overrides, **options)


def test_a_resumed_snapshot_must_fit(micro, micro_config, micro_run, tmp_path):
    last = micro_run / "model_last.pth.tar"
    snapshot = load_snapshot(last)
    meta = {key: value for key, value in snapshot.training_meta.items() if key != "global_step"}
    save_snapshot(tmp_path / "other.tar", replace(snapshot, training_meta=meta))
    with pytest.raises(InputError, match="training progress is missing or damaged"):
        train(micro_config, micro, tmp_path / "run", resume=tmp_path / "other.tar")
    other = make_dataset(tmp_path / "data", [1], [1])
    metadata = read_metadata(other / "metadata.bin")
    write_metadata(other / "metadata.bin", replace(metadata, num_stuff=1, num_thing=2))
    with pytest.raises(
        InputError, match=r"1 thing classes, the data set has 2; .*`pretrain=.*` `pretrain_classes=TABLE`"
    ):
        train(micro_config, other, tmp_path / "run", resume=last)


@pytest.mark.gpu
def test_training_on_a_gpu(micro, micro_config, tmp_path):
    overrides = ("dataloader.num_workers=2", "general.log_interval=2")
    scores = run_training(TrainingOptions(micro_config, micro, tmp_path, overrides=overrides, device="cuda")).validation
    assert scores.n_images == 3
    state = load_snapshot(tmp_path / "model_last.pth.tar").state_dict
    assert all(t.device.type == "cpu" for t in state["body"].values())


@pytest.mark.gpu
def test_concurrent_uploads_are_complete():
    device, weight, ranges = torch.device("cuda"), torch.randn(4096, 4096, device="cuda"), []
    sizes = (500 + 37 * number for number in range(20))
    images = (torch.full((3, size, size), float(number)).pin_memory() for number, size in enumerate(sizes))
    boxes = PackedSequence([torch.zeros(1, 4)])
    batches = (Batch(PackedSequence([x]), boxes, boxes, boxes, boxes, ["a"], [(1, 1)]) for x in images)
    for batch, _ in prefetched(batches, device):
        for _ in range(5):
            weight = torch.tanh(weight @ weight)  # keeps the device busy, so that uploads run ahead of it
        ranges.append(torch.stack(batch.images[0].aminmax()))
        del batch
    assert [found.tolist() for found in ranges] == [[number, number] for number in range(20)]
