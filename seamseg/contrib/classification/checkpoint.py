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
from seamseg.checkpoints.imagenet import refuse_old_release, without_prefix
from seamseg.checkpoints.model_path import (
    CLASSIFIER_CLASSES_NAME,
    CLASSIFIER_CONFIG_NAME,
    WEIGHTS_ENDING,
    is_hub_uri,
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
    """Return the snapshot that a file of this project or of the original holds, without steps in the latter.

    InputError if it is no checkpoint, or has another architecture or number of classes than `config`. `name` is the
    file's, for errors.
    """
    weights = content.get("state_dict") if isinstance(content, Mapping) else None
    if not isinstance(weights, Mapping) or not weights:
        raise InputError(f"{name}: not a checkpoint of a classifier: it must hold a 'state_dict' of tensors")
    state: dict[str, Any] = {_BODY: without_prefix(weights)}
    if config is not None:
        _check_network(content.get("arch"), state[_BODY].get(_FC), name, config)
    if "optimizer" in content:
        state["optimizer"] = content["optimizer"]
    ours = content.get(_OURS)
    if not isinstance(ours, Mapping):
        return Snapshot("", state, _progress(content))
    return Snapshot(
        config=ours.get("config", ""),
        state_dict=state | ours.get("state", {}),
        training_meta=ours.get("training_meta", {}),
        metadata=ours.get("metadata"),
        resume=ours.get("resume"),
    )


def _check_network(arch: Any, fc: Any, name: str, config: ClassifierConfig) -> None:
    network = config.network
    if arch is not None and arch != network.arch:
        raise InputError(f"{name}: is a checkpoint of {arch!s:.80}, but {config.source} describes {network.arch}")
    if isinstance(fc, Tensor) and fc.dim() == 2 and fc.shape[0] != network.classes:
        raise InputError(
            f"{name}: has {fc.shape[0]} classes, but {config.source} has network.classes = {network.classes}"
        )


def _progress(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the progress that a file of the original states, in epochs; empty if it holds weights only."""
    if "epoch" not in content:
        return {}
    best = float(content.get("best_prec1") or 0) / 100
    return {"epoch": int(content["epoch"]) - 1, "global_step": None, "last_score": best, "best_score": best}


def read_checkpoint(path: str | Path, config: ClassifierConfig | None = None) -> Snapshot:
    """Read the checkpoint at a path or `hf://user/repo`; errors as :func:`parse_checkpoint`.

    InputError also if it is missing, damaged, contains code, or is of a release whose networks were others.
    """
    file = str(weights_at(path))
    snapshot = parse_checkpoint(load_tensors(file, file), file, config)
    if snapshot.resume is None:
        refuse_old_release(file)
    return snapshot


def load_checkpoint(
    path: str | Path, config: ClassifierConfig, channels_last: bool = False
) -> tuple[Classifier, list[str]]:
    """Build the network of a configuration and load a checkpoint, or its moving average if it has one.

    Return the network, and the names of its classes; none if the file does not state them, as files of the original.
    Errors as :func:`read_checkpoint`; InputError also if it does not fit the network.
    """
    name = str(weights_at(path))
    snapshot = read_checkpoint(name, config)
    net, _ = load_built(lambda: Classifier(build_classifier(config), BatchOptions(channels_last)), snapshot, name)
    names = (snapshot.metadata or {}).get("categories")
    return net, list(names) if isinstance(names, list) else []


def _config_of(path: Path, config: str | Path | None = None) -> Path | str | None:
    """Return the given configuration of a model, or the one in its folder; None for a network of another kind."""
    if config is not None:
        name = str(config)
        return name if name.endswith(".json") or packaged_classifier(name) is not None else None
    found = (path.parent if path.suffix == WEIGHTS_ENDING else path) / CLASSIFIER_CONFIG_NAME
    return found if found.is_file() else None


def _names_of(path: Path, config: ClassifierConfig) -> list[str]:
    """Return the names of the classes of a classifier by the list in its folder, else their numbers."""
    listed = (path if path.is_dir() else path.parent) / CLASSIFIER_CLASSES_NAME
    if not listed.is_file():
        return [str(number) for number in range(config.network.classes)]
    return [str(name) for name in read_json(listed, "list of classes", CONFIG_BYTES)]


class OpenedClassifier(NamedTuple):
    """A classifier on the CPU in evaluation mode, with its configuration and the names of its classes."""

    config: ClassifierConfig
    net: nn.Module
    names: list[str]


def open_classifier(path: Path, config: str | Path | None = None) -> OpenedClassifier | None:
    """Open the classifier of a folder, or of a checkpoint with a configuration; None for a network of another kind."""
    found = _config_of(path, config)
    if found is None:
        return None
    settings = load_classifier_config(found)
    return OpenedClassifier(settings, load_checkpoint(path, settings)[0].body.eval(), _names_of(path, settings))


def load_classifier(config: str | Path, checkpoint: str | Path | None = None, device: Any = "auto") -> nn.Module:
    """Load a classifier in evaluation mode; see :func:`seamseg.classifier`."""
    chosen = choose_device(str(device))
    if is_hub_uri(config) or Path(config).is_dir():
        folder = local_model(config)
        config, checkpoint = folder / CLASSIFIER_CONFIG_NAME, folder if checkpoint is None else checkpoint
    options = load_classifier_config(config)
    body = build_classifier(options) if checkpoint is None else load_checkpoint(checkpoint, options)[0].body
    return body.to(chosen).eval()
