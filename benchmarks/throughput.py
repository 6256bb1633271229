"""Measure images per second of one process, plain, compiled or with CUDA graphs, and how busy the GPU is.

    python benchmarks/throughput.py                                    # a GPU: 1024x2048 bf16, all variants
    python benchmarks/throughput.py --device cpu --size 512x767 --rounds 3 plain compile
    python benchmarks/throughput.py --device cpu --stand-in 8          # the rest of `predict`, without a GPU

Two figures a variant. `network`: decoded images in, predictions on the CPU out (`Predictor.raw`: upload, network,
download), in turns with the first variant, image by image. `predict`: JPEG files in, overlay and COCO panoptic files
out, by the code of `seamseg predict`, after a run that does not count; with `--profile` also how busy the GPU is, in a
run of its own. A variant that fails does not stop the others; the exit code is then 1. With `--stand-in` a thread that
sleeps is the GPU: images per second of `predict`, and the CPU time of its stages.

Weights are random; each image gets its own best 1000 proposals and 100 made-up detections of them, as in inference.py.
CPU seconds (all threads of this process) stand beside the wall's, since others may use the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

    from seamseg.inference.predictor import Predictor

VARIANTS = {"plain": (), "graphs": ("graphs",), "compile": ("compile",), "both": ("compile", "graphs")}
"""What each variant accelerates the network by."""


def make(name: str, arguments: argparse.Namespace, device: torch.device) -> Predictor:
    """Make the predictor of a variant."""
    from networks import busy, random_predictor

    from seamseg.inference.acceleration import CompiledDense, CudaGraphCache

    predictor = random_predictor(device, min(arguments.size), arguments.precision, arguments.config)
    network: Any = predictor.network
    net = busy(network.net)
    network.net = net.with_options(run_dense=CompiledDense(net, device)) if "compile" in VARIANTS[name] else net
    if "graphs" in VARIANTS[name]:
        network.graphs = CudaGraphCache(network.compute)
    return predictor


def network(name: str, predictors: dict[str, Predictor], image: np.ndarray, rounds: int) -> dict[str, float]:
    """Return the seconds of a variant from decoded image to prediction, in turns with the first variant."""
    from timing import in_turns

    first, size = next(iter(predictors)), predictors[name].batch_size
    start = time.perf_counter()
    predictors[name].raw([image] * size)
    began = time.perf_counter() - start
    # the first turn does not count: a CUDA graph is recorded with the second batch of a size
    turns = {one: partial(predictors[one].raw, [image] * size) for one in (first, name)}
    times = in_turns(turns, rounds)

    return {
        "first": began,
        "wall": statistics.median(times[name]["wall"]) / size,
        "cpu": statistics.median(times[name]["cpu"]) / size,
        "plain/this wall": statistics.median(a / b for a, b in zip(times[first]["wall"], times[name]["wall"])),
    }


def stages(predictor: Any, image: np.ndarray, milliseconds: float, run: Callable[[], float], count: int) -> None:
    """Print images per second with a thread that sleeps in place of the network, and the CPU time of each stage."""
    from seamseg.predicting.job import ImageReader, _PredictionLoop

    (output,), gpu, spent = predictor.raw([image]), ThreadPoolExecutor(1), dict[str, list[float]]()

    def start(images: Sequence[np.ndarray], least_score: float = 0.0) -> list[Any]:
        done = gpu.submit(time.sleep, len(images) * milliseconds / 1e3)
        return [lambda: done.result() or output] * len(images)

    def timed(stage: str, call: Callable[..., Any]) -> Any:
        def measured(*given: Any) -> Any:
            began = time.thread_time()
            result = call(*given)
            spent.setdefault(stage, []).append(time.thread_time() - began)
            return result

        return measured

    predictor.network.start, predictor.batch_size = start, 4
    ImageReader._decode = timed("decoders", ImageReader._decode)  # type: ignore[method-assign]
    _PredictionLoop._write = timed("writers", _PredictionLoop._write)  # type: ignore[method-assign]
    rate = timed("host of the network", run)()
    said = ", ".join(f"{stage} {sum(found) / count * 1e3:.1f}" for stage, found in spent.items())
    print(f"  {rate:.1f} images/s, the network alone {1e3 / milliseconds:.1f}; CPU ms an image: {said}")


def files(predictor: Predictor, photos: Sequence[Path], out: Path, workers: int) -> float:
    """Return images per second from file to file."""
    from seamseg.predicting.folder import OutputFolder, make_writers
    from seamseg.predicting.job import predict_all
    from seamseg.predicting.source import Source
    from seamseg.utils.distributed import World

    sources = [Source(path, path.stem, path.name) for path in photos]
    writers = make_writers(("overlay", "coco"), out, predictor.metadata)
    start = time.perf_counter()
    outputs = OutputFolder(out, writers, {"settings": {}})
    summary = predict_all(predictor, sources, outputs, World(device=predictor.network.device), workers=workers)
    assert summary.done == len(photos), summary
    return len(photos) / (time.perf_counter() - start)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"{', '.join(VARIANTS)} (default: all that go)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    parser.add_argument(
        "--size", default="1024x2048", metavar="HxW", help="size of image and input (default: %(default)s)"
    )
    parser.add_argument("--precision", default="bf16", help="default: %(default)s")
    parser.add_argument("--config", default="vistas_r50", help="configuration of the network (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="images of each variant (default: %(default)s)")
    parser.add_argument(
        "--photos", type=int, default=100, help="images of `predict`; 0 leaves it out (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=8, help="threads that decode (default: %(default)s)")
    parser.add_argument("--profile", action="store_true", help="also list the kernels, and how busy they keep the GPU")
    parser.add_argument(
        "--stand-in", type=float, metavar="MS", help="measure a network that sleeps for each image only"
    )
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    from seamseg.utils import process

    # as the command line does it, for all sides; docs/reference/performance.md
    process.apply_settings()
    import torch
    from timing import profiled

    from seamseg.contrib.deploy.export import write_synthetic_image
    from seamseg.inference.images import network_input
    from seamseg.maps.images import open_image
    from seamseg.utils.distributed import choose_device

    # there is one size: static shapes compile sooner
    torch._dynamo.maybe_mark_dynamic = lambda *_: None
    device = choose_device(arguments.device)
    arguments.size = tuple(int(side) for side in arguments.size.split("x"))
    names = arguments.variants or [n for n, v in VARIANTS.items() if device.type == "cuda" or "graphs" not in v]
    if unknown := set(names) - set(VARIANTS):
        parser.error(f"no variant {', '.join(sorted(unknown))}: choose among {', '.join(VARIANTS)}")
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
        if arguments.stand_in:
            predictor = make("plain", arguments, device)
            image = network_input(open_image(photos[0]), predictor.input_size)
            run = partial(files, predictor, photos, folder / "out", arguments.workers)
            stages(predictor, image, arguments.stand_in, run, len(photos))
            return 0
        for name in names:
            try:
                predictors[name] = make(name, arguments, device)
                image = network_input(open_image(photos[0]), predictors[name].input_size)
                row: dict[str, Any] = network(name, predictors, image, arguments.rounds)
                found["variants"][name] = row
                print(
                    f"  {name:<8} network {1 / row['wall']:7.2f} images/s, {row['cpu']:6.3f} CPU s an image, "
                    f"first image {row['first']:.1f} s; {names[0]} takes {row['plain/this wall']:.2f} times its time",
                    flush=True,
                )
                if arguments.photos:
                    run = partial(files, predictors[name], workers=arguments.workers)
                    run(photos[:12], folder / f"{name}-first")
                    row["images/s"] = run(photos, folder / name)
                    print(f"  {name:<8} predict {row['images/s']:7.2f} images/s", flush=True)
                    if arguments.profile:
                        row["predict"] = profiled(partial(run, photos, folder / f"{name}-profiled"), device, 1)
                if arguments.profile:
                    row["network"] = profiled(
                        partial(predictors[name].raw, [image] * predictors[name].batch_size), device
                    )
            except Exception:
                found["failed"][name] = traceback.format_exc()
                predictors.pop(name, None)
                print(f"  {name:<8} failed\n{found['failed'][name]}", flush=True)
            if arguments.json:
                Path(arguments.json).write_text(json.dumps(found, indent=1))
    return int(bool(found["failed"]))


if __name__ == "__main__":
    sys.exit(main())
