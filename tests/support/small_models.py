"""Small networks and their snapshots: semantic ones, and run folders as people share them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from seamseg.checkpoints.snapshot import Snapshot, load_snapshot, network_state, snapshot_content, write_tensors
from seamseg.config import Config, config_from_string, config_to_string
from seamseg.maps.formats.metadata import Metadata, metadata_header, write_metadata
from seamseg.models.build import build_network
from seamseg.models.semantic import SemanticNet
from seamseg.utils.errors import InputError
from support.micro import CONFIG, SHORT, narrow_body
from support.networks import randomise

SEMANTIC = (
    SHORT
    + """
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
"""
)

SEMANTIC_CLASSES = Metadata(
    2, 1, ["sky", "road", "human--person"], [(70, 130, 180), (128, 64, 128), (220, 20, 60)], [23, 7, 24]
)
CLASSES = Metadata(2, 1, ["sky", "road|street", "car"], [(70, 130, 180), (128, 64, 128), (0, 0, 142)], [23, 7, 26])


def save_snapshot(path: str | Path, snapshot: Snapshot) -> None:
    write_tensors(Path(path), snapshot_content(snapshot))


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as error:
        load_snapshot(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


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
    save_snapshot(
        path, Snapshot(config_to_string(semantic_config()), dict(state), {}, metadata_header(SEMANTIC_CLASSES))
    )
    return path


@pytest.fixture
def semantic_predictor(semantic_model: Path) -> Iterator:
    import seamseg

    with narrow_body():
        yield lambda **options: seamseg.load(semantic_model, "cpu", **options)


def config_of(kind: str, *overrides: str) -> Config:
    if kind == "semantic":
        return semantic_config()
    trusted = Path() if overrides else None
    return config_from_string(CONFIG.format(norm="bn"), overrides=[f"general.kind={kind}", *overrides], trusted=trusted)


def write_run(folder: Path, kind: str = "panoptic", average: bool = False, overrides: Sequence[str] = ()) -> Path:
    """A run folder with random weights; with `average`, the snapshot also holds a moving average, other than them."""
    config = config_of(kind, *overrides)
    torch.manual_seed(0)
    with narrow_body():
        net = build_network(config, CLASSES.num_stuff, CLASSES.num_thing).eval()
    randomise(net)
    state = dict(network_state(net))
    if average:
        state["ema"] = {part: {k: v * 2 for k, v in tensors.items()} for part, tensors in state.items()}
    state["optimizer"] = {"state": {0: torch.ones(3)}}
    folder.mkdir(parents=True)
    text = config_to_string(config)
    save_snapshot(folder / "model_last.pth.tar", Snapshot(text, state, {"epoch": 1}, metadata_header(CLASSES)))
    (folder / "config.ini").write_text(text)
    write_metadata(folder / "metadata.bin", CLASSES)
    return folder
