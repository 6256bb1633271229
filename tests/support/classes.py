"""Micro class folders and a small classifier that trains in a second."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (200, 50, 40)}

CONFIG: dict[str, Any] = {
    "network": {
        "arch": "resnext50",
        "activation": "leaky_relu",
        "bn_mode": "inplace",
        "classes": 3,
        "params": {"blocks": [1, 1, 1, 1], "groups": 2, "channels": [4, 4, 8]},
    },
    "optimizer": {
        "batch_size": 4,
        "learning_rate": 0.1,
        "nesterov": True,
        "schedule": {"type": "step", "epochs": 2, "params": {"step_size": 1, "gamma": 0.5}},
    },
    "input": {"crop_train": 32, "scale_val": 36, "crop_val": 32, "color_jitter_train": True, "lighting_train": True},
    "training": {"num_workers": 0, "log_interval": 1},
}


def make_class_folders(root: Path, train: int = 4, val: int = 3) -> Path:
    """`root/{train,val}/{blue,green,red}`, each with so many noisy images of about that colour."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for name, colour in COLOURS.items():
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                noise = rng.integers(-40, 40, (40, 44 + number, 3))
                pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


def write_config(path: Path, **changes: dict[str, Any]) -> Path:
    path.write_text(json.dumps({name: {**keys, **changes.get(name, {})} for name, keys in CONFIG.items()}))
    return path


def write_classifier(folder: Path) -> Path:
    """A run folder of a classifier with random weights, and a file of the layout of the original in it."""
    from seamseg.contrib.classification.config import load_classifier_config
    from seamseg.contrib.classification.network import build_classifier

    folder.mkdir(parents=True)
    config = load_classifier_config(write_config(folder / "config.json"))
    torch.manual_seed(0)
    net = build_classifier(config).eval()
    content = {"arch": config.network.arch, "state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}
    torch.save(content, folder / "model_best.pth.tar")
    (folder / "classes.json").write_text(json.dumps([f"class {n}" for n in range(config.network.classes)]))
    return folder
