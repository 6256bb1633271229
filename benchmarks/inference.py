"""Time prediction from file to file on the CPU: from a JPEG to an overlay and a COCO panoptic PNG.

    python benchmarks/inference.py [--rounds 5] [--sides 512 1024] [--precision fp32 bf16] [original trained maskrcnn]

`original`: the original's algorithm, by its times on this class of machine (2 cores, no GPU, measured once; body, heads
and fusion, without its reading and writing of files). `trained`: our own network before its norms are folded.
`maskrcnn`: torchvision's maskrcnn_resnet50_fpn, which has no semantic head: it finds no stuff.

Images a second of many photos, also compiled and as CUDA graphs, on a CPU or GPU: benchmarks/throughput.py.

Weights are random. Every side works on the same JPEG at the same input size, with 1000 proposals and 100 detections:
we take our own best 1000 proposals and make up classes and scores of the first 100; the peer's class layer gets a bias
for one class, so that it finds 100 detections of that class. The sides take turns. CPU seconds (all threads) stand
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

ORIGINAL = {512: 11.46, 1024: 64.87}
"""Seconds of the original at 512x767 and 1024x1534."""
PROPOSALS, DETECTIONS = 1000, 100
Run = Callable[[], dict[str, float]]


def ours(side: int, photo: Path, out: Path, precision: str, folded: bool = True) -> Run:
    """Return a function that predicts with seamseg and returns the seconds of each stage."""
    import torch

    from seamseg.predict.profiling import StageProfile, random_predictor

    predictor = random_predictor(torch.device("cpu"), side, precision, folded=folded)
    profile = StageProfile(predictor, photo, out, random_weights=True)

    def run() -> dict[str, float]:
        stages = profile.run()
        assert (profile.counts["proposals"], profile.counts["detections"]) == (PROPOSALS, DETECTIONS), profile.counts
        return stages

    return run


def maskrcnn(side: int) -> nn.Module:
    """Return Mask R-CNN of torchvision with random weights that find 100 things."""
    import torch
    from torchvision.models.detection import maskrcnn_resnet50_fpn

    torch.manual_seed(0)
    model: Any = maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, min_size=side, max_size=4 * side, rpn_pre_nms_top_n_test=6000
    ).eval()
    with torch.no_grad():
        model.roi_heads.box_predictor.cls_score.weight.mul_(0.01)
        model.roi_heads.box_predictor.cls_score.bias[1] = 8.0
        model.roi_heads.box_predictor.bbox_pred.weight.mul_(0.01)
    return model


def peer(side: int, photo: Path, out: Path) -> Run:
    """Predict with torchvision, and write an overlay and an id map as seamseg does."""
    import numpy as np
    import torch
    from PIL import Image

    from seamseg.data.images import open_image
    from seamseg.formats.id_png import write_id_png
    from seamseg.visualize.palette import distinct_colors

    model, colours = maskrcnn(side), distinct_colors(DETECTIONS + 1)
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
    from seamseg.predict.profiling import write_test_image

    photo = folder / f"street{side}.jpg"
    write_test_image(photo, (side, side * 767 // 512))
    sides = {precision: ours(side, photo, folder / precision, precision) for precision in arguments.precision}
    if "trained" in arguments.what:
        sides["trained"] = ours(side, photo, folder / "trained", "fp32", folded=False)
    if "maskrcnn" in arguments.what:
        sides["maskrcnn"] = peer(side, photo, folder / "peer")
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
    if "original" in arguments.what and side in ORIGINAL:
        print_original(ORIGINAL[side], table, arguments)
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


def print_original(seconds: float, table: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Print the speed relative to the original."""
    for precision in arguments.precision:
        wall, busy = table[precision]["wall"], table[precision]["cpu"] / arguments.threads
        print(f"  original {seconds:.1f} s: {precision} is {seconds / wall:.1f} times as fast,")
        print(f"    {seconds / busy:.1f} times if {arguments.threads} idle cores share its CPU seconds evenly")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = ["original", "trained", "maskrcnn"]
    parser.add_argument("what", nargs="*", default=everything, help="peers (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (default: %(default)s)")
    parser.add_argument("--sides", type=int, nargs="+", default=[512, 1024], help="shortest sides (default: both)")
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"], help="of ours (default: fp32 bf16)")
    parser.add_argument("--threads", type=int, default=2, help="of torch (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    from seamseg.cli import process_settings

    # as the command line does it, for all sides; docs/reference/performance.md
    process_settings.apply()
    import torch

    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} threads, {arguments.rounds} rounds")
    with tempfile.TemporaryDirectory(prefix="seamseg-bench-") as folder:
        tables = {side: compare(side, arguments, Path(folder)) for side in arguments.sides}
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(tables, indent=1))


if __name__ == "__main__":
    main()
