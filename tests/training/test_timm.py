"""Training, resume and prediction with a network of timm as backbone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.micro import make_dataset, train, write_config
from support.processes import launch

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.cli.main import main

KEYS = (
    "body.drop_path=0.2",
    "optimizer.type=adamw",
    "optimizer.lr=0.001",
    "optimizer.body_lr_factor=0.5",
    "optimizer.layer_decay=0.9",
    "general.checkpoint_body=yes",
)
SEMANTIC = ("general.kind=semantic", "sem.pooling_size=(2, 2)")
SWIN = "{'embed_dim': 16, 'depths': (1, 1, 1, 2), 'num_heads': (1, 1, 1, 1)}"


def timm_config(folder: Path, body: str) -> Path:
    path = write_config(folder / "timm.ini")
    lines = [line for line in path.read_text().splitlines() if not line.startswith("out_channels = {")]
    path.write_text("\n".join(lines).replace("body = resnet18", f"body = timm:{body}"))
    return path


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_snapshot(run / "model_last.pth.tar").state_dict["body"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("test_convnext", ()),
        ("test_vit", ()),
        ("test_resnet", ("general.kind=detection",)),
        ("swin_tiny_patch4_window7_224", (f"body.body_params={SWIN}",)),
        ("test_maxvit", ("general.kind=instance_seg",)),
        (
            "test_efficientnet",
            ("general.kind=semantic", "sem.pooling_size=(2, 2)", "body.body_params={'output_stride': 8}"),
        ),
    ],
)
def test_a_trained_network_predicts_and_is_exported(
    body: str, more: tuple[str, ...], micro: Path, tmp_path: Path
) -> None:
    run, options = tmp_path / "run", (*KEYS, *more)
    if body == "test_efficientnet":
        options = tuple(key for key in options if "layer_decay" not in key)
    train(timm_config(tmp_path, body), micro, run, *options)
    assert any(key.partition("model.")[2] for key in weights(run))
    model = seamseg.load(run, device="cpu")
    for name in ("val0", "val1"):
        assert model.predict(micro / "img" / f"{name}.png") is not None
    out = tmp_path / "model.onnx"
    # the last lines of its output compare the file with the network
    assert main(["export", str(run), str(out), "--size", "96x128"]) == 0
    if body.startswith(("swin", "test_maxvit")):
        assert main(["export", str(run), str(tmp_path / "free.onnx"), "--dynamic"]) == 2


@pytest.mark.slow
def test_a_resumed_training_ends_with_the_same_bits(micro: Path, tmp_path: Path) -> None:
    config = timm_config(tmp_path, "test_convnext")
    train(config, micro, tmp_path / "straight", *KEYS)
    parts = tmp_path / "parts"
    train(config, micro, parts, *KEYS, "general.snapshot_interval=1", "general.snapshot_keep=10")
    first = sorted((parts / "snapshots").iterdir())[0]
    train(config, micro, tmp_path / "again", *KEYS, resume=first)
    straight, again = weights(tmp_path / "straight"), weights(tmp_path / "again")
    assert straight.keys() == again.keys()
    assert all(torch.equal(straight[key], again[key]) for key in straight)


def train_in_processes(rank: int, join, config: Path, data: Path, run: Path, keys: tuple[str, ...]) -> None:
    join()
    train(config, data, run, *keys)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("unused", ["find", "fake"])
def test_two_processes_train_as_one(unused: str, tmp_path: Path) -> None:
    """Batch norms of the backbone take the statistics of both; recomputation included."""
    data = make_dataset(tmp_path / "data", [2, 1, 3, 1], [1])
    config = timm_config(tmp_path, "test_resnet")
    keys = ("general.checkpoint_body=yes", f"general.unused_parameters={unused}", "optimizer.loss_average=step")
    keys = (*keys, *SEMANTIC, "optimizer.lr=0.01", "scheduler.epochs=1")
    train(config, data, tmp_path / "one", *keys)
    launch(train_in_processes, 2, config, data, tmp_path / "two", (*keys, "dataloader.train_batch_size=1"))
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-3, atol=1e-4, msg=key)
