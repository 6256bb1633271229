"""Measure images per second of one process, plain, compiled or with CUDA graphs, and the time outside of the network.

    python benchmarks/throughput.py                                    # a GPU: 1024x2048 bf16, all variants
    python benchmarks/throughput.py --device cpu --size 512x767 --rounds 3 plain compile
    python benchmarks/throughput.py --folder PHOTOS --model runs/demo  # a CPU: how `predict` shares its cores
    python benchmarks/throughput.py --writers 1,2                      # a network that costs nothing: the writers

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

`--folder` runs `predict --format coco` with its defaults, in turns with the network alone on the same images, and with
one image at a time in the network, whose threads then share the cores with two decoders and two writers, or with two
writers (`--workers 0`). CPU seconds are those of the process and its decoders.

`--writers` counts images per second that so many threads draw and write, if decoded images and predictions are there
already; the efficiency is that of each thread relative to one. Amdahl's law then says what sixteen would reach.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
    from stages import RANDOM_DETECTIONS

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
    from stages import random_predictor

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
    from seamseg.predict.folder import OutputFolder
    from seamseg.predict.job import predict_all
    from seamseg.predict.manifest import header
    from seamseg.predict.source import Source
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
    outputs = OutputFolder(out, writers, header("random", "0" * 64, {}))
    with mock.patch.object(predictor, "raw", raw):
        summary = predict_all(
            predictor, sources, outputs, World(device=predictor.network.device), workers=arguments.workers
        )
    wall = time.perf_counter() - start
    assert summary.done == len(photos), summary
    return {"images/s": len(photos) / wall, "outside": 1 - inside / wall}


class ReadyDecoders:
    """Decodes each image once, and yields it under many names."""

    def __init__(self, share: Any, workers: int) -> None:
        self.share = share

    def read(self, skip: Any) -> Iterator[Any]:
        """See :class:`seamseg.predict.share.Decoders`."""
        first = next(self.share.decode(*item) for item in self.share.items())
        for source in self.share.mine:
            yield first._replace(source=source)

    def handle_worker_failure(self, error: BaseException) -> None:
        """See :class:`seamseg.predict.share.Decoders`."""


@contextmanager
def one_at_a_time() -> Iterator[tuple[int, None]]:
    """Stand in for :meth:`Predictor.photos_at_a_time`, as on a GPU."""
    yield 1, None


def used() -> tuple[float, float]:
    """Return the wall time, and the CPU seconds of this process and of its children that have ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(usage.ru_utime + usage.ru_stime for usage in spent)


def run_predict(predictor: Predictor, photos: Sequence[Path], formats: Sequence[str], workers: int | None) -> None:
    """Run `predict` into a folder that is removed; `workers` as of the command line."""
    from seamseg.predict.folder import OutputFolder
    from seamseg.predict.job import default_workers, predict_all
    from seamseg.predict.manifest import header
    from seamseg.predict.source import Source
    from seamseg.predict.writers import make_writers
    from seamseg.utils.distributed import World

    sources = [Source(path, f"{number:05}", path.name) for number, path in enumerate(photos)]
    world = World(device=predictor.network.device)
    with tempfile.TemporaryDirectory(prefix="seamseg-bench-") as name:
        out = Path(name)
        outputs = OutputFolder(out, make_writers(formats, out, predictor.metadata), header("benchmark", "0" * 64, {}))
        workers = default_workers(sources, world) if workers is None else workers
        summary = predict_all(predictor, sources, outputs, world, workers=workers)
    assert summary.done == len(photos), summary


