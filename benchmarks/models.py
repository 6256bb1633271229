"""Time and peak memory of the networks of README's table on one image of 1024x2048, without a GPU.

    python benchmarks/models.py [NETWORK ...] [--json FILE]

Each network has random weights and runs in a process of its own, vistas_r50 at the size of the image and the others
at their default size.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import in_turns, processor

SIZE = (1024, 2048)


def seamless(name: str, side: int | None, folder: Path) -> Any:
    """Build a network of ours, for images of `side` rows; None for its own size."""
    from networks import random_predictor

    return random_predictor(torch.device("cpu"), side, config=name)


def detector(folder: Path) -> Any:
    """Build the detector of torchvision."""
    from torchvision.models.detection import maskrcnn_resnet50_fpn_v2

    import seamseg

    net = maskrcnn_resnet50_fpn_v2(weights=None, weights_backbone=None, num_classes=91)
    torch.save(net.state_dict(), folder / "maskrcnn.pth")
    return seamseg.load(f"torchvision:maskrcnn_resnet50_fpn_v2?weights={folder / 'maskrcnn.pth'}", device="cpu")


SIDES: dict[str, Callable[[Path], Any]] = {
    "toy_city_r18": partial(seamless, "toy_city_r18", None),
    "vistas_r50": partial(seamless, "vistas_r50", SIZE[0]),
    "vistas_wrn38": partial(seamless, "vistas_wrn38", SIZE[0]),
    "maskrcnn_resnet50_fpn_v2": detector,
}


def measure(side: str, folder: Path) -> dict[str, float]:
    """Predict with one network; return the peak memory since it was loaded, and the median time of three images."""
    model = SIDES[side](folder)
    # what building it took does not count
    Path("/proc/self/clear_refs").write_text("5")
    image = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    seconds = in_turns({side: partial(model.predict, image)}, rounds=3)[side]["wall"]
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return {"peak GB": int(peak[1]) / 1e6, "s": statistics.median(seconds)}


def main() -> None:
    """Measure networks, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs="*", choices=[*SIDES, []], help="networks (default: all)")
    parser.add_argument("--side", choices=SIDES, help="measure one in this process, and print it as JSON")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.side is not None:
            print(json.dumps(measure(arguments.side, Path(folder))))
            return
    rows = {}
    for side in arguments.sides or SIDES:
        command = [sys.executable, __file__, "--side", side]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows[side] = json.loads(done.stdout.splitlines()[-1])
        print(f"{side:<26} {rows[side]['s']:.2f} s, peak {rows[side]['peak GB']:.2f} GB", flush=True)
    if arguments.json is not None:
        about = {"torch": torch.__version__, "cpu": processor()}
        arguments.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
