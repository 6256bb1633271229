"""Training from end to end on a micro data set: files, reproducibility, errors."""

import errno
import io
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.micro import make_dataset, train, write_config
from support.small_snapshots import save_snapshot

from seamseg.checkpoints.bundle import open_model
from seamseg.checkpoints.snapshot import Snapshot, load_snapshot
from seamseg.config.kinds import KINDS
from seamseg.formats.metadata import read_metadata, write_metadata
from seamseg.models.criterion import Losses, TrainingModule
from seamseg.training.run import TrainingOptions, run_training
from seamseg.training.trainer import Trainer
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.usefixtures("narrow")

CPU = ("--device", "cpu")


def states_equal(a: Snapshot, b: Snapshot) -> bool:
    assert a.state_dict.keys() == b.state_dict.keys()
    leaves = [torch.utils._pytree.tree_leaves(s.state_dict) for s in (a, b)]
    assert len(leaves[0]) == len(leaves[1])
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(*leaves))


def test_run_folder(micro_run, micro):
    names = {p.name.split(".tfevents")[0] for p in micro_run.iterdir()}
    assert names >= {
        "model_last.pth.tar",
        "model_best.pth.tar",
        "config.ini",
        "metadata.bin",
        "training.log",
        "events.out",
    }
    assert not [n for n in os.listdir(micro_run) if n.endswith(".partial")]
    last = load_snapshot(micro_run / "model_last.pth.tar")
    assert last.training_meta["epoch"] == 1
    assert last.training_meta["global_step"] == 4
    assert set(last.state_dict) >= {
        "body",
        "rpn_head",
        "roi_head",
        "sem_head",
        "optimizer",
        "loss_meter",
        "sem_loss_meter",
    }
    assert 0 <= last.training_meta["last_score"] <= last.training_meta["best_score"] <= 1
    model = open_model(micro_run)
    assert model.metadata == read_metadata(micro / "metadata.bin").without_images()
    assert model.config.dataloader.shortest_size == 64
    log = (micro_run / "training.log").read_text()
    for words in (
        "2 stuff and 1 thing classes",
        "epoch 2/2 [2/2]  obj ",
        "s/step (data",
        "left",
        "validation after epoch 2",
    ):
        assert words in log


def test_tensorboard(micro_run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(micro_run), {"scalars": 0, "images": 0})
    events.Reload()
    tags = events.Tags()
    assert {
        "train/loss",
        "train/sem_loss",
        "lr/norm",
        "lr/other",
        "time/data",
        "time/step",
        "val/PQ",
        "val_PQ/car",
    } <= set(tags["scalars"])
    assert "train/targets" in tags["images"]
    assert "val/0_proposals_target_prediction" in tags["images"]
    rates = [e.value for e in events.Scalars("lr/other")]
    assert [e.step for e in events.Scalars("lr/other")] == [1, 2, 3, 4]
    assert rates == pytest.approx([0.005 * 0.6665, 0.005, 0.005 * 0.25**0.9, 0.0])


def test_a_second_run_has_the_same_bits_however_images_are_read(micro, micro_config, micro_run, tmp_path):
    train(micro_config, micro, tmp_path / "run", "dataloader.num_workers=2")
    again, before = (load_snapshot(run / "model_last.pth.tar") for run in (tmp_path / "run", micro_run))
    assert states_equal(again, before)


def test_another_seed_has_other_weights(micro, micro_config, micro_run, tmp_path):
    train(micro_config, micro, tmp_path / "run", "general.seed=1")
    again, before = (load_snapshot(run / "model_last.pth.tar") for run in (tmp_path / "run", micro_run))
    assert not states_equal(again, before)


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