def folder_sides(predictor: Predictor, photos: Sequence[Path], rounds: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds an image of each side, wall and CPU, and their ratios to those of the network."""
    from seamseg.inference.images import ImagePreparation
    from seamseg.utils import parallel

    decoded = [image.pixels for image in map(ImagePreparation(predictor.input_size), photos)]

    def alone() -> None:
        for pixels in decoded:
            predictor.raw([pixels])

    def shared(workers: int | None) -> None:
        with ExitStack() as stack:
            if workers is not None:
                stack.enter_context(mock.patch.object(predictor, "photos_at_a_time", one_at_a_time))
                stack.enter_context(mock.patch.object(parallel, "share_cores", lambda: parallel.CoreShares(workers, 2)))
            run_predict(predictor, photos, ("coco",), workers)

    sides: dict[str, Any] = {
        "network alone": alone,
        "defaults": lambda: shared(None),
        "one at a time, two decoders": lambda: shared(2),
        "one at a time, no decoder": lambda: shared(0),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            start = used()
            side()
            if number:  # the first round warms up
                times[name].append(tuple((b - a) * 1e3 / len(photos) for a, b in zip(start, used())))  # type: ignore[arg-type]
    found = {}
    for name, values in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*values))
        ratios = [
            [a / b for a, b in zip(first, own)] for first, own in zip(times["network alone"], values, strict=True)
        ]
        walls, cpus = (statistics.median(column) for column in zip(*ratios))
        found[name] = {"wall ms": wall, "cpu ms": cpu, "of the network, wall": walls, "of the network, cpu": cpus}
    return found


def writer_counts(predictor: Predictor, photo: Path, counts: Sequence[int], images: int, rounds: int) -> dict[str, Any]:
    """Return images per second, CPU milliseconds an image and efficiency of so many writers, in turns."""
    from seamseg.data.images import open_image
    from seamseg.inference.images import network_input
    from seamseg.utils import parallel

    (ready,) = predictor.raw([network_input(open_image(photo), predictor.input_size)])
    times: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(predictor, "photos_at_a_time", one_at_a_time))
        stack.enter_context(mock.patch.object(predictor, "raw", lambda pixels: [ready] * len(pixels)))
        stack.enter_context(mock.patch("seamseg.predict.job._decoders", lambda _, *given: ReadyDecoders(*given)))
        for number in range(rounds + 1):
            for count in counts:
                with mock.patch.object(parallel, "share_cores", lambda n=count: parallel.CoreShares(0, n)):
                    start = used()
                    run_predict(predictor, [photo] * images, ("coco", "overlay"), 0)
                if number:
                    times[count].append(tuple((b - a) / images for a, b in zip(start, used())))  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for count, values in times.items():
        wall, cpu = (statistics.median(column) for column in zip(*values))
        gain = statistics.median(one[0] / own[0] for one, own in zip(times[counts[0]], values))
        found[str(count)] = {"images/s": 1 / wall, "cpu ms": cpu * 1e3, "efficiency": gain * counts[0] / count}
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = (*VARIANTS, PEER)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"{', '.join(known)} (default: all that go)")
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
    parser.add_argument("--workers", type=int, default=8, help="processes that decode (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: its own choice)")
    parser.add_argument("--folder", help="folder of images, see above")
    parser.add_argument("--model", help="model for --folder")
    parser.add_argument("--writers", metavar="LIST", help="numbers of writers, see above")
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

    if arguments.folder or arguments.writers:
        return shares(arguments)
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


def shares(arguments: argparse.Namespace) -> int:
    """Measure how `predict` shares the cores of a CPU, and print."""
    import torch
    from timing import processor

    import seamseg
    from seamseg.utils.parallel import available_cores
    from seamseg.utils.synthetic_image import write_synthetic_image

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    found: dict[str, Any] = {"cpu": processor(), "cores": available_cores(), "torch": torch.__version__}
    print(f"{found['cpu']}, {found['cores']} cores, torch {torch.__version__}", flush=True)
    if arguments.folder:
        predictor = seamseg.load(arguments.model, "cpu", precision=arguments.precision)
        photos = sorted(path for path in Path(arguments.folder).iterdir() if path.is_file())[: arguments.photos]
        found["folder"] = folder_sides(predictor, photos, arguments.rounds)
        for name, row in found["folder"].items():
            print(
                f"  {name:<28}{1e3 / row['wall ms']:7.2f} images/s, {row['cpu ms']:7.2f} CPU ms an image; of the "
                f"network alone {row['of the network, wall']:.2f} (wall), {row['of the network, cpu']:.2f} (CPU)"
            )
    if arguments.writers:
        with tempfile.TemporaryDirectory(prefix="seamseg-bench-") as name:
            photo = Path(name, "street.jpg")
            arguments.size = tuple(int(side) for side in arguments.size.split("x"))
            write_synthetic_image(photo, arguments.size)
            counts = [int(count) for count in arguments.writers.split(",")]
            predictor = make("plain", arguments, torch.device("cpu"))
            found["writers"] = writer_counts(predictor, photo, counts, arguments.photos, arguments.rounds)
        for count, row in found["writers"].items():
            print(
                f"  {count:>2} writers: {row['images/s']:6.2f} images/s, {row['cpu ms']:6.1f} CPU ms an image, "
                f"efficiency {row['efficiency']:.2f}"
            )
        # Amdahl's law: what the threads cannot do at a time, mostly for the sake of the GIL
        last = found["writers"][str(counts[-1])]
        serial = max((1 / last["efficiency"] - 1) / (counts[-1] - 1), 0.0) if counts[-1] > 1 else 0.0
        found["estimate of 8 writers"] = 8e3 / (last["cpu ms"] * (1 + 7 * serial))
        print(f"  estimate for 8 writers on 16 cores: {found['estimate of 8 writers']:.0f} images/s")
    found["load"] = os.getloadavg()[0]
    print(f"  load {found['load']:.1f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
