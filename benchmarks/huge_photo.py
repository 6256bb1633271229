"""Measure peak memory and time of huge images, whole and in tiles, each in a fresh process.

    python benchmarks/huge_photo.py 8000x4000 12000x8400 40000x200 --tiles off 1024
    python benchmarks/huge_photo.py 12000x8400 --shortest-size 8400 --network small --tiles 2048
    python benchmarks/huge_photo.py 12000x8400 --device cuda --json huge.json
    python benchmarks/huge_photo.py 12000x8400 --network small --tiles off --formats coco overlay --against REV

vistas_r50 with random weights; the best 100 detections of an image are kept regardless of their scores.
`--network small` is toy_city_r18, for the memory of the maps of the largest images without waiting for hours.
The peak is VmHWM of the whole process, with torch, the weights and the decoded image; `before` is the peak before the
prediction. With --formats the image is a JPEG, and the files of these formats are written as by `seamseg predict`; with
--against REV another revision does the same in turns, with the compiled functions of this one. On a GPU, `GPU GiB` is
the peak of torch's allocator. The CPU allocator is set as by the command line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from startup import check_out

CONFIGS = Path(__file__).parents[1] / "configs"
NETWORKS = {"vistas_r50": "vistas_r50", "small": "toy_city_r18"}
STUFF, THINGS = 28, 37


def peak_gib() -> float:
    """Return the peak memory of this process, in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def predictor_of(size: tuple[int, int], arguments: argparse.Namespace) -> Any:
    """Make a predictor of random weights for an image of `(width, height)`."""
    import torch

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
    config = load_config(CONFIGS / f"{NETWORKS[arguments.network]}.ini")
    net = build_network(config, STUFF, THINGS)
    assert isinstance(net, PanopticNet)
    roi = replace(net.options.selector.config, score_threshold=0.0, max_predictions=100)
    net = net.with_options(selector=DetectionSelector(roi))
    count, (tiles,), shortest = STUFF + THINGS, arguments.tiles, arguments.shortest_size
    colors = [(37 * k % 256, 91 * k % 256, 53 * k % 256) for k in range(count)]
    metadata = Metadata(STUFF, THINGS, list(map(str, range(count))), colors, list(range(count)), [])
    tiling = Tiling(int(tiles) if tiles.isdecimal() else tiles, arguments.tile_overlap)
    limits = input_size(config, shortest, None if shortest is None else max(*size, shortest))
    device = torch.device(arguments.device)
    network = TorchNetwork(net, Normalise(config.dataloader.rgb_mean, config.dataloader.rgb_std), device)
    return Predictor(network, metadata, limits, Thresholds(0.0, 0.5, 0), tiling)


def size_of(words: str) -> tuple[int, int]:
    """Return `(width, height)` of WIDTHxHEIGHT."""
    width, height = map(int, words.split("x"))
    return width, height


def photo_of(size: tuple[int, int]) -> Any:
    """Make an image of `(width, height)`."""
    import numpy as np
    from PIL import Image

    blotches = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    return Image.fromarray(blotches).resize(size, Image.Resampling.BICUBIC)


def write(predictor: Any, photo: Path, out: Path, formats: str) -> None:
    """Write the files of an image as `seamseg predict` does."""
    from seamseg.predict.folder import OutputFolder
    from seamseg.predict.job import predict_all
    from seamseg.predict.manifest import header
    from seamseg.predict.source import Source
    from seamseg.predict.writers import make_writers
    from seamseg.utils.distributed import World

    writers = make_writers(formats.split(","), out, predictor.metadata)
    outputs = OutputFolder(out, writers, header("random weights", "", {}))
    assert predict_all(predictor, [Source(photo, photo.stem, photo.name)], outputs, World()).done == 1


def measure(size: tuple[int, int], arguments: argparse.Namespace) -> dict[str, Any]:
    """Predict an image of `(width, height)` in this process; return peak memory, seconds and the number of tiles."""
    import torch

    predictor = predictor_of(size, arguments)
    seen = mock.Mock(wraps=predictor.network.run)
    photo = None if arguments.photo else photo_of(size)
    before = peak_gib()
    start, cpu = time.perf_counter(), time.process_time()
    with mock.patch.object(predictor.network, "run", seen):
        if photo is None:
            write(predictor, arguments.photo, arguments.photo.with_name("out"), arguments.formats[0])
        else:
            assert predictor.predict(photo).size == size[::-1]
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    height, width = predictor.input_size.of(size[::-1])
    return {
        "before": before,
        "peak": peak_gib(),
        "seconds": seconds,
        "cpu": cpu,
        "gpu": torch.cuda.max_memory_allocated() / 2**30 if arguments.device == "cuda" else None,
        "views": seen.call_count,
        "network": f"{width}x{height}",
    }


def in_process(size: str, tiles: str, formats: str, arguments: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Measure in a new process, with the package in a folder."""
    command = [sys.executable, __file__, size, "--tiles", tiles, "--network", arguments.network]
    command += ["--device", arguments.device, "--child"]
    for option in ("tile_overlap", "shortest_size"):
        if (value := getattr(arguments, option)) is not None:
            command += [f"--{option.replace('_', '-')}", str(value)]
    with tempfile.TemporaryDirectory(prefix="huge-photo-") as folder:
        if formats != "-":
            photo = Path(folder) / "photo.jpg"
            photo_of(size_of(size)).save(photo, quality=90)
            command += ["--formats", formats, "--photo", str(photo)]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=["8000x4000"], help="WIDTHxHEIGHT of images (default: 8000x4000)")
    parser.add_argument("--tiles", nargs="+", default=["off", "1024"], help="auto, off or sides (default: off 1024)")
    parser.add_argument("--tile-overlap", type=int, help="overlap of the tiles in pixels (default: a quarter)")
    parser.add_argument(
        "--shortest-size", type=int, help="shortest side of the network's input, longest side unlimited"
    )
    parser.add_argument("--network", choices=NETWORKS, default="vistas_r50")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--formats", nargs="+", default=["-"], help="formats to write, each separated by commas")
    parser.add_argument("--against", metavar="REV", help="git revision to compare with")
    parser.add_argument("--json", help="also write the numbers to this file")
    parser.add_argument("--photo", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        from seamseg.utils import process_settings

        process_settings.apply()
        print(json.dumps(measure(size_of(arguments.sizes[0]), arguments)))
        return

    print(f"{'photo':<14}{'input':<14}{'tiles':<8}{'formats':<16}{'revision':<10}{'views':>6}", end="")
    print(f"{'before GiB':>12}{'peak GiB':>10}{'GPU GiB':>9}{'seconds':>9}{'CPU s':>8}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sides = {"now": Path(__file__).parents[1]}
        if arguments.against:
            sides = {arguments.against: check_out(arguments.against, Path(folder)), **sides}
        for size, tiles, formats in itertools.product(arguments.sizes, arguments.tiles, arguments.formats):
            for side, root in sides.items():
                facts = in_process(size, tiles, formats, arguments, root)
                row = {"photo": size, "tiles": tiles, "formats": formats, "revision": side, **facts}
                gpu = "-" if row["gpu"] is None else f"{row['gpu']:.2f}"
                rows.append(row)
                print(
                    f"{size:<14}{row['network']:<14}{tiles:<8}{formats:<16}{side[:8]:<10}{row['views']:>6}"
                    f"{row['before']:>12.2f}{row['peak']:>10.2f}{gpu:>9}{row['seconds']:>9.1f}{row['cpu']:>8.1f}",
                    flush=True,
                )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"device": arguments.device, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
