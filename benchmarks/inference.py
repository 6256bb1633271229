"""Time prediction from file to file on the CPU: from a JPEG to an overlay and a COCO panoptic PNG.

    python benchmarks/inference.py [--rounds 5] [--sides 512 1024] [--precision fp32 bf16]
                                   [--strong 100] [plain separated trained every_mask maskrcnn]

`plain`: the algorithm of the original, written plainly, in fp32 (benchmarks/plain.py); `separated`: the same, but for
its large average pool, which goes along one axis after the other. `trained`: our own network before its norms are
folded. `every_mask`: ours in fp32 with the masks of all detections, also of those that score too low for the panoptic
map (two thirds with `--strong 33`). `maskrcnn`: torchvision's maskrcnn_resnet50_fpn, which has no semantic head: it
finds no stuff.

Images a second of many images, also compiled and as CUDA graphs, on a CPU or GPU: benchmarks/throughput.py.

Weights are random. Every side works on the same JPEG at the same input size, with 1000 proposals and 100 detections:
ours and the plain ones make up classes and scores of the first 100 proposals; the class layer of Mask R-CNN gets a bias
for one class, so that it finds 100 detections of that class. All sides run in this process with the same settings of
malloc and OpenMP, and take turns. CPU seconds (all threads) stand
beside the wall's, since others may use the machine; the load is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

PROPOSALS, DETECTIONS = 1000, 100
Run = Callable[[], dict[str, float]]


def ours(side: int, photo: Path, out: Path, name: str, strong: int) -> Run:
    """Return a function that predicts with a side of ours or a plain one and returns the seconds of each stage."""
    import torch
    from plain import plain_predictor
    from stages import StageProfile, random_predictor

    unfolded, plain = name in ("plain", "separated", "trained"), name in ("plain", "separated")
    precision = "fp32" if unfolded or name == "every_mask" else name
    predictor = random_predictor(torch.device("cpu"), side, precision, folded=not unfolded)
    if plain:
        predictor = plain_predictor(predictor, name == "separated")
    profile = StageProfile(predictor, photo, out, True, strong, every_mask=plain or name == "every_mask")

    def run() -> dict[str, float]:
        stages = profile.run()
        assert (profile.counts["proposals"], profile.counts["detections"]) == (PROPOSALS, DETECTIONS), profile.counts
        return stages

    return run


def peer(side: int, photo: Path, out: Path) -> Run:
    """Predict with torchvision, and write an overlay and an id map as seamseg does."""
    import numpy as np
    import torch
    from peer import maskrcnn
    from PIL import Image

    from seamseg.data.images import open_image
    from seamseg.formats.id_png import write_id_png
    from seamseg.visualize.palette import distinct_colors

    model, colours = maskrcnn((side, 4 * side)), distinct_colors(DETECTIONS + 1)
    out.mkdir(parents=True, exist_ok=True)

    @torch.inference_mode()
    def run() -> dict[str, float]:
        start = time.perf_counter()
        rgb = np.asarray(open_image(photo))
        found = model([torch.from_numpy(rgb.copy()).permute(2, 0, 1).float().div_(255)])[0]
        assert len(found["boxes"]) == DETECTIONS, len(found["boxes"])
        ids = np.zeros(rgb.shape[:2], np.int32)
        for i, mask in enumerate(found["masks"][:, 0].numpy(), start=1):
            ids[(mask > 0.5) & (ids == 0)] = i
        blended = ((rgb.astype(np.uint16) + colours[ids]) // 2).astype(np.uint8)
        Image.fromarray(blended).save(out / "overlay.jpg", quality=92)
        write_id_png(out / "ids.png", ids)
        return {"all": time.perf_counter() - start}

    return run


def timed(run: Run) -> dict[str, float]:
    """Time one run: its stages, and wall and CPU seconds in total."""
    wall, cpu = time.perf_counter(), time.process_time()
    stages = run()
    return {**stages, "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def compare(side: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure one size and print the table."""
    from seamseg.utils.synthetic_image import write_synthetic_image

    photo = folder / f"street{side}.jpg"
    write_synthetic_image(photo, (side, side * 767 // 512))
    names = [*arguments.precision, *arguments.what]
    sides = {
        n: (peer if n == "maskrcnn" else partial(ours, name=n, strong=arguments.strong))(side, photo, folder / n)
        for n in names
    }
    for run in sides.values():
        run()
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(arguments.rounds):
        for name, run in sides.items():
            runs[name].append(timed(run))
    load = os.getloadavg()[0]
    print(f"\n{side} x {side * 767 // 512}, load {load:.1f}")
    table: dict[str, Any] = {"load": load}
    for name, records in runs.items():
        table[name] = {key: statistics.median(record[key] for record in records) for key in records[0]}
        print(f"  {name:<10} wall {table[name]['wall']:7.3f} s   CPU {table[name]['cpu']:7.3f} s")
    table |= ratios(runs, arguments.precision)
    stages = {k: v for k, v in table[arguments.precision[0]].items() if k not in ("wall", "cpu")}
    print("  stages, ms: " + ", ".join(f"{name} {seconds * 1e3:.0f}" for name, seconds in stages.items()), flush=True)
    return table


def ratios(runs: dict[str, list[dict[str, float]]], precisions: list[str]) -> dict[str, float]:
    """Print and return the median ratios of the times of each side and the first precision."""
    first, found = precisions[0], {}
    for name in (*precisions[1:], *(n for n in runs if n not in precisions)):
        for clock in ("wall", "cpu"):
            pairs = zip(runs[first], runs[name])
            found[f"{name}/{first} {clock}"] = statistics.median(b[clock] / a[clock] for a, b in pairs)
        print(f"  {name} takes {found[f'{name}/{first} wall']:.2f} times the wall time of {first}, ", end="")
        print(f"{found[f'{name}/{first} cpu']:.2f} times its CPU time")
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = ["plain", "separated", "trained", "every_mask", "maskrcnn"]
    parser.add_argument("what", nargs="*", default=everything, help=f"peers of {', '.join(everything)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (default: %(default)s)")
    parser.add_argument("--sides", type=int, nargs="+", default=[512, 1024], help="shortest sides (default: both)")
    parser.add_argument(
        "--precision", nargs="+", default=["fp32", "bf16"], help="precisions of ours (default: fp32 bf16)"
    )
    parser.add_argument(
        "--strong", type=int, default=DETECTIONS, help="detections of ours that score above .5 (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.what) - set(everything):
        parser.error(f"{unknown.pop()}: choose from {', '.join(everything)}")
    from seamseg.utils import process_settings

    # as the command line does it, for all sides; docs/reference/performance.md
    process_settings.apply()
    import torch
    from timing import processor

    torch.set_num_threads(arguments.threads)
    facts: dict[str, Any] = {"torch": torch.__version__, "threads": arguments.threads, "cpu": processor()}
    facts["rounds"] = arguments.rounds
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    with tempfile.TemporaryDirectory(prefix="seamseg-bench-") as folder:
        tables = {side: compare(side, arguments, Path(folder)) for side in arguments.sides}
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(facts | tables, indent=1))


if __name__ == "__main__":
    main()
