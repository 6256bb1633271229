"""Validation of a classifier: numbers, crops, precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.classes import make_class_folders, write_config
from torch import nn
from torch.nn import functional

from seamseg.contrib.classification.config import InputConfig, load_classifier_config
from seamseg.contrib.classification.data import ClassFolders
from seamseg.contrib.classification.data import test_transform as validation_transform
from seamseg.contrib.classification.network import Classifier, build_classifier
from seamseg.contrib.classification.validate import ClassifierScores, ClassifierValidator, validate_classifier
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError, SeamsegError


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
    """Score a checkpoint with random weights that states the names of its classes."""
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
