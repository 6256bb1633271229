"""Time prediction from file to file on the CPU: from a JPEG to an overlay and a COCO panoptic PNG.

    python benchmarks/inference.py [--rounds 5] [--sizes 512 1024] [fp32 bf16 plain separated maskrcnn]
    python benchmarks/inference.py fp32 fp32/300                         # 300 instead of 1000 proposals

The first side is what the others are compared with. `plain`: the algorithm of the original, written plainly, in fp32
(examples/plain_seamless.py); `separated`: the same, but for its large average pool, which goes along one axis after the
other. `maskrcnn`: torchvision's maskrcnn_resnet50_fpn, which has no semantic head: it finds no stuff. Many images, also
on a GPU: benchmarks/throughput.py.

Weights are random. Every side works on the same JPEG at the same input size, with 1000 proposals and 100 detections:
ours and the plain ones make up classes and scores of the first 100 proposals; the class layer of Mask R-CNN gets a bias
for one class, so that it finds 100 detections of that class. All sides run in this process with the same settings of
malloc and OpenMP, and take turns. CPU seconds (all threads) stand beside the wall's, since others may use the machine;
the load is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "examples"))

Run = Callable[[], None]
SIDES = ("fp32", "bf16", "plain", "separated", "maskrcnn")


def ours(side: int, photo: Path, out: Path, name: str) -> Run:
    """Return a function that predicts with a side of ours or a plain one, and writes the files."""
    import numpy as np
    import torch
    from networks import DETECTIONS, busy, random_predictor
    from plain_seamless import plain_predictor

    from seamseg.inference.images import network_input
    from seamseg.maps.images import open_image
    from seamseg.predicting.folder import make_writers
    from seamseg.predicting.source import Source

    plain = name in ("plain", "separated")
    precision, _, proposals = ("fp32" if plain else name).partition("/")
    overrides = (f"rpn.num_post_nms_val={proposals or 1000}",)
    predictor = random_predictor(torch.device("cpu"), side, precision, folded=not plain, overrides=overrides)
    if plain:
        predictor = plain_predictor(predictor, name == "separated")
    network: Any = predictor.network
    network.net = busy(network.net)

    def run() -> None:
        image = open_image(photo)
        (prediction,) = predictor.raw([network_input(image, predictor.input_size)])
        assert len(prediction.boxes) == DETECTIONS, len(prediction.boxes)
        result = predictor.result(prediction, (image.height, image.width))
        for writer in make_writers(["overlay", "coco"], out, predictor.metadata):
            writer.write(Source(photo, photo.stem, photo.name), np.asarray(image), prediction, result)

    return run


def peer(side: int, photo: Path, out: Path) -> Run:
    """Predict with torchvision, and write an overlay and an id map as seamseg does."""
    import numpy as np
    import torch
    from networks import DETECTIONS, maskrcnn
    from PIL import Image

    from seamseg.maps.formats.id_png import write_id_png
    from seamseg.maps.images import open_image
    from seamseg.maps.visualize.overlay import distinct_colors

    model, colours = maskrcnn(side), distinct_colors(DETECTIONS + 1)
    out.mkdir(parents=True, exist_ok=True)

    @torch.inference_mode()
    def run() -> None:
        rgb = np.asarray(open_image(photo))
        found = model([torch.from_numpy(rgb.copy()).permute(2, 0, 1).float().div_(255)])[0]
        assert len(found["boxes"]) == DETECTIONS, len(found["boxes"])
        ids = np.zeros(rgb.shape[:2], np.int32)
        for i, mask in enumerate(found["masks"][:, 0].numpy(), start=1):
            ids[(mask > 0.5) & (ids == 0)] = i
        blended = ((rgb.astype(np.uint16) + colours[ids]) // 2).astype(np.uint8)
        Image.fromarray(blended).save(out / "overlay.jpg", quality=92)
        write_id_png(out / "ids.png", ids)

    return run


def compare(side: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure one size and print the table."""
    from timing import in_turns

    from seamseg.contrib.deploy.export import write_synthetic_image

    photo = folder / f"street{side}.jpg"
    write_synthetic_image(photo, (side, side * 767 // 512))
    first, *others = names = arguments.sides
    runs = {n: peer(side, photo, folder / n) if n == "maskrcnn" else ours(side, photo, folder / n, n) for n in names}
    times = in_turns(runs, arguments.rounds)
    table: dict[str, Any] = {"load": os.getloadavg()[0]}
    print(f"\n{side} x {side * 767 // 512}, load {table['load']:.1f}")
    for name, found in times.items():
        table[name] = {clock: statistics.median(found[clock]) for clock in ("wall", "cpu")}
        print(f"  {name:<10} wall {table[name]['wall']:7.3f} s   CPU {table[name]['cpu']:7.3f} s", flush=True)
    for name in others:
        for clock in ("wall", "cpu"):
            ratios = [b / a for a, b in zip(times[first][clock], times[name][clock], strict=True)]
            table[f"{name}/{first} {clock}"] = statistics.median(ratios)
        print(f"  {name} takes {table[f'{name}/{first} wall']:.2f} times the wall time of {first}, ", end="")
        print(f"{table[f'{name}/{first} cpu']:.2f} times its CPU time")
    return table


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs="*", default=SIDES, help=f"sides to time: {', '.join(SIDES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (default: %(default)s)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024], help="heights in pixels (default: both)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    if unknown := {side.partition("/")[0] for side in arguments.sides} - set(SIDES):
        parser.error(f"{unknown.pop()}: choose from {', '.join(SIDES)}")
    from seamseg.utils import process

    # as the command line does it, for all sides; docs/reference/performance.md
    process.apply_settings()
    import torch
    from timing import processor

    torch.set_num_threads(arguments.threads)
    facts: dict[str, Any] = {"torch": torch.__version__, "threads": arguments.threads, "cpu": processor()}
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    with tempfile.TemporaryDirectory(prefix="seamseg-bench-") as folder:
        tables = {side: compare(side, arguments, Path(folder)) for side in arguments.sizes}
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(facts | tables, indent=1))


if __name__ == "__main__":
    main()
