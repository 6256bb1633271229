"""Compare the panoptic quality of COCO panoptic files of 1024 x 2048 with panopticapi and hotcoco.

    python benchmarks/panoptic_quality.py --pairs 500 --panopticapi VENV/bin/python --hotcoco VENV/bin/python
                                          [--json FILE]

The maps are drawn scenes of the toy city, shifted and mirrored so that no two are the same; predictions have ragged
borders, lost and torn segments. Half of the files are written by us, half by Pillow with its defaults. Each side is a
process of its own that evaluates all pairs with `--workers` workers (panopticapi takes as many processes as it may use
cores, so all sides are bound to that many); the sides take turns, medians are printed. Times are those of the
evaluation from file names to scores, without the start of Python and imports. Memory is the kernel's high-water mark
of the largest process, with all that it has imported.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

HEIGHT, WIDTH, CLASSES, SCENES = 1024, 2048, 19, 12
NAMES = ("PQ", "SQ", "RQ")

OURS = """
from seamseg.maps.evaluation.evaluate_files import evaluate_panoptic_json as run
def evaluate(gt, pred, workers):
    scores = run(gt, pred, workers=workers)
    known = [c.to_json() for c in scores.per_class]
    return {c["id"]: [c["PQ"], c["SQ"], c["RQ"]] for c in known}
"""
PANOPTICAPI = """
import multiprocessing, os
from panopticapi.evaluation import pq_compute
def evaluate(gt, pred, workers):
    multiprocessing.cpu_count = lambda: workers
    return {int(k): [v["pq"], v["sq"], v["rq"]] for k, v in pq_compute(gt, pred)["per_class"].items()}
"""
HOTCOCO = """
import os
def evaluate(gt, pred, workers):
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    from hotcoco.panoptic import pq_compute
    # it returns -1 for a class without segments on both sides
    found = {k: v for k, v in pq_compute(gt, pred)["per_class"].items() if v["tp"] + v["fp"] + v["fn"]}
    return {int(k): [v["pq"], v["sq"], v["rq"]] for k, v in found.items()}
"""
RUN = """
import contextlib, json, os, resource, sys, time
gt, pred, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:workers])
start = time.perf_counter()
with contextlib.redirect_stdout(sys.stderr):
    result = evaluate(gt, pred, workers)
