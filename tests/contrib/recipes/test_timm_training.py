"""Training, resume and prediction with a timm network as backbone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.micro import train, write_config
from support.processes import launch

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.cli.main import main
from seamseg.components import BodyContext
from seamseg.contrib.recipes.timm.network import TimmBackbone, TimmKeys
from seamseg.ops.norm import InPlaceABN
from seamseg.utils.distributed import distributed

KEYS = (
    "body timm.drop_path=0.2",
    "optimizer.type=adamw",
    "optimizer.lr=0.001",
    "optimizer.body_lr_factor=0.5",
    "optimizer.layer_decay=0.9",
    "general.checkpoint_body=yes",
)
SEMANTIC = ("general.kind=semantic", "sem.pooling_size=(2, 2)")


def timm_config(folder: Path, body: str) -> Path:
    path = write_config(folder / "timm.ini")
    lines = [line for line in path.read_text().splitlines() if not line.startswith("out_channels = {")]
    text = "\n".join(lines).replace("body = resnet18", f"body = timm:{body}")
    path.write_text(text.replace("[general]", "[general]\ncomponents = seamseg.contrib.recipes.timm"))
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
        ("test_maxvit", ("general.kind=instance_seg",)),
        ("test_efficientnet", (*SEMANTIC, "body.body_params={'output_stride': 8}")),
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
    assert main(["export", str(run), str(out)]) == 0
    if body == "test_maxvit":
        assert main(["export", str(run), str(tmp_path / "free.onnx"), "--dynamic"]) == 2


def step(images: torch.Tensor, checkpoint: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Gradients and running statistics of a backbone with batch norms after a step."""
    torch.manual_seed(0)
    context = BodyContext(InPlaceABN, "timm:test_resnet", {}, checkpoint=checkpoint, synchronise=True)
    body = TimmBackbone(TimmKeys(), context)
    sum((x**2).sum() for x in body(images).values()).backward()
    return {key: p.grad for key, p in body.named_parameters()}, dict(body.named_buffers())


def step_of_a_process(rank: int, join: Callable[[], None], images: torch.Tensor, out: Path) -> None:
    join()
    with distributed("cpu"):
        for checkpoint in (False, True):
            gradients, buffers = step(images[rank : rank + 1], checkpoint)
            for gradient in gradients.values():
                torch.distributed.all_reduce(gradient)
            if rank == 0:
                torch.save((gradients, buffers), out / f"{checkpoint}.pth")


@pytest.mark.slow
@pytest.mark.distributed
def test_batch_norms_take_the_statistics_of_two_processes(tmp_path: Path) -> None:
    """Recomputed activations, too, and no batch is counted twice."""
    images = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    wanted = step(images, checkpoint=False)
    launch(step_of_a_process, 2, images, tmp_path)
    for checkpoint in (False, True):
        gradients, buffers = torch.load(tmp_path / f"{checkpoint}.pth")
        torch.testing.assert_close(buffers, wanted[1], rtol=1e-4, atol=1e-5)
        for key, gradient in wanted[0].items():
            torch.testing.assert_close(gradients[key], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max()))
