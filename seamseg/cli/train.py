"""Train a panoptic network.

    seamseg train toy_city_r18 DATA --log-dir runs/city
    seamseg train my.ini DATA --log-dir runs/my --pre-train body:resnet50.pth --set optimizer.lr=0.02
    seamseg train my.ini DATA --log-dir runs/my --resume auto --set general.snapshot_interval=500
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nproc-per-node 8 --max-restarts 100 -m seamseg train ...

DATA is a dataset folder from `seamseg prepare`. The run folder gets config.ini, metadata.bin and after each epoch
model_last.pth.tar and model_best.pth.tar (so `seamseg predict runs/my ...` works), and training.log, metrics.jsonl and
TensorBoard files; snapshots/ holds the newest snapshots.

Interrupt it at any time: the same command with --resume auto goes on from the newest snapshot that is not damaged,
with the same numbers, and begins anew where there is none; so one command can be started over and over. Snapshots are
written after each epoch, every general.snapshot_interval steps, and when SIGTERM or SIGUSR1 says that the machine is
taken away (exit code 143 or 138). Another number of processes or batch size may go on: it gets the images of the epoch
that are left.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from seamseg.utils.launcher import is_main_process, process_count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("config", metavar="CONFIG", help="INI file, or a packaged experiment such as vistas_r50")
    parser.add_argument("data", metavar="DATA", help="dataset folder")
    parser.add_argument("--log-dir", metavar="RUN", help="run folder (default: runs/NAME for NAME.ini)")
    parser.add_argument(
        "--resume",
        metavar="F",
        help="continue from this snapshot, also from one of the original; auto: from the newest good one of the run "
        "folder if there is one (then --pre-train is left out)",
    )
    parser.add_argument(
        "--pre-train",
        metavar="[PART:]F",
        action="append",
        default=[],
        help="start from a snapshot, or from the weights of one part: body, rpn_head, roi_head, sem_head; what does "
        "not fit is skipped, and said; may be given several times, later ones win",
    )
    parser.add_argument("--eval", action="store_true", help="only score the weights of --resume or --pre-train")
    parser.add_argument("--set", metavar="SECTION.KEY=VALUE", action="append", default=[], help="any configuration key")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")


def run(args: argparse.Namespace) -> int:
    """Train, and print the scores of the last validation."""
    if process_count() > 1:
        # DDP warns that no parameter was unused, which is so in some steps and not in others; read when torch starts
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from seamseg.evaluation.scores import format_table
    from seamseg.training.preemption import Preempted
    from seamseg.training.run import TrainingOptions, run_training

    options = TrainingOptions(
        config=args.config,
        data=args.data,
        log_dir=args.log_dir or Path("runs") / Path(args.config).stem,
        resume=args.resume,
        pretrain=args.pre_train,
        evaluate=args.eval,
        overrides=args.set,
        device=args.device,
    )
    try:
        scores = run_training(options)
    except Preempted as stop:
        # the log has told it, once for all processes
        return stop.exit_code
    if scores is not None and is_main_process():
        print(format_table(scores))
        sys.stdout.flush()
    return 0
