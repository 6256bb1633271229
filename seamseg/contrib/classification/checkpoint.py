"""Checkpoints of classifiers in the layout of the original.

A file holds `epoch` (finished epochs), `arch`, `state_dict` with the prefix `module.`, `best_prec1` in percent and
`optimizer`; ours also `seamseg`, with everything that a bit-exact resume needs. Files of either project load in the
other one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from seamseg.checkpoints.bundle import load_built
from seamseg.checkpoints.hub import SCHEME
from seamseg.checkpoints.imagenet import refuse_old_release, without_prefix
from seamseg.checkpoints.model_path import (
    CLASSIFIER_CLASSES_NAME,
    CLASSIFIER_CONFIG_NAME,
    WEIGHTS_ENDING,
    local_model,
    weights_at,
)
from seamseg.checkpoints.snapshot import Snapshot, load_tensors
from seamseg.contrib.classification.config import ClassifierConfig, load_classifier_config, packaged_classifier
from seamseg.contrib.classification.network import Classifier, build_classifier
from seamseg.models.network import BatchOptions
from seamseg.training.checkpointing.run_folder import RunFolder
from seamseg.utils.distributed import choose_device
from seamseg.utils.errors import InputError
from seamseg.utils.files import read_json
from seamseg.utils.limits import CONFIG_BYTES

CLASSIFICATION = "classification"
"""Kind of a classifier, beside :data:`seamseg.config.kinds.KINDS`."""
CHECKPOINT_NAME = "checkpoint.pth.tar"
BEST_NAME = "model_best.pth.tar"
LOG_NAME = "training_{rank}.log"

_BODY = "body"
_PREFIX = "module."
_OURS = "seamseg"
_FC = "classifier.fc.weight"


def checkpoint_folder(config: ClassifierConfig, path: Path) -> RunFolder:
    """Return the run folder of a training, with names and layout of the checkpoints."""
    content, parse = partial(checkpoint_content, config=config), partial(parse_checkpoint, config=config)
    return RunFolder(path, CHECKPOINT_NAME, BEST_NAME, LOG_NAME, content, parse)


def checkpoint_content(snapshot: Snapshot, config: ClassifierConfig) -> dict[str, Any]:
    """Return what the file of a snapshot of a classifier holds."""
    state = dict(snapshot.state_dict)
    weights, optimizer = state.pop(_BODY), state.pop("optimizer")
    progress = snapshot.training_meta
    return {
        "epoch": progress["epoch"] + 1,
        "arch": config.network.arch,
        "state_dict": {_PREFIX + key: value for key, value in weights.items()},
        "best_prec1": 100 * progress["best_score"],
        "optimizer": optimizer,
        _OURS: {
            "config": json.dumps(config.to_json()),
            "training_meta": progress,
            "metadata": snapshot.metadata,
            "resume": snapshot.resume,
            "state": state,
        },
    }


def parse_checkpoint(content: Any, name: str, config: ClassifierConfig | None = None) -> Snapshot:
    """Return the snapshot in a file of this project or of the original; InputError if it is not that of `config`."""
    weights = content.get("state_dict") if isinstance(content, Mapping) else None
    if not isinstance(weights, Mapping) or not weights:
        raise InputError(f"{name}: not a checkpoint of a classifier: it must hold a 'state_dict' of tensors")
    state: dict[str, Any] = {_BODY: without_prefix(weights)}
    if config is not None:
        arch, fc, network = content.get("arch"), state[_BODY].get(_FC), config.network
        if arch is not None and arch != network.arch:
            raise InputError(f"{name}: is a checkpoint of {arch!s:.80}, but {config.source} describes {network.arch}")
        if isinstance(fc, Tensor) and fc.dim() == 2 and len(fc) != network.classes:
            described = f"{config.source} has network.classes = {network.classes}"
            raise InputError(f"{name}: has {len(fc)} classes, but {described}")
    if "optimizer" in content:
        state["optimizer"] = content["optimizer"]
    ours = content.get(_OURS)
    if not isinstance(ours, Mapping):
        progress = {}
        if "epoch" in content:  # else it holds weights only
            best = float(content.get("best_prec1") or 0) / 100
            epoch = int(content["epoch"]) - 1
            progress = {"epoch": epoch, "global_step": None, "last_score": best, "best_score": best}
        return Snapshot("", state, progress)
    return Snapshot(
        config=ours.get("config", ""),
        state_dict=state | ours.get("state", {}),
        training_meta=ours.get("training_meta", {}),
        metadata=ours.get("metadata"),
        resume=ours.get("resume"),
    )


def read_checkpoint(path: str | Path, config: ClassifierConfig | None = None) -> Snapshot:
    """Read the checkpoint at a path or `hf://user/repo`; InputError also for a release with other networks."""
    file = str(weights_at(path))
    snapshot = parse_checkpoint(load_tensors(file, file), file, config)
    if snapshot.resume is None:
        refuse_old_release(file)
    return snapshot


def load_checkpoint(
    path: str | Path, config: ClassifierConfig, channels_last: bool = False
) -> tuple[Classifier, list[str]]:
    """Build a network with a checkpoint, or its moving average; return it and the names of its classes, if stated."""
    name = str(weights_at(path))
    snapshot = read_checkpoint(name, config)
    net, _ = load_built(lambda: Classifier(build_classifier(config), BatchOptions(channels_last)), snapshot, name)
    names = (snapshot.metadata or {}).get("categories")
    return net, list(names) if isinstance(names, list) else []


class OpenedClassifier(NamedTuple):
    """A classifier on the CPU in evaluation mode, with its configuration and the names of its classes."""

    config: ClassifierConfig
    net: nn.Module
    names: list[str]


def open_classifier(path: Path, config: str | Path | None = None) -> OpenedClassifier | None:
    """Open the classifier of a folder, or of a checkpoint with a configuration; None for a network of another kind."""
    folder = path if path.is_dir() else path.parent
    if config is None:
        config = (path.parent if path.suffix == WEIGHTS_ENDING else path) / CLASSIFIER_CONFIG_NAME
        if not config.is_file():
            return None
    elif not str(config).endswith(".json") and packaged_classifier(str(config)) is None:
        return None
    settings = load_classifier_config(config)
    names, listed = [str(number) for number in range(settings.network.classes)], folder / CLASSIFIER_CLASSES_NAME
    if listed.is_file():
        names = [str(name) for name in read_json(listed, "list of classes", CONFIG_BYTES)]
    return OpenedClassifier(settings, load_checkpoint(path, settings)[0].body.eval(), names)


def load_classifier(config: str | Path, checkpoint: str | Path | None = None, device: Any = "auto") -> nn.Module:
    """Load a classifier in evaluation mode; see :func:`seamseg.classifier`."""
    chosen = choose_device(str(device))
    if str(config).startswith(SCHEME) or Path(config).is_dir():
        folder = local_model(config)
        config, checkpoint = folder / CLASSIFIER_CONFIG_NAME, folder if checkpoint is None else checkpoint
    options = load_classifier_config(config)
    body = build_classifier(options) if checkpoint is None else load_checkpoint(checkpoint, options)[0].body
    return body.to(chosen).eval()
