"""Small trained models, as people share them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from seamseg.checkpoints.snapshot import Snapshot, network_state
from seamseg.config import Config, config_from_string, config_to_string
from seamseg.maps.formats.metadata import Metadata, metadata_header, write_metadata
from seamseg.models.build import build_network
from support.micro import CONFIG, narrow_body
from support.networks import randomise
from support.semantic_networks import semantic_config
from support.small_snapshots import save_snapshot

CLASSES = Metadata(2, 1, ["sky", "road|street", "car"], [(70, 130, 180), (128, 64, 128), (0, 0, 142)], [23, 7, 26])


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