@pytest.mark.parametrize("original", [False, True])
def test_interrupt_and_resume(micro, micro_config, micro_run, tmp_path, monkeypatch, seamseg_main, capsys, original):
    """An interrupted run ends with the same bits as an uninterrupted one."""
    run, step = tmp_path / "run", Trainer._step

    def interrupted(self, epoch, batches):
        if epoch == 1:
            raise KeyboardInterrupt
        return step(self, epoch, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", interrupted)
        assert seamseg_main("train", micro_config, micro, "--log-dir", run, *CPU) == 130
    said = (
        "interrupted; re-run the same command (`seamseg train`: with --resume auto) to resume from the newest snapshot"
    )
    assert capsys.readouterr().err.count("interrupted") == 1
    assert said in (run / "training.log").read_text()
    last = run / "model_last.pth.tar"
    assert load_snapshot(last).training_meta["epoch"] == 0
    if original:
        as_the_original_writes_it(last)
    assert seamseg_main("train", micro_config, micro, "--log-dir", run, "--resume", last, *CPU) == 0
    assert "resumed from" in capsys.readouterr().err
    resumed, straight = load_snapshot(last), load_snapshot(micro_run / "model_last.pth.tar")
    if original:
        as_the_original_writes_it(last)
        resumed = load_snapshot(last)
        as_the_original_writes_it(Path(shutil.copy(micro_run / "model_last.pth.tar", tmp_path)))
        straight = load_snapshot(tmp_path / "model_last.pth.tar")
    else:
        assert resumed.training_meta == straight.training_meta
    assert states_equal(resumed, straight)


def test_resume_of_a_finished_run_warns(micro, micro_config, micro_run, tmp_path, seamseg_main, capsys):
    last = micro_run / "model_last.pth.tar"
    assert seamseg_main("train", micro_config, micro, "--log-dir", tmp_path, "--resume", last, *CPU) == 0
    assert "all 2 epochs are done already" in capsys.readouterr().err


def test_eval_repeats_the_last_validation(micro, micro_config, micro_run, tmp_path, seamseg_main, capsys):
    last = micro_run / "model_last.pth.tar"
    words = ("train", micro_config, micro, "--log-dir", tmp_path, "--eval", *CPU)
    assert seamseg_main(*words, "--resume", last) == 0
    table = capsys.readouterr().out
    assert "3 images; in percent" in table
    assert "car" in table
    # losses play no part
    scores = train(micro_config, micro, tmp_path, "optimizer.loss_weights=(1,1)", evaluate=True, resume=last)
    assert load_snapshot(last).training_meta["last_score"] == scores.PQ
    assert not (tmp_path / "model_last.pth.tar").exists()
    assert seamseg_main(*words) == 2
    assert "--eval needs existing weights" in capsys.readouterr().err


def test_scores_do_not_depend_on_the_batch_size(micro, micro_config, micro_run, tmp_path):
    options = {"evaluate": True, "resume": micro_run / "model_last.pth.tar"}
    alone, together = (
        train(micro_config, micro, tmp_path, f"dataloader.val_batch_size={n}", **options) for n in (1, 3)
    )
    assert alone.mIoU == pytest.approx(together.mIoU, abs=1e-3)


def test_training_learns(micro, micro_config, tmp_path):
    settings = ("scheduler.epochs=14", "general.val_interval=100", "optimizer.lr=0.02", "general.min_stuff_area=100")
    scores = train(micro_config, micro, tmp_path, *settings, "dataloader.val_set=train")
    log = (tmp_path / "training.log").read_text()
    losses = [float(line.split("  loss ")[1].split()[0]) for line in log.splitlines() if "  loss " in line]
    assert sum(losses[-4:]) < 0.75 * sum(losses[:4])
    assert scores.PQ_stuff > 0.3


@pytest.mark.parametrize("sample_empty", ["no", "yes"])
def test_images_without_things(tmp_path, sample_empty):
    data = make_dataset(tmp_path / "data", [0, 0, 0], [0])
    config = write_config(tmp_path / "empty.ini")
    scores = train(config, data, tmp_path / "run", f"roi.sample_empty_images={sample_empty}")
    assert scores.n_images == 1


def test_pre_training(micro, micro_config, micro_run, tmp_path, seamseg_main, capsys):
    last = micro_run / "model_last.pth.tar"
    weights = load_snapshot(last).state_dict
    body = {k.removeprefix("backbone."): v for k, v in weights["body"].items() if k.startswith("backbone.")}
    torch.save(body, tmp_path / "body.pth")
    other = (
        write_config(tmp_path / "other.ini", extra="").read_text().replace("hidden_channels = 8", "hidden_channels = 4")
    )
    (tmp_path / "other.ini").write_text(other)
    words = ["train", tmp_path / "other.ini", micro, "--log-dir", tmp_path / "run", "--set", "scheduler.epochs=1"]
    words += ["--set", "optimizer.lr=0", "--pre-train", last, "--pre-train", f"body:{tmp_path / 'body.pth'}", *CPU]
    assert seamseg_main(*words) == 0
    output = capsys.readouterr().err
    assert "skipped" in output
    assert "sem_head." in output
    assert f"pre-trained body:{tmp_path / 'body.pth'}: loaded" in output
    start = load_snapshot(tmp_path / "run" / "model_last.pth.tar").state_dict
    key = "backbone.mod1.conv1.weight"
    assert torch.equal(start["body"][key], weights["body"][key])
    assert torch.equal(start["roi_head"]["roi_cls.weight"], weights["roi_head"]["roi_cls.weight"])


def test_pre_training_on_other_classes(micro, micro_config, micro_run, tmp_path, seamseg_main, capsys):
    """The classes of another data set, by the names of a table: a line for each class that starts at random."""
    data = tmp_path / "data"
    shutil.copytree(micro, data)
    classes = read_metadata(micro / "metadata.bin")
    # what was class 0 is class 1, and a class of things is new
    images = [replace(image, cat=[{0: 1, 1: 0}.get(c, c) for c in image.cat]) for image in classes.images]
    names = {"num_thing": 2, "categories": ["street", "sky", "car", "cow"], "images": images}
    palette, ids = [*classes.palette, (1, 2, 3)], [*classes.original_ids, 99]
    write_metadata(data / "metadata.bin", replace(classes, **names, palette=palette, original_ids=ids))
    (tmp_path / "table.ini").write_text("[classes]\nStreet = road\nsky = sky\ncar = truck, car\n")
    words = ["train", micro_config, data, "--log-dir", tmp_path / "run", "--set", "scheduler.epochs=1"]
    words += ["--set", "optimizer.lr=0", *CPU, "--pre-train-classes", tmp_path / "table.ini"]
    assert seamseg_main(*words) == 2
    error = capsys.readouterr().err.strip()
    assert "seamseg train: --pre-train-classes " in error
    assert error.endswith("is for weights of another data set: name them with --pre-train F")
    last = micro_run / "model_last.pth.tar"
    assert seamseg_main(*words, "--pre-train", last) == 0
    output = capsys.readouterr().err
    assert f"pre-trained {last}: class 'cow' starts at random: no class of the pre-training\n" in output
    assert "skipped" not in output
    before, after = (load_snapshot(path).state_dict for path in (last, tmp_path / "run" / "model_last.pth.tar"))
    old, new = (state["sem_head"]["conv_sem.weight"] for state in (before, after))
    assert torch.equal(new[:3], old[[1, 0, 2]])
    old, new = (state["roi_head"]["roi_bbx.weight"] for state in (before, after))
    assert torch.equal(new[:4], old)
    assert new.shape[0] == 8
    assert "classes are not those" not in output
    assert seamseg_main(*words[:-2], "--pre-train", last) == 0
    output = capsys.readouterr().err
    assert "skipped" in output
    assert f"pre-trained {last}: its classes are not those of the data set; --pre-train-classes TABLE copies" in output
    for part in ("sem_head", "roi_head"):
        assert seamseg_main(*words, "--pre-train", f"{part}:{last}") == 0
        assert "'cow' starts at random" in capsys.readouterr().err
    assert seamseg_main(*words, "--pre-train", last, "--eval") == 2
    assert "does not fill the network: class 'cow' starts at random" in capsys.readouterr().err
    content = torch.load(last, weights_only=False)
    torch.save({k: v for k, v in content.items() if k != "metadata"}, tmp_path / "nameless.tar")
    assert seamseg_main(*words, "--pre-train", tmp_path / "nameless.tar") == 2
    assert "nameless.tar: holds no names of classes: name a folder that holds" in capsys.readouterr().err


def test_body_weights_of_the_configuration(micro, micro_config, micro_run, tmp_path):
    weights = load_snapshot(micro_run / "model_last.pth.tar").state_dict["body"]
    torch.save({k.removeprefix("backbone."): v for k, v in weights.items() if "fpn" not in k}, tmp_path / "body.pth")
    settings = (f"body.weights={tmp_path / 'body.pth'}", "scheduler.epochs=1", "optimizer.lr=0")
    train(micro_config, micro, tmp_path / "run", *settings)
    start = load_snapshot(tmp_path / "run" / "model_last.pth.tar").state_dict["body"]
    assert torch.equal(
        start["backbone.mod3.block1.convs.conv1.weight"], weights["backbone.mod3.block1.convs.conv1.weight"]
    )


@pytest.mark.parametrize(
    ("pretrain", "message"),
    [
        ("missing.pth", "missing.pth: no such file"),
        ("head:missing.pth", "this network has no head"),
        ("roi_head:{metadata}", "not a snapshot"),
    ],
)
def test_pre_training_errors(micro, micro_config, tmp_path, pretrain, message):
    with pytest.raises(InputError, match=message):
        train(micro_config, micro, tmp_path, pretrain=[pretrain.format(metadata=micro / "metadata.bin")])


def test_weights_that_do_not_fit(micro, micro_config, tmp_path):
    torch.save({"foo": torch.zeros(2)}, tmp_path / "odd.pth")
    with pytest.raises(InputError, match="nothing in it fits this network"):
        train(micro_config, micro, tmp_path, pretrain=[f"body:{tmp_path / 'odd.pth'}"])
    with pytest.raises(InputError, match="are mutually exclusive"):
        train(micro_config, micro, tmp_path, pretrain=["a"], resume="b")


def test_a_loss_that_is_not_finite_stops_with_one_line(micro, micro_config, tmp_path, seamseg_main, capsys):
    words = ("train", micro_config, micro, "--log-dir", tmp_path, "--quiet", "--set", "optimizer.lr=1e30", *CPU)
    assert seamseg_main(*words) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith("seamseg train: training stopped at step 2: ")
    assert "(images train" in error
    assert "\n" not in error
    assert not (tmp_path / "model_last.pth.tar").exists()
    assert "training stopped at step 2" in (tmp_path / "training.log").read_text()


def test_a_full_disk_is_one_line_and_keeps_the_last_snapshot(micro, micro_config, micro_run, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    train(micro_config, micro, tmp_path, "scheduler.epochs=1")
    before = (tmp_path / "model_last.pth.tar").read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SeamsegError, match=r"step-\d+\.pth\.tar: cannot be written: No space left on device"):
        train(micro_config, micro, tmp_path)
    assert (tmp_path / "model_last.pth.tar").read_bytes() == before
    assert not [n for n in os.listdir(tmp_path) if n.endswith(".partial")]


@pytest.mark.parametrize(
    ("stop", "raised", "message"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, None),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), SeamsegError, "No space left on device"),
    ],
)
def test_cause_of_a_failed_write_is_reported(micro_run, tmp_path, monkeypatch, stop, raised, message):
    """Masked by torch's writer, which raises its own error."""
    snapshot = load_snapshot(micro_run / "model_last.pth.tar")

    class Stopping(io.FileIO):
        def write(self, data):
            if self.tell() > 5000:
                raise stop
            return super().write(data)

    monkeypatch.setattr("builtins.open", lambda path, mode: Stopping(path, mode))
    with pytest.raises(raised, match=message):
        save_snapshot(tmp_path / "model.tar", snapshot)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


