"""Train a network for panoptic, instance or semantic segmentation, or for detection.

    seamseg train toy_city_r18 DATA --log-dir runs/city
    seamseg train toy_city_detection_r18 DATA --log-dir runs/boxes
    seamseg train small_r18 DATA --log-dir runs/my --pre-train body:torchvision
    seamseg train my.ini DATA --log-dir runs/my --pre-train body:resnet50.pth --set optimizer.lr=0.02
    seamseg train my.ini DATA --log-dir runs/my --resume auto --set general.snapshot_interval=500
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nproc-per-node 8 --max-restarts 100 -m seamseg train ...

small_r18 is for a few hundred images of your own, on two CPU cores or a small GPU. `body:torchvision` downloads the
ImageNet weights of torchvision for the ResNet of the configuration.

`[general] kind` of the configuration selects what the network predicts: panoptic, instance_seg, detection or semantic.
`[general] base = cityscapes_r50` (or an INI file) makes the keys of another one its defaults.

DATA is a dataset folder from `seamseg prepare`. The run folder holds config.ini, metadata.bin and, updated after each
epoch, model_last.pth.tar and model_best.pth.tar, so that `seamseg predict runs/my ...` works; also training.log,
metrics.jsonl and TensorBoard files. snapshots/ holds the newest snapshots.

Re-run the same command with --resume auto to resume an interrupted training. It continues from the newest snapshot,
with the same numbers as an uninterrupted run, or starts a new training if there is no snapshot; so one command can be
re-run any number of times. Snapshots are written after each epoch, every general.snapshot_interval steps, and on
SIGTERM, SIGUSR1 or Ctrl-C (exit code 143, 138 or 130); a second Ctrl-C ends at once. The number of processes and the
batch size may change: the training continues with the remaining images of the epoch. A run folder that holds another
training is refused, unless --restart is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from seamseg.checkpoints.hub import SCHEME
from seamseg.checkpoints.model_path import WEIGHTS_ENDING
from seamseg.cli.main import add_options, options_of
from seamseg.config.kinds import KINDS, TIMM
from seamseg.config.loader import load_config
from seamseg.training.options import TrainingOptions
from seamseg.utils.distributed import is_main_process
from seamseg.utils.errors import InputError, require_packages
from seamseg.utils.files import nearest_path
from seamseg.utils.output import echo

if TYPE_CHECKING:
    from seamseg.training.options import TrainResult

LIBRARIES = ("timm", "torchvision")
"""Libraries that download weights, in the place of a file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_options(parser, TrainingOptions, without=("callbacks",))


def run(args: argparse.Namespace) -> int:
    """Train, and print the scores of the last validation."""
    options = options_of(args, TrainingOptions)
    config = load_config(options.config, None, options.overrides)
    body = config.body
    if config.dataloader.reader == "folder":
        from seamseg.maps.folder import find_metadata

        find_metadata(options.data)
    parts = dict.fromkeys(module for kind in KINDS.values() for module in kind.modules)
    check_start(options, tuple(parts), body.weights)
    if body.body.startswith(TIMM) or body.weights == "timm":
        require_packages("timm", what=f"[body] body = {body.body}")
    from seamseg.training.run import run_training

    return run_trainer(run_training, options)


def check_start(options: TrainingOptions, parts: Collection[str] = (), weights: str | None = None) -> None:
    """Raise InputError for missing or misspelt files, before the libraries are loaded, which takes seconds.

    `parts` are the names that may precede a file of `pretrain` with a colon, `weights` is `[body] weights`.
    """
    if options.resume is not None:
        # what a resumed run started from is not needed
        named = [("`resume={}`", str(options.resume))] if options.resume != "auto" else []
    else:
        named = [("[body] weights = {}", weights)] if weights else []
        for given in options.pretrain:
            part, _, file = given.partition(":")
            if parts and part not in parts and Path(file).is_file() and not Path(given).exists():
                raise InputError(f"`pretrain={given}`: {part!r} is not a part of the network: {', '.join(parts)}")
            named.append(("`pretrain={}`", file if part in parts else given))
    for text, path in named:
        if path in LIBRARIES:
            continue
        if path.startswith(SCHEME):
            require_packages("huggingface_hub", what=path)
        elif not Path(path).exists():
            raise InputError(f"{text.format(path)}: no such file or run folder{nearest_path(path)}")
        elif path.endswith(WEIGHTS_ENDING):
            require_packages("safetensors", what=path)


def run_trainer(train: Callable[[TrainingOptions], TrainResult], options: TrainingOptions) -> int:
    """Train by `run_training` or a function like it, and print the scores of the last validation."""
    scores = train(options).validation
    if scores is not None and is_main_process():
        echo(scores.table(), flush=True)
    return 0
