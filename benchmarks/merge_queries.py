"""Merge the masks of a network of queries into a panoptic map: time and memory beside transformers.

    python benchmarks/merge_queries.py [--rounds 5] [--threads N] [--json FILE] [SIZE ...]

100 queries of which 40 are kept, logits of 256 x 512. Sides are `merge_queries` with the C library and in numpy, the
same from the outputs of the network on, with all else that a prediction has (detections and class map), and
`post_process_panoptic_segmentation` of Mask2Former's image processor. Each has a process of its own, and these take
turns. Seconds are medians, of the CPU time of all threads and of wall time. Memory is the process's high-water mark
(VmHWM) above that before its first call, when inputs and libraries are loaded. Ratios are of transformers to ours.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"1024x2048": (1024, 2048), "3000x4000": (3000, 4000)}
INPUT = (1024, 2048)
QUERIES, KEPT, CLASSES, STUFF = 100, 40, 19, 11
SIDES = {
    "C library": {},
    "numpy": {"SEAMSEG_PLAIN_OPS": "1"},
    "with detections": {},
    "transformers": {},
}
"""Environment of the process of each side."""


def outputs() -> tuple[np.ndarray, np.ndarray]:
    """Make logits of classes and masks: stuff in bands, things as discs on them, and queries of "no object"."""
    rng = np.random.default_rng(0)
    height, width = INPUT[0] // 4, INPUT[1] // 4
    masks = rng.normal(-7, 1, (QUERIES, height, width)).astype(np.float32)
    columns = np.full(QUERIES, CLASSES)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    for number, k in enumerate(rng.permutation(QUERIES)[:KEPT]):
        if number < STUFF:
            columns[k], top = number, 6
            inside = height / STUFF / 2 - np.abs(y - height / STUFF * (number + 0.5))
        else:
            columns[k], top = STUFF + number % (CLASSES - STUFF), 12
            centre = height / 4 * (number % 4 + 0.5), width / 8 * (number // 4 % 8 + 0.5)
            inside = rng.uniform(6, 16) - np.hypot(y - centre[0], x - centre[1])
        masks[k] += (inside + 0.5).clip(0, 1) * (7 + top)
    classes = rng.normal(0, 1, (QUERIES, CLASSES + 1)).astype(np.float32)
    classes[np.arange(QUERIES), columns] += 12
    return classes, masks


def ours(size: tuple[int, int], whole: bool) -> Callable[[], Any]:
    """Return the call of this package."""
    from seamseg.fusion import merge_queries
    from seamseg.inference.queries import prediction_of_queries

    classes, masks = outputs()
    columns = np.arange(CLASSES)
    queries = prediction_of_queries(classes, masks, INPUT, INPUT, columns, STUFF).queries
    assert queries is not None

    def merge() -> int:
        return len(merge_queries(queries, INPUT, size, STUFF).categories) - 1

    def predict() -> int:
        found = prediction_of_queries(classes, masks, INPUT, INPUT, columns, STUFF)
        assert found.queries is not None
        return len(merge_queries(found.queries, INPUT, size, STUFF).categories) - 1

    return predict if whole else merge


def theirs(size: tuple[int, int], threads: int | None) -> Callable[[], Any]:
    """Return the call of transformers, with the thresholds of the paper."""
    import torch
    from transformers import Mask2FormerImageProcessor
    from transformers.models.mask2former.modeling_mask2former import Mask2FormerForUniversalSegmentationOutput

    if threads:
        torch.set_num_threads(threads)
    classes, masks = (torch.from_numpy(values)[None] for values in outputs())
    found = Mask2FormerForUniversalSegmentationOutput(class_queries_logits=classes, masks_queries_logits=masks)
    processor = Mask2FormerImageProcessor()

    @torch.inference_mode()
    def post_process() -> int:
        (result,) = processor.post_process_panoptic_segmentation(
            found,
            threshold=0.8,
            overlap_mask_area_threshold=0.8,
            label_ids_to_fuse=set(range(STUFF)),
            target_sizes=[size],
        )
        return len(result["segments_info"])

    return post_process


def memory() -> float:
    """Return the high-water mark of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def work(side: str, size: tuple[int, int], threads: int | None) -> None:
    """Run a side once for each line of the standard input, and print a line of JSON."""
    call = theirs(size, threads) if side == "transformers" else ours(size, side == "with detections")
    # what the inputs took is not counted twice
    Path("/proc/self/clear_refs").write_text("5")
    before = memory()
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        start, cpu = time.perf_counter(), time.process_time()
        segments = call()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        row = {"seconds": seconds, "cpu": cpu, "peak_mb": memory() - before, "segments": segments}
        print(json.dumps(row), flush=True)


class Worker:
    """The process of a side."""

    def __init__(self, side: str, size: str, threads: int | None) -> None:
        command = [sys.executable, __file__, size, "--work", side, *(["--threads", str(threads)] if threads else [])]
        environment = {**os.environ, **SIDES[side]}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._read()

    def run(self) -> dict[str, float]:
        """Run the side once."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        return self._read()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a side failed")
        return json.loads(line)


def measure(size: str, sides: list[str], rounds: int, threads: int | None) -> dict[str, dict[str, float]]:
    """Run all sides in turns, after a warm-up, and return medians; memory is the largest."""
    workers = {side: Worker(side, size, threads) for side in sides}
    for worker in workers.values():
        worker.run()
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, worker in workers.items():
            found[side].append(worker.run())
    for worker in workers.values():
        worker.close()
    rows = {}
    for side, runs in found.items():
        rows[side] = {key: statistics.median(run[key] for run in runs) for key in ("seconds", "cpu", "segments")}
        rows[side]["peak_mb"] = max(run["peak_mb"] for run in runs)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", metavar="SIZE", help=f"size of the image (default: {' '.join(SIZES)})")
    parser.add_argument("--rounds", type=int, default=5, help="times that each side runs (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: torch's own choice)")
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sizes = arguments.sizes or list(SIZES)
    if unknown := set(sizes) - set(SIZES):
        parser.error(f"sizes are {', '.join(SIZES)}, not {', '.join(unknown)}")
    if arguments.work:
        return work(arguments.work, SIZES[sizes[0]], arguments.threads)
    sides = list(SIDES)
    if importlib.util.find_spec("transformers") is None:
        sides.remove("transformers")
        print("transformers is left out: pip install transformers")
    results = {}
    for size in sizes:
        rows = results[size] = measure(size, sides, arguments.rounds, arguments.threads)
        peer = rows.get("transformers")
        titles = "".join(f"{title:>9}{'ratio':>8}" for title in ("CPU s", "wall s", "peak MB"))
        print(f"\n{size:<18}{titles}{'segments':>10}")
        for side, row in rows.items():
            cells = ""
            for key, digits in (("cpu", 3), ("seconds", 3), ("peak_mb", 0)):
                ratio = "" if peer is None else f"{peer[key] / row[key]:.1f}"
                cells += f"{row[key]:>9.{digits}f}{ratio:>8}"
            print(f"{side:<18}{cells}{row['segments']:>10.0f}", flush=True)
    if arguments.json:
        # not earlier: it imports torch
        from timing import processor

        summary = {"queries": QUERIES, "kept": KEPT, "rounds": arguments.rounds, "threads": arguments.threads}
        summary |= {"cpu": processor(), "load": os.getloadavg()[0]}
        Path(arguments.json).write_text(json.dumps({**summary, "rows": results}, indent=1))


if __name__ == "__main__":
    main()