def test_a_resumed_snapshot_must_fit(micro, micro_config, micro_run, tmp_path):
    last = micro_run / "model_last.pth.tar"
    snapshot = load_snapshot(last)
    for missing in ({"epoch"}, {"global_step"}, set(snapshot.training_meta)):
        meta = {key: value for key, value in snapshot.training_meta.items() if key not in missing}
        save_snapshot(tmp_path / "weights.tar", Snapshot(snapshot.config, snapshot.state_dict, meta))
        with pytest.raises(InputError, match="training progress is missing or damaged"):
            train(micro_config, micro, tmp_path / "run", resume=tmp_path / "weights.tar")
    position = {"epoch": 1, "steps": 1, "segments": [[1, 2, 1]], "order": [4, 0]}
    save_snapshot(tmp_path / "other.tar", replace(snapshot, resume={**snapshot.resume, "position": position}))
    with pytest.raises(InputError, match="training progress is missing or damaged"):
        train(micro_config, micro, tmp_path / "run", resume=tmp_path / "other.tar")
    with pytest.raises(InputError, match="parameters a group"):
        train(micro_config, micro, tmp_path / "run", "body.num_frozen=2", resume=last)
    other = make_dataset(tmp_path / "data", [1], [1])
    metadata = read_metadata(other / "metadata.bin")
    write_metadata(other / "metadata.bin", replace(metadata, num_stuff=1, num_thing=2))
    with pytest.raises(
        InputError, match=r"1 thing classes, the data set has 2; .*`pretrain=.*` `pretrain_classes=TABLE`"
    ):
        train(micro_config, other, tmp_path / "run", resume=last)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dataloader.train_set=", "train_set is required"),
        ("dataloader.train_batch_size=", "train_batch_size is required"),
        ("dataloader.train_set=nowhere", "no split 'nowhere'"),
        ("optimizer.loss_weights=(1., 1.)", "loss_weights.* 2 .*6 losses"),
        ("scheduler.type=step", "a step schedule needs step_size"),
    ],
)
def test_wrong_settings(micro, micro_config, tmp_path, override, message):
    with pytest.raises(InputError, match=message):
        train(micro_config, micro, tmp_path, override)


