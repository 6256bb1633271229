"""Measure images per second of one process, plain, compiled or with CUDA graphs, and the time outside of the network.

    python benchmarks/throughput.py                                    # a GPU: 1024x2048 bf16, all variants
    python benchmarks/throughput.py --device cpu --size 512x767 --rounds 3 plain compile

`torchvision`: the peer, Mask R-CNN of torchvision with a semantic head (peer.py), at the same size and with 1000
proposals and 100 detections, too; it pastes its masks on the device and downloads two maps. It is left out where
torchvision is not installed.

Two figures a variant. `network`: decoded images in, predictions on the CPU out (`Predictor.raw`: upload, network,
download), in turns with the first variant, image by image. `predict`: JPEG files in, overlay and COCO panoptic files
out, by the code of `seamseg predict`, after a run that does not count; `outside` is the part of its wall time in which
the process was not in `Predictor.raw`: where it waits for decoders and writers. A variant that fails does not stop the
others; the exit code is then 1.

Weights are random; each image gets its own best 1000 proposals and 100 made-up detections of them, as in inference.py.
CPU seconds (all threads of this process) stand beside the wall's, since others may use the machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    import numpy as np
    import torch

    from seamseg.inference.predictor import Predictor

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "graphs": {"cuda_graphs": True},
    "compile": {"compile": True},
    "both": {"compile": True, "cuda_graphs": True},
}
"""What each is, as arguments of :class:`seamseg.inference.acceleration.Acceleration`."""
PEER = "torchvision"
WARM_UP = 3
"""Images before those that count: CUDA graphs are recorded with the second of a size."""


def busy(predictor: Predictor) -> None:
    """Patch a predictor with random weights to find 100 things on every image, among 1000 proposals."""
    import torch

    from seamseg.doctor.stages import RANDOM_DETECTIONS
    from seamseg.models.heads.rpn import ProposalGenerator
    from seamseg.models.panoptic import PanopticNet

    network: Any = predictor.network
    net = network.net
    assert isinstance(net, PanopticNet)
    options = net.options
    chosen, select = options.proposals, options.selector

    class Proposals(ProposalGenerator):
        def __call__(self, obj_logits: Any, bbx_logits: Any, *rest: Any, **given: Any) -> Any:
            return chosen(obj_logits, bbx_logits * 0.1, *rest, **given)

    class Selector:
        config = select.config

        def __call__(self, boxes: Any, scores: Any) -> Any:
            select(boxes, scores)
            rows = boxes[:RANDOM_DETECTIONS, 0]
            classes = torch.arange(rows.shape[0], device=rows.device) % predictor.metadata.num_thing
            return rows, classes, torch.linspace(0.99, 0.6, rows.shape[0], device=rows.device)

    network.net = net.with_options(proposals=Proposals(chosen.config), selector=Selector())


def make(name: str, arguments: argparse.Namespace, device: torch.device) -> Predictor:
    """Make the predictor of a variant."""
    from seamseg.doctor.stages import random_predictor
    from seamseg.inference.acceleration import Acceleration
    from seamseg.models.panoptic import PanopticNet

    predictor = random_predictor(device, min(arguments.size), arguments.precision, arguments.config)
    if name == PEER:
        from peer import peer_predictor

        return peer_predictor(predictor, arguments.size, arguments.precision, arguments.config)
    busy(predictor)
    acceleration = Acceleration(**VARIANTS[name])
    acceleration.check(device, False)
    network: Any = predictor.network
    assert isinstance(network.net, PanopticNet)
    network.net = acceleration.apply(network.net, device)
    return predictor


def network(name: str, predictors: dict[str, Predictor], image: np.ndarray, rounds: int) -> dict[str, float]:
    """Return the seconds of a variant from decoded image to prediction, in turns with the first variant."""
    first = next(iter(predictors))
    start = time.perf_counter()
    predictors[name].raw([image])
    began = time.perf_counter() - start
    for _ in range(WARM_UP - 1):
        predictors[name].raw([image])
    walls: dict[str, list[float]] = {first: [], name: []}
    cpus: dict[str, list[float]] = {first: [], name: []}
    for _ in range(rounds):
        for one in walls:
            wall, cpu = time.perf_counter(), time.process_time()
            predictors[one].raw([image])
            walls[one].append(time.perf_counter() - wall)
            cpus[one].append(time.process_time() - cpu)
    return {
        "first": began,
        "wall": statistics.median(walls[name]),
        "cpu": statistics.median(cpus[name]),
        "plain/this wall": statistics.median(a / b for a, b in zip(walls[first], walls[name])),
        "plain/this cpu": statistics.median(a / b for a, b in zip(cpus[first], cpus[name])),
    }


def files(predictor: Predictor, photos: Sequence[Path], out: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Return images per second from file to file, and the part of the time outside of the network."""
    from seamseg.predict.job import predict_all
    from seamseg.predict.manifest import header
    from seamseg.predict.sinks import FolderSink
    from seamseg.predict.sources.base import Source
    from seamseg.predict.writers import make_writers
    from seamseg.utils.distributed import World

    sources = [Source(path, path.stem, path.name) for path in photos]
    inside, see = 0.0, predictor.raw

    def raw(*given: Any) -> Any:
        nonlocal inside
        start = time.perf_counter()
        try:
            return see(*given)
        finally:
            inside += time.perf_counter() - start

    writers = make_writers(("overlay", "coco"), out, predictor.metadata)
    start = time.perf_counter()
    sink = FolderSink(out, writers, header("random", "0" * 64, {}))
    with mock.patch.object(predictor, "raw", raw):
        summary = predict_all(
            predictor, sources, sink, World(device=predictor.network.device), workers=arguments.workers
        )
    wall = time.perf_counter() - start
    assert summary.done == len(photos), summary
    return {"images/s": len(photos) / wall, "outside": 1 - inside / wall}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = (*VARIANTS, PEER)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"{', '.join(known)} (default: all that go)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    parser.add_argument(
        "--size", default="1024x2048", metavar="HxW", help="size of photo and input (default: %(default)s)"
    )
    parser.add_argument("--precision", default="bf16", help="default: %(default)s")
    parser.add_argument("--config", default="vistas_r50", help="configuration of the network (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="images of each variant (default: %(default)s)")
    parser.add_argument(
        "--photos", type=int, default=100, help="photos of `predict`; 0 leaves it out (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=8, help="processes that decode (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: its own choice)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    from seamseg.utils import process_settings

    # as the command line does it, for all sides; docs/reference/performance.md
    process_settings.apply()
    import torch

    from seamseg.data.images import open_image
    from seamseg.inference.images import network_input
    from seamseg.utils.distributed import choose_device
    from seamseg.utils.synthetic_image import write_synthetic_image

    device = choose_device(arguments.device)
    arguments.size = tuple(int(side) for side in arguments.size.split("x"))
    names = arguments.variants or [n for n, v in VARIANTS.items() if device.type == "cuda" or "cuda_graphs" not in v]
    if not arguments.variants and importlib.util.find_spec(PEER):
        names.insert(1, PEER)
    if unknown := set(names) - set(known):
        parser.error(f"no variant {', '.join(sorted(unknown))}: choose among {', '.join(known)}")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    gpu = f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else f", {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}{gpu}, {'x'.join(map(str, arguments.size))}, {arguments.precision}", flush=True)
    with tempfile.TemporaryDirectory(prefix="seamseg-bench-") as name:
        folder = Path(name)
        photos = [folder / f"street{i:04}.jpg" for i in range(max(arguments.photos, 1))]
        write_synthetic_image(photos[0], arguments.size)
        for other in photos[1:]:
            other.write_bytes(photos[0].read_bytes())
        found: dict[str, Any] = {"torch": torch.__version__, "device": gpu[2:], "size": arguments.size}
        found |= {"precision": arguments.precision, "variants": {}, "failed": {}}
        predictors: dict[str, Predictor] = {}
        for name in names:
            try:
                predictors[name] = make(name, arguments, device)
                image = network_input(open_image(photos[0]), predictors[name].input_size)
                row = network(name, predictors, image, arguments.rounds)
                found["variants"][name] = row
                print(
                    f"  {name:<8} network {1 / row['wall']:7.2f} images/s, {row['cpu']:6.3f} CPU s an image, "
                    f"first image {row['first']:.1f} s; {next(iter(predictors))} takes {row['plain/this wall']:.2f} "
                    f"times its wall time, {row['plain/this cpu']:.2f} times its CPU time",
                    flush=True,
                )
                if arguments.photos:
                    files(predictors[name], photos[: 2 * WARM_UP], folder / f"{name}-first", arguments)
                    row.update(files(predictors[name], photos, folder / name, arguments))
                    print(f"  {name:<8} predict {row['images/s']:7.2f} images/s, outside {row['outside']:.1%}")
            except Exception:
                found["failed"][name] = traceback.format_exc()
                predictors.pop(name, None)
                print(f"  {name:<8} failed\n{found['failed'][name]}", flush=True)
            found["load"] = os.getloadavg()[0]
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(found, indent=1))
    print(f"  load {found['load']:.1f}")
    return int(bool(found["failed"]))


if __name__ == "__main__":
    sys.exit(main())
