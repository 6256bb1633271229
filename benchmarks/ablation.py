"""Train the toy city with each key of docs/how-to/recipes.md and several seeds; print PQ: mean, range, difference.

    python benchmarks/ablation.py [NAMES] [--epochs 3] [--seeds 3] [--processes 2] [--out RUNS] [--json OUT]

Every run is `seamseg train toy_city_r18` with one thread and the same number of steps; a seed decides the initial
weights, the order of the images and the augmentation. Each row is compared with the row that it changes. `pretrained`
and the rows on top of it start, by `--pre-train-classes names`, from --model, a network trained on other scenes: that
of `seamseg demo`, or by default one trained there for --epochs. Run folders are kept in --out, and finished ones are
not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seamseg.training.logging.metrics import read_metrics

CROP = ("dataloader.crop_size=(128, 192)",)
WIDE = ("dataloader.random_scale=(0.5, 2)", "dataloader.longest_max_size=1024")
SEED = 1
"""Of the scenes; those of the demo, for pre-training, have seed 0."""


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes
    ----------
    settings : `section.key=value`
    against : row that it is compared with
    pretrained : start from a network trained on other scenes, whose classes are found by name
    """

    settings: tuple[str, ...] = ()
    against: str = "scratch"
    pretrained: bool = False


VARIANTS = {
    "scratch": Variant(),
    "box_convs": Variant(("roi.box_convs=4", "body.normalization_mode=syncbn+gn", "body.gn_groups=16")),
    "mask_points": Variant(("roi.mask_points=196",)),
    "pretrained": Variant(pretrained=True),
    "copy_paste": Variant(("dataloader.copy_paste=0.5",), "pretrained", True),
    "crop": Variant(CROP, "pretrained", True),
    "cabb": Variant((*CROP, "rpn.bbx_loss=cabb", "roi.bbx_loss=cabb"), "crop", True),
    "large_scale_jitter": Variant((*CROP, *WIDE), "crop", True),
    "instance_scale_uniform": Variant(
        (*CROP, *WIDE, "dataloader.instance_scale_uniform=(16, 128)", "dataloader.class_uniform=1"), "crop", True
    ),
}


def main() -> None:
    """Train, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAMES", help=f"of {', '.join(VARIANTS)} (default: all)")
    parser.add_argument("--model", type=Path, help="trained on other scenes, as that of seamseg demo")
    parser.add_argument("--epochs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--train", type=int, default=300, help="scenes (default: %(default)s)")
    parser.add_argument("--val", type=int, default=40, help="held-out scenes (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"), help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the numbers to this file")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in VARIANTS]
    if unknown:
        parser.error(f"{unknown[0]}: choose from {', '.join(VARIANTS)}")
    names = arguments.names or list(VARIANTS)
    for name in names:
        # rows that others are compared with come along
        names += [VARIANTS[name].against] if VARIANTS[name].against not in names else []
    names = [name for name in VARIANTS if name in names]
    rows = train_all(names, arguments)
    print(table(rows))
    if arguments.json:
        facts = {"epochs": arguments.epochs, "train": arguments.train, "val": arguments.val}
        arguments.json.write_text(json.dumps({**facts, "rows": rows}, indent=1))


def train_all(names: list[str], arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Return the scores in percent and the CPU seconds of each row, one for each seed."""
    out: Path = arguments.out
    data = city(out / "city", SEED, arguments)
    model = arguments.model or out / "pretraining"
    if any(VARIANTS[name].pretrained for name in names) and arguments.model is None:
        train(model, city(out / "other_city", 0, arguments), (), (), 0, arguments.epochs)
    start = ("--pre-train", str(model), "--pre-train-classes", "names")
    with ThreadPoolExecutor(arguments.processes) as pool:
        runs = {
            name: [
                pool.submit(
                    train,
                    out / f"{name}_{seed}",
                    data,
                    VARIANTS[name].settings,
                    start if VARIANTS[name].pretrained else (),
                    seed,
                    arguments.epochs,
                )
                for seed in range(arguments.seeds)
            ]
            for name in names
        }
        found = {name: [run.result() for run in futures] for name, futures in runs.items()}
    return {name: {key: [one[key] for one in scores] for key in scores[0]} for name, scores in found.items()}


def city(folder: Path, seed: int, arguments: argparse.Namespace) -> Path:
    """Return the dataset folder of a toy city, made if needed."""
    from seamseg.prepare.cityscapes import prepare_cityscapes
    from seamseg.toy_city import generate_toy_city

    raw, data = folder / "raw", folder / "data"
    generate_toy_city(raw, arguments.train, arguments.val, seed)
    prepare_cityscapes(raw, data, ("train", "val"))
    return data


def train(
    run: Path, data: Path, settings: tuple[str, ...], more: tuple[str, ...], seed: int, epochs: int
) -> dict[str, float]:
    """Train in a process with one thread, unless the run is complete; return its scores and CPU seconds."""
    done = run / "ablation.json"
    if done.exists():
        scores: dict[str, float] = json.loads(done.read_text())
        return scores
    command = [sys.executable, "-m", "seamseg", "train", "toy_city_r18", str(data), "--log-dir", str(run), "--quiet"]
    short = (f"scheduler.epochs={epochs}", "scheduler.burn_in_steps=25")
    for setting in (*short, f"general.seed={seed}", *settings):
        command += ["--set", setting]
    print(f"training {run}", file=sys.stderr, flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen([*command, *more], env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(started.pid, 0)
    if status:
        raise SystemExit(f"{run}: the training failed")
    last = [line for line in read_metrics(run) if line["kind"] == "validation"][-1]
    scores = {key: 100 * last[key] for key in ("PQ", "PQ_things", "PQ_stuff", "mIoU")}
    scores["CPU seconds"] = used.ru_utime + used.ru_stime
    done.write_text(json.dumps(scores))
    return scores


def table(rows: dict[str, dict[str, list[float]]]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| row | PQ | least - most | things | stuff | mIoU | against | difference | CPU time |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        against = VARIANTS[name].against
        mean: dict[str, Any] = {key: statistics.mean(values) for key, values in row.items()}
        base = {key: statistics.mean(values) for key, values in rows[against].items()}
        difference = "" if name == against else f"{mean['PQ'] - base['PQ']:+.1f}"
        cells = [name, f"{mean['PQ']:.1f}", f"{min(row['PQ']):.1f} - {max(row['PQ']):.1f}"]
        cells += [f"{mean[key]:.1f}" for key in ("PQ_things", "PQ_stuff", "mIoU")]
        cells += ["" if name == against else against, difference, f"{mean['CPU seconds'] / base['CPU seconds']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
