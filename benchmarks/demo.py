"""Time `seamseg demo` from start to end, in one or several precisions with the same seed; print losses and PQ.

    python benchmarks/demo.py fp32 --json demo.json                                # the demo as it is, 4 minutes
    python benchmarks/demo.py fp32 bf16 --device cuda --train 100 --epochs 4

Each run draws the city, trains, predicts and evaluates anew: the same scenes, order and initial weights. PQ on the
held-out scenes stands beside the time, because a shorter training is worth nothing without it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from timing import processor

from seamseg.maps.metrics_file import read_metrics


def run(precision: str, out: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the demo; return its wall and CPU seconds, PQ and losses by step."""
    settings = [f"general.precision={precision}", *arguments.set]
    settings += [f"scheduler.epochs={arguments.epochs}"] if arguments.epochs else []
    command = [sys.executable, "-m", "seamseg", "demo", "--out", str(out), "--device", arguments.device]
    command += [f"--train={arguments.train}", f"--val={arguments.val}", *(f"--set={setting}" for setting in settings)]
    start, before = time.monotonic(), os.times()
    ended = subprocess.run(command, stdout=sys.stderr)
    if ended.returncode:
        raise SystemExit(f"demo.py: {' '.join(command)}: exit code {ended.returncode}")
    wall, after = time.monotonic() - start, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    losses = {line["step"]: line["loss"] for line in read_metrics(out) if line["kind"] == "train"}
    return {"seconds": wall, "cpu": cpu, "PQ": json.loads((out / "metrics.json").read_text())["PQ"], "losses": losses}


def main() -> None:
    """Run the demos, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("precisions", nargs="*", default=["auto"], help="fp32, bf16, fp16, auto (default: auto)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--train", type=int, default=560, help="scenes (default: %(default)s)")
    parser.add_argument("--val", type=int, default=40, help="held-out scenes (default: %(default)s)")
    parser.add_argument("--epochs", type=int, help="default: that of the demo")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="further settings")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the numbers to this file")
    arguments = parser.parse_args()
    facts = {"cpu": processor(), **{key: getattr(arguments, key) for key in ("device", "train", "val", "epochs")}}
    runs: dict[str, dict[str, Any]] = {}
    print(f"{'':12}{'wall s':>10}{'CPU s':>10}{'last loss':>12}{'PQ':>8}")
    with tempfile.TemporaryDirectory(prefix="seamseg-demo-") as folder:
        for precision in arguments.precisions:
            found = runs[precision] = run(precision, Path(folder) / precision, arguments)
            last = list(found["losses"].values())[-1]
            print(f"{precision:12}{found['seconds']:10.0f}{found['cpu']:10.0f}{last:12.3f}{100 * found['PQ']:8.2f}")
            # the next one may fail
            if arguments.json:
                arguments.json.write_text(json.dumps({**facts, "runs": runs}, indent=1))


if __name__ == "__main__":
    main()
