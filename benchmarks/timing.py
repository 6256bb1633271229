"""Compare the time of two implementations, which take turns; print medians and ratios."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """Two implementations of the same work, whose results can be compared unless they are None."""

    name: str
    peer: str
    ours: Callable[[], object]
    theirs: Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One line of the table: medians in milliseconds; `ratio` is the time of the peer over ours."""

    case: str
    peer: str
    ours_ms: float
    peer_ms: float
    ratio: float
    difference: float | None


def measure(case: Case, rounds: int) -> Row:
    """Run both sides in turns after a warm-up round."""
    gap = difference(case.ours(), case.theirs())
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, record in zip((case.ours, case.theirs), times):
            synchronize()
            start = time.perf_counter()
            function()
            synchronize()
            record.append((time.perf_counter() - start) * 1e3)
    mine, peers = (statistics.median(t) for t in times)
    return Row(case.name, case.peer, mine, peers, peers / mine, gap)


def in_turns(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of the wall and of the CPU (all threads) of each run, in turns, after one to warm up."""
    found: dict[str, dict[str, list[float]]] = {name: {"wall": [], "cpu": []} for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            if number:
                found[name]["wall"].append(time.perf_counter() - wall)
                found[name]["cpu"].append(time.process_time() - cpu)
    return found


def profiled(run: Callable[[], object], device: torch.device, rounds: int = 3) -> dict[str, Any]:
    """Profile a call; print and return the part of the time in which the GPU works, and its kernels.

    `kernels` are (name, launches, milliseconds) of one call, longest first. On a CPU they are operators, and `busy` is
    None.
    """
    from torch.profiler import ProfilerActivity, profile

    cuda = device.type == "cuda"
    synchronize()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        start = time.perf_counter()
        for _ in range(rounds):
            run()
        synchronize()
        wall = time.perf_counter() - start
    rows: dict[str, list[float]] = {}
    busy, until = 0.0, 0.0
    kind = torch.autograd.DeviceType.CUDA if cuda else torch.autograd.DeviceType.CPU
    events = [event for event in profiler.events() if event.device_type == kind]
    for event in sorted(events, key=lambda event: event.time_range.start):
        span = event.time_range
        # kernels of several streams overlap
        busy += max(0.0, span.end - max(until, span.start))
        until = max(until, span.end)
        row = rows.setdefault(event.name, [0, 0.0])
        row[0] += 1
        row[1] += (span.elapsed_us() if cuda else event.self_cpu_time_total) / 1e3
    longest = sorted(rows.items(), key=lambda row: -row[1][1])
    kernels = [(name[:120], count / rounds, round(total / rounds, 4)) for name, (count, total) in longest[:60]]
    share = busy / (wall * 1e6) if cuda else None
    launches = sum(count for count, _ in rows.values()) / rounds
    print(f"  {launches:.0f} launches a call" + ("" if share is None else f", the GPU works {share:.0%} of the time"))
    for name, count, total in kernels[:15]:
        print(f"  {total:9.3f} ms {count:6.0f} x {name[:90]}")
    return {"profiled_ms": wall / rounds * 1e3, "busy": share, "launches": launches, "kernels": kernels}


def processor() -> str:
    """Return the name of the CPU, its best instruction set, and that which oneDNN is limited to, if any."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    best = next((flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if flag in flags), None)
    name = f"{name}, {best}" if best else name
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    return f"{name}, ONEDNN_MAX_CPU_ISA={limit}" if limit else name


def synchronize() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def difference(a: object, b: object) -> float | None:
    """Return the largest difference relative to the range, for integers the part that differs; None without results."""
    if a is None or b is None:
        return None
    x, y = (torch.as_tensor(t).detach().cpu() for t in (a, b))
    if x.shape != y.shape:
        return float("inf")
    if not x.numel():
        return 0.0
    if not x.is_floating_point():
        return float((x != y).double().mean())
    return float((x.double() - y.double()).abs().max() / y.double().abs().max())


def options(description: str | None) -> argparse.ArgumentParser:
    """Make a parser with the common options of the scripts."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only the cases that contain one of these words")
    parser.add_argument("--rounds", type=int, default=7, help="times that each side runs (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: torch's own choice)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument("--json", help="also write the numbers to this file")
    return parser


def report(cases: Iterable[tuple[str, Callable[[], Case]]], arguments: argparse.Namespace) -> list[Row]:
    """Make, measure and print the requested cases, one after the other."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {arguments.device}, {processor()}\n")
    print(f"{'case':<50}{'ours ms':>10}  {'peer':<34}{'peer ms':>10}{'ratio':>8}{'difference':>12}")
    rows = []
    for name, make in cases:
        if arguments.names and not any(word in name for word in arguments.names):
            continue
        row = measure(make(), arguments.rounds)
        gap = "" if row.difference is None else f"{row.difference:.1e}"
        print(
            f"{row.case:<50}{row.ours_ms:>10.2f}  {row.peer:<34}{row.peer_ms:>10.2f}{row.ratio:>8.2f}{gap:>12}",
            flush=True,
        )
        rows.append(row)
    if arguments.json:
        summary = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "device": arguments.device,
            "cpu": processor(),
            "load": os.getloadavg()[0],
            "rounds": arguments.rounds,
        }
        with open(arguments.json, "w") as file:
            json.dump({**summary, "rows": [asdict(row) for row in rows]}, file, indent=1)
    return rows


def boxes_of_scene(
    count: int, generator: torch.Generator, side: float, height: int = 1024, width: int = 2048
) -> Tensor:
    """Make boxes inside the image with a wide range of sizes around `side`: `count x 4`."""
    centre = torch.rand(count, 2, generator=generator) * torch.tensor([height, width])
    half = torch.exp(torch.randn(count, 2, generator=generator) * 0.7) * side / 2
    boxes = torch.cat((centre - half, centre + half), 1)
    return torch.stack([boxes[:, i].clamp(0, (height, width)[i % 2]) for i in range(4)], 1)
