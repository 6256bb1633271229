"""Compare the throughput of Ray Data and of `seamseg predict` on this machine, in turns.

    python benchmarks/ray_data.py PHOTOS --model runs/demo --json FILE

Both commands run in full on few and on many of the images, so that the difference gives images per second without the
start, and the rest of the time the start. Ray has one actor of one processor beside its readers and writers.
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

from timing import processor


def seconds(command: list[str], out: Path, count: int) -> float:
    """Return the wall time of a command; its outputs must be of `count` images."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", *command, str(out)], check=True, capture_output=True)
    wall = time.perf_counter() - start
    manifest = out / "predictions.jsonl"
    if manifest.exists():
        assert len(manifest.read_text().splitlines()) == count + 1
    return wall


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="folder of images")
    parser.add_argument("--model", required=True)
    parser.add_argument("--counts", default="40,240", help="few and many images (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.counts.split(",")]
    sides = {
        "predict": ["seamseg", "predict", "--format", "coco", "--quiet", "--device", "cpu"],
        "Ray Data": ["seamseg.contrib.ray", "--device", "cpu"],
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    starts: dict[str, list[float]] = {name: [] for name in sides}
    found = sorted(path for path in arguments.photos.rglob("*") if path.suffix in (".png", ".jpg"))
    with tempfile.TemporaryDirectory(prefix="seamseg-bench-") as name:
        for count in counts:
            (folder := Path(name, str(count))).mkdir()
            for number in range(count):
                source = found[number % len(found)]
                (folder / f"{number:05}{source.suffix}").write_bytes(source.read_bytes())
        for turn in range(arguments.rounds):
            for side, words in sides.items():
                few, many = (
                    seconds([*words, arguments.model, f"{name}/{count}"], Path(name, f"{side}{turn}-{count}"), count)
                    for count in counts
                )
                rates[side].append((counts[1] - counts[0]) / (many - few))
                starts[side].append(few - counts[0] / rates[side][-1])
    ratio = statistics.median(b / a for a, b in zip(*rates.values()))
    result = {"cpu": processor(), "cores": os.cpu_count(), "ratio": ratio}
    for side in sides:
        result[side] = {"images/s": statistics.median(rates[side]), "start s": statistics.median(starts[side])}
        print(f"{side:<10}{result[side]['images/s']:7.2f} images/s, {result[side]['start s']:.1f} s before the first")
    print(f"Ray Data makes {ratio:.2f} times the images per second")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