def test_a_loss_without_a_weight_is_refused(micro, micro_config, tmp_path, monkeypatch):
    forward = TrainingModule.forward

    def with_edges(self, batch):
        losses = forward(self, batch)
        more = {"edge_loss": losses.means["sem_loss"]}, {"edge_loss": losses.counts["sem_loss"]}
        return Losses(losses.means | more[0], losses.counts | more[1])

    monkeypatch.setattr(TrainingModule, "forward", with_edges)
    message = (
        r"^edge_loss has no weight: \[optimizer\] loss_weights has 6 values for 7 losses \(obj_loss, .*edge_loss\)$"
    )
    with pytest.raises(InputError, match=message):
        train(micro_config, micro, tmp_path)


def test_training_without_a_validation_set(micro, micro_config, tmp_path):
    assert train(micro_config, micro, tmp_path, "dataloader.val_set=", "scheduler.epochs=1") is None
    assert (tmp_path / "model_last.pth.tar").exists()
    assert not (tmp_path / "model_best.pth.tar").exists()


def test_a_new_run_does_not_keep_the_best_of_an_old_one(micro, micro_config, tmp_path):
    train(micro_config, micro, tmp_path, "scheduler.epochs=1")
    old = (tmp_path / "model_best.pth.tar").read_bytes()
    train(micro_config, micro, tmp_path, "scheduler.epochs=1", "general.seed=3")
    assert (tmp_path / "model_best.pth.tar").read_bytes() != old
    assert "replaces them" in (tmp_path / "training.log").read_text()
    train(micro_config, micro, tmp_path, "scheduler.epochs=1", "dataloader.val_set=")
    assert not (tmp_path / "model_best.pth.tar").exists()


