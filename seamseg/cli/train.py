"""Train a network for panoptic, instance or semantic segmentation, or for detection.

    seamseg train toy_city_r18 DATA --log-dir runs/city
    seamseg train toy_city_detection_r18 DATA --log-dir runs/boxes
    seamseg train small_r18 DATA --log-dir runs/my --pre-train body:resnet18.pth
    seamseg train my.ini DATA --log-dir runs/my --pre-train body:resnet50.pth --set optimizer.lr=0.02
    seamseg train my.ini DATA --log-dir runs/my --resume auto --set general.snapshot_interval=500
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nproc-per-node 8 --max-restarts 100 -m seamseg train ...

small_r18 is for some hundred images of your own, on two CPU cores or a small GPU. `seamseg convert-backbone resnet18
resnet18.pth` gets the weights from torchvision.

`[general] kind` of the configuration selects what the network predicts: panoptic, instance_seg,
detection or semantic. `[general] base = cityscapes_r50` (or an INI file) makes the keys of another one its defaults.

DATA is a dataset folder from `seamseg prepare`. The run folder holds config.ini, metadata.bin and, updated after each
epoch, model_last.pth.tar and model_best.pth.tar, so that `seamseg predict runs/my ...` works; also training.log,
metrics.jsonl and TensorBoard files. snapshots/ holds the newest snapshots.

Re-run the same command with --resume auto to resume an interrupted training. It continues from the newest undamaged
snapshot, with the same numbers as an uninterrupted run, or starts a new training if there is no snapshot; so one
command can be re-run any number of times. Snapshots are written after each epoch, every general.snapshot_interval
steps, and on SIGTERM, SIGUSR1 or Ctrl-C (exit code 143, 138 or 130); a second Ctrl-C ends at once. The number of
processes and the batch size may change: the training continues with the remaining images of the epoch. A run folder
that holds another training is refused, unless --restart is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from seamseg.checkpoints.hub import is_hub_uri
from seamseg.checkpoints.names import WEIGHTS_ENDING
from seamseg.cli.model_options import add_components
from seamseg.config.bodies import TIMM
from seamseg.config.kinds import KINDS
from seamseg.config.loader import load_config
from seamseg.utils.errors import InputError, require_packages
from seamseg.utils.files import nearest_path
from seamseg.utils.launcher import is_main_process
from seamseg.utils.output import echo

if TYPE_CHECKING:
    from seamseg.training.options import TrainingOptions
    from seamseg.training.result import TrainResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("config", metavar="CONFIG", help="INI file, or a packaged experiment such as vistas_r50")
    parser.add_argument("data", metavar="DATA", help="dataset folder")
    parser.add_argument("--log-dir", metavar="RUN", help="run folder (default: runs/NAME for NAME.ini)")
    parser.add_argument(
        "--resume",
        metavar="F",
        help="resume from this snapshot, also from one of the original, or from the newest undamaged one of a run "
        "folder; auto: from that of --log-dir, if there is one (--pre-train is then ignored)",
    )
    add_restart(parser)
    parser.add_argument(
        "--pre-train",
        metavar="[PART:]F",
        action="append",
        default=[],
        help="initialise from a snapshot, a folder with a model, safetensors or hf://user/repo, or one part from its "
        "weights: body, rpn_head, roi_head, sem_head, head, cls; "
        "tensors that do not fit are skipped and listed; repeatable, later ones override earlier ones",
    )
    parser.add_argument(
        "--pre-train-classes",
        metavar="TABLE",
        help="the weights of --pre-train were trained on another data set: copy those of its classes to the classes "
        "here by the names of a table: names (equal names), vistas_cityscapes, coco_cityscapes, or an INI file",
    )
    parser.add_argument("--eval", action="store_true", help="only score the weights of --resume or --pre-train")
    parser.add_argument(
        "--legacy", action="store_true", help="as the original, freeze weights that were not loaded, with a warning"
    )
    add_set_and_device(parser)
    add_components(parser, "set")


def add_restart(parser: argparse.ArgumentParser) -> None:
    """Add `--restart`."""
    parser.add_argument("--restart", action="store_true", help="overwrite another training in --log-dir")


def add_set_and_device(parser: argparse.ArgumentParser) -> None:
    """Add `--set` and `--device`."""
    parser.add_argument(
        "--set", metavar="SECTION.KEY=VALUE", action="append", default=[], help="override a configuration key"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")


def run(args: argparse.Namespace) -> int:
    """Train, and print the scores of the last validation."""
    config = load_config(args.config, None, args.set)
    body = config.body
    if config.dataloader.reader == "folder":
        from seamseg.data.folder import find_metadata

        find_metadata(args.data)
    parts = dict.fromkeys(module for kind in KINDS.values() for module in kind.modules)
    check_start(args, tuple(parts), body.weights)
    if body.body.startswith(TIMM) or body.weights == "timm":
        require_packages("timm", what=f"[body] body = {body.body}")
    from seamseg.training.run import run_training

    return run_trainer(run_training, args, args.set, args.pre_train_classes, args.eval, args.legacy)


def check_start(args: argparse.Namespace, parts: Collection[str] = (), weights: str | None = None) -> None:
    """Raise InputError for what is missing or misspelt, before the libraries are loaded, which takes seconds.

    Parameters
    ----------
    args : arguments of the command
    parts : names of the parts of a network, which may precede the file of `--pre-train` with a colon
    weights : `[body] weights`
    """
    if args.resume is not None and args.pre_train and args.resume != "auto":
        raise InputError("--resume and --pre-train are mutually exclusive: a resumed run has its own weights")
    named = []
    if args.resume is not None:
        # what a resumed run started from is not needed
        named += [("--resume", args.resume)] if args.resume != "auto" else []
    else:
        named += [("[body] weights =", weights)] if weights and weights != "timm" else []
        for given in args.pre_train:
            part, _, file = given.partition(":")
            if parts and part not in parts and Path(file).is_file() and not Path(given).exists():
                raise InputError(f"--pre-train {given}: {part!r} is not a part of the network: {', '.join(parts)}")
            named.append(("--pre-train", file if part in parts else given))
    for flag, path in named:
        if is_hub_uri(path):
            require_packages("huggingface_hub", what=path)
        elif not Path(path).exists():
            raise InputError(f"{flag} {path}: no such file or run folder{nearest_path(path)}")
        elif path.endswith(WEIGHTS_ENDING):
            require_packages("safetensors", what=path)


def run_trainer(
    train: Callable[[TrainingOptions], TrainResult],
    args: argparse.Namespace,
    overrides: Sequence[str],
    pretrain_classes: str | None = None,
    evaluate: bool = False,
    legacy: bool = False,
) -> int:
    """Train with the arguments of a command, and print the scores of the last validation.

    Parameters
    ----------
    train : :func:`seamseg.training.run.run_training` or one with the same arguments
    args : arguments of the command
    overrides, pretrain_classes, evaluate, legacy : see :class:`seamseg.training.options.TrainingOptions`
    """
    from seamseg.training.options import TrainingOptions

    options = TrainingOptions(
        config=args.config,
        data=args.data,
        log_dir=args.log_dir or Path("runs") / Path(args.config).stem,
        resume=args.resume,
        pretrain=args.pre_train,
        pretrain_classes=pretrain_classes,
        evaluate=evaluate,
        overrides=overrides,
        device=args.device,
        restart=args.restart,
        legacy=legacy,
    )
    scores = train(options).validation
    if scores is not None and is_main_process():
        echo(scores.table(), flush=True)
    return 0
