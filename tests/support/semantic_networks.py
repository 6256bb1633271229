"""A small semantic network on the micro data set, trained or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from seamseg.checkpoints.snapshot import Snapshot, network_state
from seamseg.config import Config, config_from_string, config_to_string
from seamseg.maps.formats.metadata import Metadata, metadata_header
from seamseg.models.build import build_network
from seamseg.models.semantic import SemanticNet
from support.micro import narrow_body
from support.networks import randomise
from support.small_snapshots import save_snapshot

SEMANTIC = """
[general]
kind = semantic
log_interval = 1
[body]
body = resnet18
normalization_mode = bn
body_params = {"dilation": [1, 1, 2, 4]}
[sem]
hidden_channels = 8
out_channels = 8
dilations = (1, 2)
pooling_size = (4, 6)
[optimizer]
lr = 0.02
[scheduler]
epochs = 2
burn_in_steps = 2
[dataloader]
shortest_size = 64
longest_max_size = 128
train_batch_size = 2
val_batch_size = 2
random_scale = None
num_workers = 0
train_set = train
val_set = val
"""

CLASSES = Metadata(2, 1, ["sky", "road", "human--person"], [(70, 130, 180), (128, 64, 128), (220, 20, 60)], [23, 7, 24])


def semantic_config(*overrides: str) -> Config:
    return config_from_string(SEMANTIC, overrides=overrides)


def semantic_net(*overrides: str) -> SemanticNet:
    torch.manual_seed(0)
    with narrow_body():
        net = build_network(semantic_config(*overrides), 2, 1)
    randomise(net)
    return net.eval()


@pytest.fixture(scope="session")
def semantic_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of the small network; do not write to it."""
    path = tmp_path_factory.mktemp("semantic") / "model.pth.tar"
    state = network_state(semantic_net())
    save_snapshot(path, Snapshot(config_to_string(semantic_config()), dict(state), {}, metadata_header(CLASSES)))
    return path


@pytest.fixture
def semantic_predictor(semantic_model: Path) -> Iterator:
    import seamseg

    with narrow_body():
        yield lambda **options: seamseg.load(semantic_model, "cpu", **options)
