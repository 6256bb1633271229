"""Train on the toy city of the demo for a short time in fp32 and bf16; print losses and PQ on held-out scenes.

    python benchmarks/toy_city.py --device cuda --json toy_city.json
    python benchmarks/toy_city.py --device cpu --train 2 --val 2 --epochs 1

Both runs are `seamseg demo` with the same seed: the same scenes, order and initial weights.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from seamseg.training.logging.metrics import read_metrics

PRECISIONS = ("fp32", "bf16")


def train(precision: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the demo; return its losses by step, PQ and seconds."""
    command = [sys.executable, "-m", "seamseg", "demo", "--out", str(folder), "--device", arguments.device]
    command += ["--train", str(arguments.train), "--val", str(arguments.val)]
    for setting in (
        f"general.precision={precision}",
        f"scheduler.epochs={arguments.epochs}",
        f"dataloader.train_batch_size={min(8, arguments.train)}",
        f"dataloader.num_workers={arguments.workers}",
        f"general.log_interval={arguments.log_interval}",
    ):
        command += ["--set", setting]
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=sys.stderr)
    seconds = time.perf_counter() - start
    metrics = json.loads((folder / "metrics.json").read_text())
    losses = {m["step"]: m["loss"] for m in read_metrics(folder) if m["kind"] == "train"}
    return {"PQ": metrics["PQ"], "mIoU_segments": metrics["mIoU_segments"], "seconds": seconds, "losses": losses}


def main() -> int:
    """Train both and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--train", type=int, default=200, help="scenes (default: %(default)s)")
    parser.add_argument("--val", type=int, default=40, help="held-out scenes (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=0, help="processes that load scenes (default: %(default)s)")
    parser.add_argument("--log-interval", type=int, default=25, help="steps between losses (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seamseg-toy-city-") as name:
        summary = {key: getattr(arguments, key) for key in ("device", "train", "val", "epochs")}
        runs: dict[str, dict[str, Any]] = {}
        for precision in PRECISIONS:
            runs[precision] = train(precision, Path(name) / precision, arguments)
            # the next one may fail
            if arguments.json:
                Path(arguments.json).write_text(json.dumps({**summary, "runs": runs}, indent=1))
    print(f"{'step':<8}" + "".join(f"{precision:>10}" for precision in PRECISIONS))
    for step in runs["fp32"]["losses"]:
        print(f"{step:<8}" + "".join(f"{runs[p]['losses'].get(step, float('nan')):>10.4f}" for p in PRECISIONS))
    for number in ("PQ", "mIoU_segments", "seconds"):
        print(f"{number:<14}" + "".join(f"{runs[precision][number]:>10.4f}" for precision in PRECISIONS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
