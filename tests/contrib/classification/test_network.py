"""Initialisation, optimizer, rates and logits of the original; a network from Python, its results and validation."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support.classes import make_class_folders, write_config
from support.golden_files import DATA, array
from support.golden_weights import backbone_state, stored
from support.onnx_scenes import CLASSES
from torch import nn
from torch.nn import functional
from torchvision.transforms import v2

import seamseg
from seamseg.contrib.classification.config import (
    InputConfig,
    NetworkConfig,
    load_classifier_config,
    parse_classifier_config,
)
from seamseg.contrib.classification.data import ClassFolders, ImageBatch
from seamseg.contrib.classification.data import test_transform as validation_transform
from seamseg.contrib.classification.network import Classifier, build_classifier, correct, initialise
from seamseg.contrib.classification.result import Classification
from seamseg.contrib.classification.train import build_optimizer, build_schedule, trainer_options
from seamseg.contrib.classification.validate import ClassifierScores, ClassifierValidator, validate_classifier
from seamseg.maps.predictions import Prediction
from seamseg.models.network import TrainingModule
from seamseg.ops.norm import ABN
from seamseg.training.step import Stepper
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError, SeamsegError

GOLDEN = json.loads((DATA / "classifier.json").read_text())
RESNET18 = {"network": {"arch": "resnet18", "activation": "leaky_relu", "bn_mode": "inplace"}}


def build(**network: object) -> nn.Module:
    return build_classifier(parse_classifier_config({"network": {"classes": 7, **network}}, "c.json"))


@pytest.mark.parametrize("case", GOLDEN["init"][::7], ids=lambda case: f"{case['weight_init']}-{case['activation']}")
def test_initialisation(case: dict) -> None:
    layers = nn.ModuleDict(
        {
            "conv": nn.Conv2d(64, 128, 3),
            "grouped": nn.Conv2d(256, 256, 3, groups=16),
            "one": nn.Conv2d(256, 128, 1),
            "fc": nn.Linear(512, 1000),
            "abn": ABN(4),
        }
    )
    with torch.no_grad():
        layers["abn"].weight.fill_(3)
    torch.manual_seed(0)
    names = ("activation", "activation_param", "weight_gain_multiplier", "weight_init")
    initialise(layers, NetworkConfig(**{name: case[name] for name in names}))
    for name in ("conv", "grouped", "one", "fc"):
        spread = layers[name].weight.std().item()
        # the orders of magnitude of gains, fans and multipliers; the draws differ
        assert spread == pytest.approx(case[name]["std"], rel=0.02), name
        assert layers[name].bias.abs().max() == 0
    assert layers["abn"].weight.tolist() == [1] * 4


@pytest.mark.parametrize("name", GOLDEN["lr"])
def test_learning_rates(name: str) -> None:
    case = GOLDEN["lr"][name]
    options = case.get("optimizer") or GOLDEN["configs"][name]["optimizer"]
    config = parse_classifier_config({"optimizer": options}).optimizer
    net = nn.ModuleDict({"conv": nn.Conv2d(1, 1, 1), "fc": nn.Linear(1, 1)})
    rates = [group["lr"] for group in build_optimizer(net, config).param_groups]
    schedule = build_schedule(config.schedule, rates, 5005)
    for t, expected in zip(case["its"], case["lr"]):
        step, epoch = (1, t) if config.schedule.mode == "epoch" else (t + 1, t // 5005)
        # the rate of the original becomes negative at the end of the linear schedule
        wanted = [max(0.0, rate) for rate in expected]
        assert schedule.get_lr(step, epoch) == pytest.approx(wanted, rel=1e-12, abs=1e-18)
    whole = config.schedule.epochs * (1 if config.schedule.mode == "epoch" else 5005)
    assert schedule.total == whole


def test_arguments_of_the_architectures() -> None:
    norms = [layer for layer in build(arch="resnet18").modules() if isinstance(layer, ABN)]
    assert {(type(layer), layer.activation_param) for layer in norms} == {(ABN, 0.01)}
    small = {"blocks": [1, 1, 1, 1], "groups": 2, "channels": [4, 4, 8]}
    assert sum(p.numel() for p in build(arch="resnext50", params=small).parameters()) < 100_000
    assert "conv3" in dict(build(arch="densenet121", input_3x3=True).get_submodule("mod1").named_children())
    dilated = build(arch="resnet18", dilation=[1, 1, 2, 4])
    assert dilated.get_submodule("mod5.block2.convs.conv2").dilation == (4, 4)
    # ignored, as by the original
    assert isinstance(build(arch="wider_resnet16", input_3x3=True, dilation=2), nn.Module)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"arch": "resnet19"}, "unknown network 'resnet19'.*did you mean 'resnet18'"),
        ({"arch": "resnet18", "params": {"widht": 3}}, "resnet18 has no parameter 'widht'"),
        ({"arch": "resnet18", "params": {"classes": 3}}, "multiple values for keyword argument 'classes'"),
        ({"arch": "resnet18", "input_3x3": True}, "resnet18 has no parameter 'input_3x3'"),
        ({"arch": "resnet18", "dilation": [1, 1, 2]}, "dilation has 3 entries, give one number or 4"),
        ({"arch": "resnet18", "bn_mode": "inplace"}, "relu cannot be inverted, choose leaky_relu"),
    ],
)
def test_networks_that_do_not_exist(network: dict, message: str) -> None:
    with pytest.raises(InputError, match=f"c.json: network: .*{message}") as caught:
        build(**network)
    assert "\n" not in str(caught.value)


def test_correct_images() -> None:
    logits = torch.tensor([[0.0, 3, 2, 1, -1, -2], [6, 5, 4, 3, 2, 1]])
    assert correct(logits, torch.tensor([1, 5])).tolist() == [[True, False], [True, False]]
    assert correct(logits, torch.tensor([2, 4])).tolist() == [[False, False], [True, True]]
    assert correct(logits[:, :3], torch.tensor([0, 2])).tolist() == [[False, False], [True, True]]


def test_a_network_from_python_gives_the_logits_of_the_original(tmp_path: Path) -> None:
    config, checkpoint = tmp_path / "c.json", tmp_path / "model.pth.tar"
    config.write_text(json.dumps(RESNET18))
    net = build_classifier(parse_classifier_config(RESNET18))
    state = {f"module.{k}": v for k, v in backbone_state("resnet18", net).items() if "num_batches_tracked" not in k}
    torch.save({"epoch": 90, "arch": "resnet18", "state_dict": state, "best_prec1": torch.tensor(70.0)}, checkpoint)
    net = seamseg.classifier(config, checkpoint, device="cpu")
    assert not net.training
    mean, std = (np.array(v, np.float32) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    pixels = (array("backbones", "input_crop_u8").astype(np.float32) / np.float32(255) - mean) / std
    with torch.inference_mode():
        logits = net(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    np.testing.assert_allclose(logits, array("backbones", "resnet18/logits"), rtol=0, atol=2e-4)

    crops = validation_transform(InputConfig(scale_val=128, crop_val=112), ten_crops=True)(
        Image.open(DATA / "flower.png").convert("RGB")
    )
    with torch.inference_mode():
        mean_of_crops = net(crops).mean(0)
    np.testing.assert_allclose(mean_of_crops, array("backbones", "resnet18/ten_logits")[0], rtol=0, atol=2e-4)


def test_a_training_step_of_the_original() -> None:
    case = stored()["train_step"]["resnet18"]
    optimizer = {"learning_rate": case["lr"], "nesterov": True, "clip": case["clip"], "weight_decay": 1e-4}
    config = parse_classifier_config({**RESNET18, "optimizer": optimizer})
    body = build_classifier(config)
    body.load_state_dict(backbone_state("resnet18", body))
    module = TrainingModule(Classifier(body)).train()
    stepper = Stepper(trainer_options(config), module, build_optimizer(module.net, config.optimizer), World())
    before = {name: p.detach().clone() for name, p in body.named_parameters()}
    pixels = torch.from_numpy(array("backbones", "input_crop_u8").astype(np.float32)).permute(0, 3, 1, 2) / 255
    images = v2.functional.normalize(pixels, InputConfig().mean, InputConfig().std)
    batch = ImageBatch(images, torch.tensor(case["targets"]), ["a", "b", "c"])
    result = stepper([batch], [case["lr"]])
    name = "resnet18"
    assert result.losses["loss"].item() == pytest.approx(float(array("backbones_train", f"{name}/loss")), abs=1e-4)
    assert result.grad_norm.item() == pytest.approx(case["total_grad_norm"], rel=1e-4)
    names = array("backbones_train", f"{name}/names").tolist()
    assert names == list(before), "the order of the parameters in the state of the optimizer"
    moved = [(p.detach() - before[n]).double().norm().item() for n, p in body.named_parameters()]
    np.testing.assert_allclose(moved, array("backbones_train", f"{name}/update_norm"), rtol=1e-3)


class ByColour(nn.Module):
    """Logits by the mean of each channel, blue, green and red; red is often mistaken for green."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        red, green, blue = images.mean((2, 3)).unbind(1)
        return torch.stack([blue, green + 1.2, red], 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_class_folders(tmp_path / "data")


@pytest.mark.parametrize("ten_crops", [False, True])
def test_scores(root: Path, ten_crops: bool) -> None:
    config = load_classifier_config(write_config(root.parent / "c.json"))
    transform = validation_transform(InputConfig(scale_val=36, crop_val=32), ten_crops=ten_crops)
    net, check = ByColour(), ClassifierValidator(ClassFolders(root, "val", transform), 2, config, World())
    scores = check(net)
    items = [check.dataset[i] for i in range(9)]
    logits = [net(image if ten_crops else image[None]).mean(0) for image, _, _ in items]
    labels = torch.tensor([label for _, label, _ in items])
    hits = torch.stack(logits).argmax(1) == labels
    assert scores.top1 == pytest.approx(100 * hits.float().mean().item())
    assert scores.top5 == 100, "there are only three classes"
    assert scores.loss == pytest.approx(functional.cross_entropy(torch.stack(logits), labels).item(), rel=1e-6)
    assert scores.n_images == 9
    assert net.training, "the mode of the network is restored"


def validate(root: Path, names: list[str], broken: bool = False) -> ClassifierScores:
    path, out = write_config(root.parent / "c.json"), root.parent / "net.pth.tar"
    config = load_classifier_config(path)
    net = Classifier(build_classifier(config))
    if broken:
        # finite, but their products are not
        nn.init.constant_(net.body.classifier.fc.weight, 3e38)
    weights = {f"module.{key}": value for key, value in net.body.state_dict().items()}
    ours = {"metadata": {"categories": names}}
    torch.save({"arch": config.network.arch, "state_dict": weights, "seamseg": ours}, out)
    return validate_classifier(path, out, root, device="cpu")


def test_classes_in_another_order_and_logits_that_are_not_finite(root: Path) -> None:
    names = sorted(folder.name for folder in (root / "val").iterdir())
    assert validate(root, names).n_images == 9
    assert validate(root, []).n_images == 9
    with pytest.raises(InputError, match=r"class folders are not those of .*, in this order"):
        validate(root, names[::-1])
    with pytest.raises(SeamsegError, match=r"net.pth.tar: the network returns logits that are not finite"):
        validate(root, [], broken=True)


SHARES = np.array([0.25, 0.0, 0.625, 0.125], np.float32)


def result_of(logits, classes=None):
    nothing = np.zeros(0, np.float32)
    found = Prediction(nothing.reshape(0, 4), nothing.astype(np.int64), nothing, None, None, (2, 3), logits=logits)
    return Classification.of(found, (60, 80), CLASSES, classes=classes)


def test_probabilities_are_those_of_the_logits():
    with np.errstate(divide="ignore"):
        logits = np.log(SHARES) + 700
    assert result_of(logits).probabilities.dtype == np.float32
    assert result_of(logits).probabilities == pytest.approx(SHARES, rel=1e-4)
    assert result_of(logits, [0, 3]).probabilities == pytest.approx([2 / 3, 0, 0, 1 / 3], rel=1e-4), "of these classes"
    assert result_of(logits).size == (60, 80)


def test_the_best_classes():
    found = Classification(SHARES, (60, 80), metadata=CLASSES)
    first = CLASSES.categories[2]
    assert found.top(2) == [(first, 0.625), (CLASSES.categories[0], 0.25)]
    assert found.counts() == {first: 1}
    assert found.to_coco()[0] == {"image_id": 0, "category_id": 2, "score": 0.625}
    assert found.to_coco("a")[0]["image_id"] == "a"
    assert found.entries()[0] == (2, {"category_id": 2, "class": first, "score": 0.625})
    assert repr(found).startswith(f"Classification(80 x 60: {first} 62%, ")


def test_fiftyone(monkeypatch):
    stand_in = SimpleNamespace(Classification=lambda *, label, confidence: (label, confidence))
    monkeypatch.setitem(sys.modules, "fiftyone", stand_in)
    assert Classification(SHARES, (2, 3), metadata=CLASSES).to_fiftyone() == {"classification": ("person", 0.625)}
