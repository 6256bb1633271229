"""Time `seamseg demo` from start to end; with --against REV, the same of another revision, in turns.

    python benchmarks/demo.py --against REV --rounds 3

Each round draws the city, trains, predicts and evaluates anew, on the CPU: 4 to 9 minutes a side on two cores. PQ is
printed beside the time, because a shorter training is worth nothing without it. The code of the other revision is taken
from git and its kernels are compiled; both sides run in this environment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from startup import ROOT, check_out
from timing import processor


def main() -> None:
    """Run the demos, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="REV", help="git revision to compare with")
    parser.add_argument(
        "--rounds", type=int, default=1, choices=range(1, 100), metavar="N", help="default: %(default)s"
    )
    parser.add_argument("--options", default="", metavar="'OPTIONS'", help="further options of `seamseg demo`, of both")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the numbers to this file")
    arguments = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sides = {"now": ROOT}
        if arguments.against:
            sides = {arguments.against: check_out(arguments.against, folder / "tree", compiled=True), **sides}
        records: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for number in range(arguments.rounds):
            for side, tree in sides.items():
                out = folder / f"{side.replace('/', '_')}_{number}"
                records[side].append(run(tree, out, arguments.options.split()))
                print(f"{side}: {records[side][-1]}", flush=True)
    medians = {
        side: {name: statistics.median(record[name] for record in found) for name in found[0]}
        for side, found in records.items()
    }
    first = next(iter(medians.values()))
    print(f"{'':12s}{'wall s':>10s}{'times as fast':>16s}{'CPU s':>10s}{'PQ':>8s}   medians of {arguments.rounds}")
    for side, found in medians.items():
        ratio = first["wall"] / found["wall"]
        print(f"{side[:12]:12s}{found['wall']:10.0f}{ratio:16.2f}{found['cpu']:10.0f}{100 * found['pq']:8.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"cpu": processor(), "load": load, "sides": records}, indent=1))


def run(tree: Path, out: Path, options: list[str]) -> dict[str, float]:
    """Run the demo of a source tree; return its wall and CPU seconds and its PQ."""
    start, before = time.monotonic(), os.times()
    command = [sys.executable, "-m", "seamseg", "demo", "--out", str(out), "--device", "cpu", *options]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    ended = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"the demo of {tree} failed\n{ended.stderr}")
    if "no compiled" in ended.stderr:
        sys.exit(f"{tree}: its kernels are not compiled; run `make kernels`")
    wall, after = time.monotonic() - start, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall": wall, "cpu": cpu, "pq": json.loads((out / "metrics.json").read_text())["PQ"]}


if __name__ == "__main__":
    main()