@pytest.mark.gpu
def test_training_on_a_gpu(micro, micro_config, tmp_path):
    overrides = ("dataloader.num_workers=2", "general.log_interval=2")
    scores = run_training(TrainingOptions(micro_config, micro, tmp_path, overrides=overrides, device="cuda")).validation
    assert scores.n_images == 3
    state = load_snapshot(tmp_path / "model_last.pth.tar").state_dict
    assert all(t.device.type == "cpu" for t in state["body"].values())


def test_a_broken_training_image_is_named(micro_config, tmp_path, seamseg_main, capsys):
    data = make_dataset(tmp_path / "data", [1, 1], [1])
    (data / "img" / "train1.png").write_bytes(b"")
    for workers in (0, 2):
        words = ("train", micro_config, data, "--log-dir", tmp_path / "run", "--quiet", *CPU)
        assert seamseg_main(*words, "--set", f"dataloader.num_workers={workers}") == 2
        error = capsys.readouterr().err.strip()
        assert "train1.png" in error
        assert "0 bytes" in error
        assert "\n" not in error


def test_mixed_precision_trains_like_float32(tmp_path, micro):
    losses = {}
    for precision in ("fp32", "bf16"):
        config = write_config(tmp_path / f"{precision}.ini")
        train(config, micro, tmp_path / precision, f"general.precision={precision}", "scheduler.epochs=1")
        state = load_snapshot(tmp_path / precision / "model_last.pth.tar").state_dict
        losses[precision] = state["loss_meter"]
        dtypes = {v.dtype for part in KINDS["panoptic"].modules for v in state[part].values()}
        assert dtypes <= {torch.float32, torch.int64}
    a, b = (torch.as_tensor(x["sum"], dtype=torch.float64) for x in losses.values())
    assert torch.isfinite(b).all()
    assert not torch.equal(a, b)
    assert torch.allclose(a, b, rtol=0.1)


def test_eval_of_weights_that_do_not_fill_the_network(tmp_path, micro, micro_run):
    config = write_config(tmp_path / "micro.ini")
    best = micro_run / "model_best.pth.tar"
    with pytest.raises(InputError, match="gives no weights for rpn_head, roi_head, sem_head"):
        train(config, micro, tmp_path / "run", pretrain=[f"body:{best}"], evaluate=True)
    with pytest.raises(InputError, match="does not fill the network"):
        train(config, micro, tmp_path / "run", "sem.hidden_channels=24", pretrain=[str(best)], evaluate=True)
