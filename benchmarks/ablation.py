"""Train the toy city with the recipes of docs/how-to/recipes.md and several seeds; print PQ: mean, range, difference.

    python benchmarks/ablation.py [NAMES] [--epochs 8] [--seeds 3] [--processes 2] [--out RUNS] [--json OUT]

Every run is `seamseg train toy_city_r18` with one thread; a seed decides the initial weights, the order of the images
and the augmentation. Each row is compared with the row that it changes, at an equal number of steps. `pretrained` and
the rows on top of it start, by `--pre-train-classes names`, from --model, a network trained on other scenes: that of
`seamseg demo`, or by default one that the script trains. They are trained for half the epochs at a tenth of the
learning rate; the scores of that network as it is are printed, too. Run folders are kept in --out, and finished ones
are not repeated.
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

from seamseg.toy_city.writer import check_settings
from seamseg.training.logging.metrics import read_metrics
from seamseg.utils.errors import InputError

FINE_TUNING = ("optimizer.lr=0.03",)
CROP = ("dataloader.crop_size=(128, 192)",)
WIDE = ("dataloader.random_scale=(0.5, 2)", "dataloader.longest_max_size=1024")
SCORES = ("PQ", "PQ_things", "PQ_stuff", "mIoU")
SEED = 1
"""Seed of the scenes; those of the demo, for pre-training, have seed 0."""


@dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes
    ----------
    settings : `section.key=value`
    against : row that it is compared with
    pretrained : fine-tune a network trained on other scenes, whose classes are found by name
    """

    settings: tuple[str, ...] = ()
    against: str = "scratch"
    pretrained: bool = False


VARIANTS = {
    "scratch": Variant(),
    "pretrained": Variant(against="pretrained", pretrained=True),
    "mask_positives_only": Variant(("roi.mask_positives_only=yes",), "pretrained", True),
    "crop": Variant(CROP, "pretrained", True),
    "large_scale_jitter": Variant((*CROP, *WIDE), "crop", True),
}


def main() -> None:
    """Train, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAMES", help=f"variants: {', '.join(VARIANTS)} (default: all)")
    parser.add_argument("--model", type=Path, help="trained on other scenes (default: one trained for --epochs)")
    parser.add_argument("--epochs", type=int, default=8, help="from scratch (default: %(default)s)")
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
    facts = {key: getattr(arguments, key) for key in ("epochs", "train", "val")}
    try:
        check_settings(arguments.out, {**facts, "model": str(arguments.model)}, "ablation.json")
    except InputError as error:
        parser.error(str(error))
    rows, model = train_all(names, arguments)
    print(table(rows))
    if model:
        print("the network that was fine-tuned:", ", ".join(f"{key} {value:.1f}" for key, value in model.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({**facts, "model": model, "rows": rows}, indent=1))


def train_all(
    names: list[str], arguments: argparse.Namespace
) -> tuple[dict[str, dict[str, list[float]]], dict[str, float]]:
    """Return scores in percent and CPU seconds of each row, one for each seed; and the scores of --model, if used."""
    out: Path = arguments.out
    data = city(out / "city", SEED, arguments)
    model, scores = arguments.model or out / "pretraining", {}
    if any(VARIANTS[name].pretrained for name in names):
        if arguments.model is None:
            train(model, city(out / "other_city", 0, arguments), (f"scheduler.epochs={arguments.epochs}",), ())
        scores = evaluate(model, data, out / "model.json")
    start = ("--pre-train", str(model), "--pre-train-classes", "names")
    runs = {}
    with ThreadPoolExecutor(arguments.processes) as pool:
        for name in names:
            variant = VARIANTS[name]
            epochs = max(1, arguments.epochs // 2) if variant.pretrained else arguments.epochs
            settings = (f"scheduler.epochs={epochs}", *(FINE_TUNING if variant.pretrained else ()), *variant.settings)
            runs[name] = [
                pool.submit(
                    train,
                    out / f"{name}_{seed}",
                    data,
                    (*settings, f"general.seed={seed}"),
                    start if variant.pretrained else (),
                )
                for seed in range(arguments.seeds)
            ]
        try:
            found = {name: [run.result() for run in futures] for name, futures in runs.items()}
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {name: {key: [one[key] for one in each] for key in each[0]} for name, each in found.items()}, scores


def city(folder: Path, seed: int, arguments: argparse.Namespace) -> Path:
    """Return the dataset folder of a toy city, made if needed."""
    from seamseg.prepare.cityscapes import prepare_cityscapes
    from seamseg.toy_city import generate_toy_city

    raw, data = folder / "raw", folder / "data"
    generate_toy_city(raw, arguments.train, arguments.val, seed)
    prepare_cityscapes(raw, data, ("train", "val"))
    return data


def train(run: Path, data: Path, settings: tuple[str, ...], more: tuple[str, ...]) -> dict[str, float]:
    """Train in a process with one thread, unless the run is complete; return its scores and CPU seconds."""
    done = run / "ablation.json"
    words = ["train", "toy_city_r18", str(data), "--log-dir", str(run), "--quiet", *more]
    for setting in ("scheduler.burn_in_steps=25", *settings):
        words += ["--set", setting]
    if done.exists():
        found = json.loads(done.read_text())
        if found.get("arguments") != words:
            raise SystemExit(f"{run}: was trained with other settings; choose another --out or delete it")
        return dict(found["scores"])
    print(f"training {run}", file=sys.stderr, flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen([sys.executable, "-m", "seamseg", *words], env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(started.pid, 0)
    if status:
        raise SystemExit(f"{run}: the training failed")
    last = [line for line in read_metrics(run) if line["kind"] == "validation"][-1]
    scores = {key: 100 * last[key] for key in SCORES}
    scores["CPU seconds"] = used.ru_utime + used.ru_stime
    done.write_text(json.dumps({"arguments": words, "scores": scores}))
    return scores


def evaluate(model: Path, data: Path, out: Path) -> dict[str, float]:
    """Return the scores of a model on the held-out scenes, in percent."""
    if not out.exists():
        command = [sys.executable, "-m", "seamseg", "evaluate", str(model), str(data), "--json", str(out), "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    scores = json.loads(out.read_text())
    return {key: 100 * scores[key] for key in SCORES}


def table(rows: dict[str, dict[str, list[float]]]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| row | PQ | least - most | things | stuff | mIoU (class map) | against | difference | CPU time |"]
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
