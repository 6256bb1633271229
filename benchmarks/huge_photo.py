"""Measure peak memory and time of huge photos, whole and in tiles, each in a fresh process.

    python benchmarks/huge_photo.py 8000x4000 12000x8400 40000x200 --tiles off 1024
    python benchmarks/huge_photo.py 12000x8400 --shortest-size 8400 --network small --tiles 2048
    python benchmarks/huge_photo.py 12000x8400 --device cuda --json huge.json

vistas_r50 with random weights; the best 100 detections of an image are kept regardless of their scores.
`--network small` is toy_city_r18, for the memory of the maps of the largest photos without waiting for hours.
The peak is VmHWM of the whole process, with torch, the weights and the decoded photo; `before` is the peak before the
prediction. On a GPU, `GPU GiB` is the peak of torch's allocator. The CPU allocator is set as by the command line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

CONFIGS = Path(__file__).parents[1] / "configs"
NETWORKS = {"vistas_r50": "vistas_r50", "small": "toy_city_r18"}
STUFF, THINGS = 28, 37


def peak_gib() -> float:
    """Return the peak memory of this process, in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def predict(
    size: tuple[int, int], tiles: str, overlap: int | None, shortest: int | None, network: str, device_name: str
) -> dict[str, Any]:
    """Predict a photo of `(width, height)` in this process; return peak memory, seconds and the number of tiles."""
    import numpy as np
    import torch
    from PIL import Image

    from seamseg.config import load_config
    from seamseg.data.transforms import Normalise
    from seamseg.formats.metadata import Metadata
    from seamseg.inference.images import input_size
    from seamseg.inference.network import TorchNetwork
    from seamseg.inference.options import Thresholds
    from seamseg.inference.predictor import Predictor
    from seamseg.inference.tiling.tiles import Tiling
    from seamseg.models.build import build_network
    from seamseg.models.heads.detections import DetectionSelector
    from seamseg.models.panoptic import PanopticNet

    torch.manual_seed(0)
    config = load_config(CONFIGS / f"{NETWORKS[network]}.ini")
    net = build_network(config, STUFF, THINGS)
    assert isinstance(net, PanopticNet)
    roi = replace(net.options.selector.config, score_threshold=0.0, max_predictions=100)
    net = net.with_options(selector=DetectionSelector(roi))
    count = STUFF + THINGS
    metadata = Metadata(STUFF, THINGS, list(map(str, range(count))), [(0, 0, 0)] * count, list(range(count)), [])
    tiling = Tiling(int(tiles) if tiles.isdecimal() else tiles, overlap)
    limits = input_size(config, shortest, None if shortest is None else max(*size, shortest))
    device = torch.device(device_name)
    network_of = TorchNetwork(net, Normalise(config.dataloader.rgb_mean, config.dataloader.rgb_std), device)
    predictor: Predictor[Any] = Predictor(network_of, metadata, limits, Thresholds(0.0, 0.5, 0), tiling)
    seen = mock.Mock(wraps=network_of.run)
    blotches = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    photo = Image.fromarray(blotches).resize(size, Image.Resampling.BICUBIC)
    before = peak_gib()
    start = time.perf_counter()
    with mock.patch.object(network_of, "run", seen):
        result = predictor.predict(photo)
    seconds = time.perf_counter() - start
    assert result.size == size[::-1]
    height, width = limits.of(size[::-1])
    return {
        "before": before,
        "peak": peak_gib(),
        "seconds": seconds,
        "gpu": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
        "views": seen.call_count,
        "network": f"{width}x{height}",
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=["8000x4000"], help="WIDTHxHEIGHT of photos (default: 8000x4000)")
    parser.add_argument("--tiles", nargs="+", default=["off", "1024"], help="auto, off or sides (default: off 1024)")
    parser.add_argument("--tile-overlap", type=int, help="overlap of the tiles in pixels (default: a quarter)")
    parser.add_argument(
        "--shortest-size", type=int, help="shortest side of the network's input, longest side unlimited"
    )
    parser.add_argument("--network", choices=NETWORKS, default="vistas_r50")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        from seamseg.utils import process_settings

        process_settings.apply()
        width, height = map(int, arguments.sizes[0].split("x"))
        options = (arguments.tile_overlap, arguments.shortest_size, arguments.network, arguments.device)
        print(json.dumps(predict((width, height), arguments.tiles[0], *options)))
        return

    print(f"{'photo':<14}{'input':<14}{'tiles':<8}{'views':>6}{'before GiB':>12}{'peak GiB':>10}", end="")
    print(f"{'GPU GiB':>9}{'seconds':>9}")
    rows = []
    for size in arguments.sizes:
        for tiles in arguments.tiles:
            command = [sys.executable, __file__, size, "--tiles", tiles, "--network", arguments.network]
            command += ["--device", arguments.device, "--child"]
            for option in ("tile_overlap", "shortest_size"):
                if (value := getattr(arguments, option)) is not None:
                    command += [f"--{option.replace('_', '-')}", str(value)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            row = {"photo": size, "tiles": tiles, **json.loads(done.stdout)}
            gpu = "-" if row["gpu"] is None else f"{row['gpu']:.2f}"
            rows.append(row)
            print(
                f"{size:<14}{row['network']:<14}{tiles:<8}{row['views']:>6}{row['before']:>12.2f}{row['peak']:>10.2f}"
                f"{gpu:>9}{row['seconds']:>9.1f}",
                flush=True,
            )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"device": arguments.device, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
