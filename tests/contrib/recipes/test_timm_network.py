"""timm networks as backbones, each family once, trained, resumed and exported; nothing is downloaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import timm
import torch
from safetensors.torch import save_file
from support.micro import CONFIG, train
from support.op_contract import keeping
from support.processes import launch
from torch import nn
from torch.testing import assert_close

import seamseg
from seamseg.checkpoints.pretrained import load_body_weights, normalisation_problem
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.cli.main import main
from seamseg.components import BodyContext
from seamseg.config import Config, config_from_string
from seamseg.contrib.recipes.timm.network import TimmBackbone, TimmKeys
from seamseg.models.build import build_network
from seamseg.ops.norm import InPlaceABN
from seamseg.training.optim.optimizer import build_optimizer, load_optimizer_state
from seamseg.utils.distributed import distributed
from seamseg.utils.errors import InputError

SWIN = {"embed_dim": 16, "depths": (1, 1, 1, 2), "num_heads": (1, 1, 1, 1)}
FAMILIES: dict[str, dict[str, Any]] = {
    "test_convnext": {},
    "test_resnet": {},
    "test_efficientnet": {},
    "regnetx_002": {},
    "swin_tiny_patch4_window7_224": SWIN,
}
PLAIN = "test_vit"


def ini(body: str) -> str:
    text = "\n".join(line for line in CONFIG.format(norm="bn").splitlines() if not line.startswith("out_channels = {"))
    return text.replace("resnet18", body).replace("[general]", "[general]\ncomponents = seamseg.contrib.recipes.timm")


def config(body: str, *overrides: str) -> Config:
    return config_from_string(ini(body), overrides=overrides)


def backbone(name: str, **options: Any) -> TimmBackbone:
    torch.manual_seed(0)
    context = BodyContext(InPlaceABN, f"timm:{name}", FAMILIES.get(name, {}), **options)
    return TimmBackbone(TimmKeys(), context)


@pytest.mark.parametrize("name", FAMILIES)
def test_levels_are_the_maps_of_timm_cropped_to_the_image(name: str) -> None:
    body = backbone(name).eval()
    free = {key: value for key, value in body.arguments.items() if key != "drop_path_rate"}
    whole = timm.create_model(name, num_classes=0, **free).eval()
    whole.load_state_dict(body.model.state_dict(), strict=False)
    images = torch.randn(2, 3, 67, 98)
    padded = nn.functional.pad(images, (0, 30, 0, 29))
    with torch.no_grad():
        found = body(images)
        maps = whole.forward_intermediates(padded, output_fmt="NCHW", intermediates_only=True)
    wanted = [x for x in maps if 128 // x.shape[-1] >= 4]
    assert list(found) == ["mod2", "mod3", "mod4", "mod5"]
    assert {key: x.shape[1] for key, x in found.items()} == body.out_channels
    for x, y, stride in zip(found.values(), wanted, (4, 8, 16, 32), strict=True):
        height, width = -(-67 // stride), -(-98 // stride)
        assert x.shape[2:] == (height, width)
        assert_close(x, y[..., :height, :width])


def test_a_plain_network_has_a_pyramid() -> None:
    body = backbone(PLAIN).eval()
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        found = body(images)
        tokens = body.model.forward_features(images)[:, body.model.num_prefix_tokens :]
        body.keep_outputs = False
    assert body.out_channels == {"mod2": 16, "mod3": 32, "mod4": 64, "mod5": 64}
    assert [tuple(x.shape[2:]) for x in found.values()] == [(16, 24), (8, 12), (4, 6), (2, 3)]
    assert_close(found["mod4"], tokens.transpose(1, 2).reshape(1, 64, 4, 6))
    assert_close(found["mod5"], nn.functional.max_pool2d(found["mod4"], 2))
    alone = backbone(PLAIN, keep_outputs=False)
    assert (alone.pyramid, alone.out_strides) == (None, {"mod5": 16})


@pytest.mark.parametrize(
    ("name", "frozen", "prefixes"),
    [
        ("test_convnext", 3, ("stem.", "stages.0.", "stages.1.")),
        ("test_resnet", 2, ("conv1.", "bn1.", "layer1.")),
        (PLAIN, 3, ("patch_embed.", "pos_embed", "cls_token", "reg_token", "blocks.0.", "blocks.1.", "blocks.2.")),
    ],
)
def test_frozen_modules_are_stem_and_stages(name: str, frozen: int, prefixes: tuple[str, ...]) -> None:
    body = backbone(name)
    body.freeze(frozen)
    found = {key for key, p in body.model.named_parameters() if not p.requires_grad}
    assert found == {key for key, _ in body.model.named_parameters() if key.startswith(prefixes)}
    assert found
    body.freeze(5)
    assert not any(p.requires_grad for p in body.model.parameters())


@pytest.mark.parametrize("name", ["test_convnext", "test_resnet", PLAIN])
def test_recomputation_changes_nothing(name: str) -> None:
    images, results = torch.randn(2, 3, 64, 64), []
    for checkpoint in (False, True):
        body = backbone(name, checkpoint=checkpoint)
        loss, kept = keeping(lambda body=body: sum((x**2).mean() for x in body(images).values()))
        loss.backward()
        gradients = {key: p.grad for key, p in body.named_parameters()}
        size = sum(x.untyped_storage().nbytes() for x in kept.values())
        results.append((gradients, dict(body.named_buffers()), size))
    (gradients, buffers, size), (again, buffers_again, smaller) = results
    assert_close(again, gradients, rtol=1e-4, atol=1e-6)
    assert_close(buffers_again, buffers, rtol=0, atol=0)
    assert smaller < 0.8 * size


def test_groups_of_the_optimizer() -> None:
    keys = ("optimizer.type=adamw", "optimizer.lr=0.01", "optimizer.weight_decay=0.1", "optimizer.body_lr_factor=0.5")
    wanted = config("timm:test_convnext", *keys, "optimizer.layer_decay=0.9", "body.num_frozen=1")
    net = build_network(wanted, 2, 1)
    optimizer = build_optimizer(net, wanted)
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    body = net.body.backbone
    rates = {key: groups[id(p)]["lr"] for key, p in body.model.named_parameters() if p.requires_grad}
    layers = body.layer_ids()
    assert rates == {key: pytest.approx(0.005 * 0.9 ** (max(layers.values()) + 1 - layers[key])) for key in rates}
    assert len(set(rates.values())) > 4
    assert min(rates, key=rates.get).startswith("stages.0.")
    plain = build_optimizer(net, config("timm:test_convnext", *keys, "body.num_frozen=1"))
    with pytest.raises(InputError, match=r"optimizer\.layer_decay"):
        load_optimizer_state(plain, optimizer.state_dict(), "a.pth")


def test_weights_of_a_file(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = timm.create_model("test_convnext").state_dict()
    save_file(state, tmp_path / "weights.safetensors")
    net = build_network(config("timm:test_convnext"), 2, 1)
    report = load_body_weights(net, str(tmp_path / "weights.safetensors"))
    own = net.body.backbone.model.state_dict()
    assert (report.loaded, report.skipped) == (len(own), [])
    assert all(torch.equal(value, state[key]) for key, value in own.items())
    # a file whose pyramid alone fits is refused
    other = build_network(config("timm:test_resnet"), 2, 1)
    assert set(other.body.state_dict()) & set(net.body.state_dict())
    torch.save(other.body.state_dict(), tmp_path / "body.pth")
    with pytest.raises(InputError, match=r"nothing in it fits this network's backbone: loaded [1-9]"):
        load_body_weights(net, str(tmp_path / "body.pth"))


def test_weights_of_timm(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = timm.create_model("test_convnext").state_dict()
    torch.save(state, tmp_path / "file.pth")
    wanted = config("timm:test_convnext", "dataloader.rgb_mean=(0.1, 0.2, 0.3)")
    with mock.patch("timm.models._builder.load_pretrained", side_effect=AssertionError):
        net = build_network(wanted, 2, 1)
    create = timm.create_model

    def offline(name: str, pretrained: bool = False, **options: Any) -> nn.Module:
        cfg = {"file": str(tmp_path / "file.pth")} if pretrained else {}
        return create(name, pretrained=pretrained, pretrained_cfg_overlay=cfg, **options)

    with mock.patch.object(timm, "create_model", offline):
        report = load_body_weights(net, "timm")
    assert report.skipped == []
    own = net.body.backbone.model.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in own.items())
    assert "rgb_mean = (0.5, 0.5, 0.5)" in (normalisation_problem(net, wanted.dataloader) or "")
    halves = ("dataloader.rgb_mean=(.5, .5, .5)", "dataloader.rgb_std=(.5, .5, .5)")
    assert normalisation_problem(net, config("timm:test_convnext", *halves).dataloader) is None
    with pytest.raises(InputError, match="resnet18 is not a timm network"):
        load_body_weights(build_network(config("resnet18"), 2, 1), "timm")


@pytest.mark.parametrize(
    ("body", "overrides", "words"),
    [
        ("timm:convnext_tny", (), "has no such network; did you mean 'convnext_tiny'?"),
        ("timm:beit_base_patch16_224", ("body.body_params={'depth': 2}",), "images of one size"),
        ("timm:vit_tiny_patch16_224", ("body.body_params={'patch_size': 14, 'depth': 2}",), "patches have 14 pixels"),
        ("timm:efficientvit_m0", (), "strides 16, 32, 64"),
        ("timm:test_convnext", ("body.body_params={'pretrained': True}",), "set [body] weights = timm instead"),
        ("timm:test_convnext", ("body.body_params={'depths': 'abc'}",), "[body] body_params: timm:test_convnext: "),
        ("timm:test_convnext", ("body.num_frozen=6",), "has 5 modules, not 6"),
        ("timm:twins_svt_small", ("body.num_frozen=2",), "give 0 or 5"),
        ("timm:test_convnext", ("fpn.out_strides=(4, 8, 16, 64)",), "gives (4, 8, 16, 32)"),
        ("timm:vgg11", ("body timm.drop_path=0.1",), "drop_path: timm:vgg11 has none"),
        ("timm:vgg11", ("general.checkpoint_body=yes",), "vgg11 does not support it"),
    ],
)
def test_mistakes_are_a_line(body: str, overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError) as error:
        build_network(config(body, *overrides), 2, 1)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


KEYS = (
    "body timm.drop_path=0.2",
    "optimizer.type=adamw",
    "optimizer.lr=0.001",
    "optimizer.body_lr_factor=0.5",
    "optimizer.layer_decay=0.9",
    "general.checkpoint_body=yes",
)
SEMANTIC = ("general.kind=semantic", "sem.pooling_size=(2, 2)")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("test_convnext", ()),
        ("test_vit", ("general.kind=detection",)),
        ("test_maxvit", ("general.kind=instance_seg",)),
        ("test_efficientnet", (*SEMANTIC, "body.body_params={'output_stride': 8}")),
    ],
)
def test_a_trained_network_predicts_and_is_exported(body, more, micro, tmp_path):
    run, options = tmp_path / "run", (*KEYS, *more)
    if body == "test_efficientnet":
        options = tuple(key for key in options if "layer_decay" not in key)
    (tmp_path / "timm.ini").write_text(ini(f"timm:{body}"))
    train(tmp_path / "timm.ini", micro, run, *options)
    assert any(key.partition("model.")[2] for key in load_snapshot(run / "model_last.pth.tar").state_dict["body"])
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
    images = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    wanted = step(images, checkpoint=False)
    launch(step_of_a_process, 2, images, tmp_path)
    for checkpoint in (False, True):
        gradients, buffers = torch.load(tmp_path / f"{checkpoint}.pth")
        torch.testing.assert_close(buffers, wanted[1], rtol=1e-4, atol=1e-5)
        for key, gradient in wanted[0].items():
            torch.testing.assert_close(gradients[key], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max()))
