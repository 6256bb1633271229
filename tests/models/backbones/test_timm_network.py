"""Networks of timm as backbones, each family once; nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from support.micro import CONFIG
from torch import nn
from torch.testing import assert_close

from seamseg.checkpoints.pretrained import load_body_weights, normalisation_problem
from seamseg.config import config_from_string
from seamseg.models.backbones import timm_network
from seamseg.models.backbones.timm_network import TimmBackbone
from seamseg.models.build import build_network
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.utils.errors import InputError

timm = pytest.importorskip("timm") if False else __import__("timm")

SWIN = {"embed_dim": 16, "depths": (1, 1, 1, 2), "num_heads": (1, 1, 1, 1)}
FAMILIES = {
    "test_convnext": {},
    "test_resnet": {},
    "test_efficientnet": {},
    "regnetx_002": {},
    "swin_tiny_patch4_window7_224": SWIN,
    "test_maxvit": {},
}
PLAIN = ("test_vit", "test_vit2")


def own_maps(name: str, params: dict, backbone: TimmBackbone, images: torch.Tensor) -> list[torch.Tensor]:
    """The maps of strides 4 to 32 as timm itself returns them, with the weights of the backbone."""
    free = {key: value for key, value in backbone.arguments.items() if key not in params}
    whole = timm.create_model(name, features_only=True, feature_cls="getter", out_indices=None, **params, **free)
    whole.model.load_state_dict(backbone.model.state_dict(), strict=False)
    with torch.no_grad():
        maps = whole.eval()(images)
    return [x for x, stride in zip(maps, whole.feature_info.reduction()) if stride >= 4]
