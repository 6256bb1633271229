"""Train and validate ImageNet classifiers with in-place ABN, from JSON configurations.

    seamseg prepare toy-things toy_things
    seamseg classify train toy_things_resnext toy_things --log-dir runs/things
    seamseg classify validate toy_things_resnext runs/things/model_best.pth.tar toy_things

    seamseg classify train resnext101_ipabn_lr_512 /data/imagenet --log-dir runs/resnext --resume auto
    seamseg classify validate resnext101_ipabn_lr_512 resnext101_ipabn_lr_512.pth.tar /data/imagenet --ten-crops
    torchrun --nproc-per-node 8 -m seamseg classify train ...

CONFIG is a JSON file or the name of a packaged one; DATA holds train/CLASS/* and val/CLASS/*. Checkpoints have the
layout of the original: its files load here, and ours there. See docs/how-to/classify.md.
"""

from __future__ import annotations

import argparse

from seamseg.cli.main import add_action, add_options, add_override, add_set_and_device, options_of
from seamseg.cli.train import check_start, run_trainer
from seamseg.contrib.classification.config import KEYS as KEYS  # that `--set` may name
from seamseg.contrib.classification.config import load_classifier_config
from seamseg.training.options import TrainingOptions
from seamseg.utils.distributed import is_main_process
from seamseg.utils.errors import InputError
from seamseg.utils.output import echo

TRAIN = """Train a classifier.

  seamseg classify train toy_things_resnext toy_things --log-dir runs/things
  seamseg classify train my.json DATA --log-dir runs/my --set optimizer.learning_rate=0.05 --set training.precision=bf16
  seamseg classify train my.json DATA --log-dir runs/my --resume auto
  torchrun --nproc-per-node 8 -m seamseg classify train my.json DATA --log-dir runs/my

The run folder gets checkpoint.pth.tar and model_best.pth.tar (by top-1) after each epoch, training_RANK.log,
metrics.jsonl, TensorBoard files, config.json and classes.json. optimizer.batch_size is divided by the number of
processes. Re-run the command with --resume auto to resume an interrupted training with the same numbers; SIGTERM,
SIGUSR1 and Ctrl-C write a checkpoint first.
"""

VALIDATE = """Compute top-1 and top-5 accuracy of a checkpoint on DATA/val.

  seamseg classify validate toy_things_resnext runs/things/model_best.pth.tar toy_things
  seamseg classify validate resnext101_ipabn_lr_512 resnext101_ipabn_lr_512.pth.tar /data/imagenet --ten-crops
  seamseg classify validate my.json model_best.pth.tar DATA --crop 320 --scale 320 --json scores.json

If the checkpoint has a moving average of the weights, the average is scored.
"""


NOT_OF_CLASSIFIERS = (
    "config", "data", "pretrain", "pretrain_classes", "evaluate", "legacy", "overrides", "components", "callbacks"
)  # fmt: skip
"""Options of a training that classifiers lack, or that mean something else."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two sub-commands."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    train = add_action(actions, "train", TRAIN)
    train.add_argument("config", metavar="CONFIG", help="JSON file, or a packaged one such as resnext101_ipabn_lr_512")
    train.add_argument("data", metavar="DATA", help="folder with train/CLASS/* and val/CLASS/*")
    add_options(train, TrainingOptions, without=NOT_OF_CLASSIFIERS)
    train.add_argument(
        "--pre-train",
        dest="pretrain",
        metavar="F",
        action="append",
        default=[],
        help="initialise from a checkpoint; tensors that do not fit, as a classifier of other classes, are skipped",
    )
    add_override(train, "--set")
    train.add_argument(
        "--log-hist",
        dest="overrides",
        action="append_const",
        const="training.log_hist=yes",
        help="write histograms of fc and bn_out to TensorBoard",
    )

    validate = add_action(actions, "validate", VALIDATE)
    validate.add_argument("config", metavar="CONFIG", help="JSON file, or a packaged one")
    validate.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint of this project or of the original")
    validate.add_argument("data", metavar="DATA", help="folder with val/CLASS/*")
    validate.add_argument("--ten-crops", action="store_true", help="average the logits of ten crops of each image")
    add_set_and_device(validate)
    for name, text in (
        ("crop", "side of the crop"),
        ("scale", "shorter side before the crop, -1: as it is"),
    ):
        validate.add_argument(
            f"--{name}",
            dest="overrides",
            action="append",
            type=f"input.{name}_val={{}}".format,
            metavar="N",
            help=f"{text} (default: input.{name}_val)",
        )
    validate.add_argument("--json", metavar="F", help="write the scores to this file")


def run(args: argparse.Namespace) -> int:
    """Train or validate, and print the scores."""
    if args.action is None:
        raise InputError("nothing to do: name train or validate; see seamseg classify --help")
    load_classifier_config(args.config, args.overrides)
    if args.action == "train":
        options = options_of(args, TrainingOptions)
        check_start(options)
        from seamseg.contrib.classification.train import train_classifier

        return run_trainer(train_classifier, options)
    from seamseg.contrib.classification.validate import validate_classifier
    from seamseg.utils.files import write_json

    scores = validate_classifier(args.config, args.checkpoint, args.data, args.ten_crops, args.overrides, args.device)
    if is_main_process():
        # the table first: the scores must not be lost if the file cannot be written
        echo(scores.table(), flush=True)
        if args.json is not None:
            write_json(args.json, scores.to_json(), indent=2)
    return 0