seconds = time.perf_counter() - start
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([seconds, max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024, result]))
"""


def scenes() -> list[np.ndarray]:
    """Render landscape scenes as segment numbers; 0 is void."""
    from seamseg.maps.toy_city import render_scene

    out: list[np.ndarray] = []
    index = 0
    while len(out) < SCENES:
        ids = render_scene(0, "val", index, (HEIGHT, WIDTH))[1]
        index += 1
        if ids.shape == (HEIGHT, WIDTH):
            out.append(np.unique(ids, return_inverse=True)[1].reshape(ids.shape))
    return out


def ragged(ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Distort a map: borders move by some pixels."""

    def field(step: int) -> np.ndarray:
        coarse = rng.normal(size=(HEIGHT // step + 2, WIDTH // step + 2)).astype(np.float32)
        return np.asarray(Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))

    y, x = np.mgrid[:HEIGHT, :WIDTH]
    dy, dx = (np.rint(3 * field(32) + field(4)).astype(np.int64) for _ in range(2))
    return ids[np.clip(y + dy, 0, HEIGHT - 1), np.clip(x + dx, 0, WIDTH - 1)]


def coloured(ids: np.ndarray, classes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, list[dict]]:
    """Return ids of three bytes and the segments that occur; number 0 is void."""
    colours = rng.choice(np.arange(1, 1 << 24), len(classes), replace=False)
    colours[0] = 0
    areas = np.bincount(ids.ravel(), minlength=len(classes))
    here = [int(k) for k in np.flatnonzero(areas) if k > 0]
    common = {"iscrowd": 0, "bbox": [0, 0, 1, 1]}
    return colours[ids], [
        {"id": int(colours[k]), "category_id": int(classes[k]), "area": int(areas[k]), **common} for k in here
    ]


def make_pairs(folder: Path, pairs: int) -> None:
    """Write two JSONs with their folders of PNGs."""
    from seamseg.maps.formats.id_png import write_id_png

    drawn = scenes()
    annotations: dict[str, list[dict]] = {"gt": [], "pred": []}
    for index in range(pairs):
        rng = np.random.default_rng(index)
        ids = np.roll(drawn[index % SCENES], int(rng.integers(WIDTH)), 1)[:, :: 1 if rng.random() < 0.5 else -1]
        count = int(ids.max()) + 1
        classes = 1 + np.arange(count) % CLASSES
        guess = ragged(ids, rng)
        guess[np.isin(guess, rng.choice(count, count // 10))] = 0
        wrong = np.where(rng.random(count) < 0.1, 1 + rng.integers(0, CLASSES, count), classes)
        for side, shown, kinds in (("gt", ids, classes), ("pred", guess, wrong)):
            colours, segments = coloured(shown, kinds, rng)
            path = folder / side / f"{index:05}.png"
            if index % 2:
                path.parent.mkdir(exist_ok=True)
                rgb = np.stack([colours >> shift & 255 for shift in (0, 8, 16)], -1).astype(np.uint8)
                Image.fromarray(rgb).save(path)
            else:
                write_id_png(path, colours)
            annotations[side].append({"image_id": index, "file_name": path.name, "segments_info": segments})
    images = [{"id": i, "file_name": f"{i:05}.jpg", "height": HEIGHT, "width": WIDTH} for i in range(pairs)]
    categories = [
        {"id": k, "name": f"class {k}", "isthing": int(k > 11), "color": [k, 0, 0]} for k in range(1, CLASSES + 1)
    ]
    for side, entries in annotations.items():
        content = {"images": images, "annotations": entries, "categories": categories}
        (folder / f"{side}.json").write_text(json.dumps(content))


def evaluate(python: str, code: str, folder: Path, workers: int) -> tuple[float, float, dict]:
    """Return seconds, the peak of the largest process in MB and the scores of one evaluation, on `workers` cores."""
    files = (str(folder / f"{side}.json") for side in ("gt", "pred"))
    command = [python, "-c", code + RUN, *files, str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        sys.exit(f"{python} failed:\n{done.stderr[-2000:]}")
    seconds, largest, scores = json.loads(done.stdout)
    return seconds, largest, scores


def largest_difference(a: dict, b: dict) -> list[float]:
    """Return the largest difference of PQ, SQ and RQ of a class; missing classes count as zero."""
    keys = sorted(a.keys() | b.keys())
    rows = [(a.get(k) or [0.0] * 3, b.get(k) or [0.0] * 3) for k in keys]
    return [max(abs((x[i] or 0.0) - (y[i] or 0.0)) for x, y in rows) for i in range(3)]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100, help="pairs of maps (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="times that each side runs (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="threads or processes (default: %(default)s)")
    parser.add_argument("--panopticapi", metavar="PYTHON", help="interpreter where panopticapi is installed")
    parser.add_argument("--hotcoco", metavar="PYTHON", help="interpreter where hotcoco is installed")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    sides = {"seamseg": (sys.executable, OURS)}
    for name, python, code in (
        ("panopticapi", arguments.panopticapi, PANOPTICAPI),
        ("hotcoco", arguments.hotcoco, HOTCOCO),
    ):
        if python is None:
            print(f"{name} is left out: --{name} PYTHON names no interpreter that has it")
        else:
            sides[name] = (python, code)
    with tempfile.TemporaryDirectory(prefix="panoptic-quality-") as name:
        folder = Path(name)
        # a small process of ours: that of a child begins as a copy of it
        maker = multiprocessing.Process(target=make_pairs, args=(folder, arguments.pairs))
        maker.start()
        maker.join()
        if maker.exitcode:
            sys.exit("the files could not be made")
        results: dict[str, list[tuple[float, float, dict]]] = {side: [] for side in sides}
        for _ in range(arguments.rounds):
            for side, (python, code) in sides.items():
                results[side].append(evaluate(python, code, folder, arguments.workers))
    print(f"{arguments.pairs} pairs of {HEIGHT} x {WIDTH}, {arguments.workers} workers, {arguments.rounds} rounds\n")
    gaps = f"largest difference of {', '.join(NAMES)}"
    print(f"{'':<14}{'ms a pair':>10}{'times ours':>12}{'peak MB':>9}   {gaps}")
    ours, rows = results["seamseg"], {}
    for side, found in results.items():
        ms = statistics.median(1e3 * seconds / arguments.pairs for seconds, _, _ in found)
        ratio = statistics.median(r[0] / o[0] for r, o in zip(found, ours))
        gaps = "" if side == "seamseg" else "".join(f"{g:>10.1e}" for g in largest_difference(found[0][2], ours[0][2]))
        largest = max(run[1] for run in found)
        rows[side] = {"ms a pair": ms, "ratio": ratio, "largest MB": largest}
        print(f"{side:<14}{ms:>10.2f}{ratio:>12.2f}{largest:>9.0f}   {gaps}")
    if arguments.json:
        # not earlier: it imports torch, and processes begin as copies of this one
        from timing import processor

        facts = {"pairs": arguments.pairs, "workers": arguments.workers, "rounds": arguments.rounds, "cpu": processor()}
        facts |= {"load": os.getloadavg()[0], "rows": rows}
        Path(arguments.json).write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
