"""Load test of `seamseg serve`: requests per second and latencies of 1, 4 and 16 clients; calls without a server.

    python benchmarks/serving.py                                       # a network of random weights
    python benchmarks/serving.py --model runs/city --size 1024x2048 --batch-size 1 4 --device cuda

`calls`: one image after the other in one thread, by the library: decode a JPEG, `predict`, encode the JSON.
`default`, `batch N`: a server without or with `--batch-size N` on a free port, and clients that send the same JPEG and
read the same JSON, each its next request when it has the answer to the last one. The server is in this process, and the
clients are threads of it, so they share its processors. The forms take turns, in every round all of them; figures are
medians over the rounds, and percentiles over all requests. `ratio` is the requests per second relative to the calls of
the same round, `cpu ms` the CPU time of server and clients for a request.

Random weights find 100 made-up things on every image, as in throughput.py.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seamseg.inference.predictor import Predictor

Latencies = list[float]


def make(arguments: argparse.Namespace) -> Predictor[Any]:
    """Load the model, or make one."""
    import torch
    from stages import random_predictor
    from throughput import busy

    import seamseg
    from seamseg.utils.distributed import choose_device

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.model:
        return seamseg.load(arguments.model, arguments.device, precision=arguments.precision)
    predictor = random_predictor(
        choose_device(arguments.device), min(arguments.size), arguments.precision, arguments.config
    )
    busy(predictor)
    return predictor


def photo(size: tuple[int, int]) -> bytes:
    """Encode an image of `(height, width)` as JPEG."""
    from PIL import Image

    from seamseg.utils.synthetic_image import synthetic_image

    buffer = BytesIO()
    Image.fromarray(synthetic_image(size)).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def calls(predictor: Predictor[Any], data: bytes, requests: int) -> tuple[float, Latencies]:
    """Predict one image after the other; return requests per second, and the seconds of each."""
    from seamseg.data.images import open_image
    from seamseg.serving.encoding import ResultEncoder

    encoder = ResultEncoder(predictor)

    def call() -> float:
        start = time.perf_counter()
        json.dumps(encoder.segments(predictor.predict(open_image("photo", data), keep_photo=False)))
        return time.perf_counter() - start

    call()
    begin = time.perf_counter()
    latencies = [call() for _ in range(requests)]
    return requests / (time.perf_counter() - begin), latencies


@contextmanager
def server(
    predictor: Predictor[Any], batch_size: int | None
) -> Iterator[tuple[int, Callable[[], tuple[float, float]]]]:
    """Serve a predictor; yield the port, and a function that returns the images and the batches so far."""
    from seamseg.serving.app import ServeOptions, Service, build_app
    from seamseg.serving.server import AppServer, accepted_hosts, bind

    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    service = Service(predictor, "benchmark", ServeOptions(batch_size, timeout=600))
    started = threading.Event()
    running = AppServer(build_app(service, accepted_hosts(bound)), started.set, 60)
    thread = threading.Thread(target=running.run_on, args=(bound,))
    thread.start()
    started.wait()

    def batches() -> tuple[float, float]:
        value = service.metrics.registry.get_sample_value
        return value("seamseg_batch_size_sum") or 0.0, value("seamseg_batch_size_count") or 0.0

    try:
        yield port, batches
    finally:
        running.stop()
        thread.join()
        service.close()


def clients(port: int, data: bytes, requests: int, count: int) -> tuple[float, Latencies, set[bytes]]:
    """Send requests from `count` threads; return requests per second, the seconds of each, and their answers."""
    latencies: Latencies = []
    answers: set[bytes] = set()
    remaining = iter(range(requests))
    lock = threading.Lock()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while True:
            with lock:
                if next(remaining, None) is None:
                    break
            start = time.perf_counter()
            connection.request("POST", "/predict", data)
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                raise SystemExit(f"status {response.status}: {answer.decode()}")
            latencies.append(time.perf_counter() - start)
            answers.add(answer)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(count)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = requests / (time.perf_counter() - begin)
    if len(latencies) != requests:
        raise SystemExit(f"{requests - len(latencies)} of {requests} requests failed")
    return rate, latencies, answers


def percentile(values: Latencies, part: float) -> float:
    """Return the smallest value that is not below this part of all."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all forms in turns, and return a row for each."""
    from seamseg.utils.parallel import call_in_thread

    # threads that end: see `call_in_thread`
    predictor, data = call_in_thread(lambda: make(arguments)), photo(arguments.size)
    forms: dict[tuple[str, int], list[tuple[float, Latencies]]] = {("calls", 1): []}
    mean_batches: dict[tuple[str, int], list[float]] = {}
    cpu_times: dict[tuple[str, int], list[float]] = {}
    answers: set[bytes] = set()
    for _ in range(arguments.rounds):
        predictor.map_only = False  # the service changes it
        start = time.process_time()
        forms["calls", 1].append(call_in_thread(lambda: calls(predictor, data, arguments.requests)))
        cpu_times.setdefault(("calls", 1), []).append(1e3 * (time.process_time() - start) / (arguments.requests + 1))
        for batch_size in arguments.batch_size:
            with server(predictor, batch_size or None) as (port, batches):
                clients(port, data, batch_size or 1, batch_size or 1)
                for count in arguments.clients:
                    form = f"batch {batch_size}" if batch_size else "default", count
                    before, start, requests = batches(), time.process_time(), max(arguments.requests, 2 * count)
                    rate, latencies, found = clients(port, data, requests, count)
                    cpu_times.setdefault(form, []).append(1e3 * (time.process_time() - start) / requests)
                    photos, number = (now - then for now, then in zip(batches(), before))
                    forms.setdefault(form, []).append((rate, latencies))
                    mean_batches.setdefault(form, []).append(photos / number)
                    answers |= found
    print(f"{len(answers)} different answers")
    rows = []
    for form, runs in forms.items():
        latencies = [seconds for _, found in runs for seconds in found]
        rows.append(
            {
                "form": form[0],
                "clients": form[1],
                "requests/s": statistics.median(rate for rate, _ in runs),
                "ratio": statistics.median(rate / base for (rate, _), (base, _) in zip(runs, forms["calls", 1])),
                "p50 ms": 1e3 * percentile(latencies, 0.5),
                "p99 ms": 1e3 * percentile(latencies, 0.99),
                "mean batch": statistics.median(mean_batches.get(form, [1.0])),
                "cpu ms": statistics.median(cpu_times[form]),
            }
        )
    return rows


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="as of `seamseg serve` (default: random weights)")
    parser.add_argument(
        "--config", default="vistas_r50", help="configuration of the random weights (default: %(default)s)"
    )
    parser.add_argument("--size", default="512x767", help="HxW of the image (default: %(default)s)")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16], help="(default: 1 4 16)")
    parser.add_argument(
        "--batch-size",
        type=int,
        nargs="+",
        default=[1, 4],
        help="of the servers; 0: what `seamseg serve` uses without the option (default: 1 4)",
    )
    parser.add_argument(
        "--requests", type=int, default=32, help="requests of each form and round (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--precision", default="fp32", help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: its own choice)")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    height, width = arguments.size.split("x")
    arguments.size = int(height), int(width)
    from seamseg.utils import process_settings

    process_settings.apply()
    rows = measure(arguments)
    print(f"{height} x {width}, {arguments.device} {arguments.precision}, load {os.getloadavg()[0]:.1f}")
    columns = f"{'requests/s':>12}{'ratio':>8}{'p50 ms':>10}{'p99 ms':>10}{'mean batch':>12}{'cpu ms':>8}"
    print(f"{'form':<10}{'clients':>8}{columns}")
    for row in rows:
        numbers = f"{row['requests/s']:>12.2f}{row['ratio']:>8.2f}{row['p50 ms']:>10.1f}{row['p99 ms']:>10.1f}"
        print(f"{row['form']:<10}{row['clients']:>8}{numbers}{row['mean batch']:>12.2f}{row['cpu ms']:>8.1f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
