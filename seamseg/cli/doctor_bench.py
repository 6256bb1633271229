"""`seamseg doctor --bench`: how long each stage of a prediction takes here, and what would make it shorter."""

from __future__ import annotations

import json
import os
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

from seamseg.cli import process_settings
from seamseg.utils.errors import InputError
from seamseg.utils.parallel import available_cores

CONVOLUTIONS = ("body", "FPN", "RPN head", "mask", "semantic")


def bench(model: str | None, size: str, rounds: int, device: str, precision: str, as_json: bool) -> int:
    """Measure and print.

    Parameters
    ----------
    model : as `seamseg predict` takes it; None for random weights
    size : of the picture and of the network's input, `HxW` in pixels
    rounds : runs, after one that does not count; medians are printed
    device, precision : as for `seamseg predict`
    as_json : print one JSON object instead of a table

    Raises
    ------
    InputError
        if the size, the rounds or the model are wrong
    """
    height, width = _size(size)
    if rounds < 1:
        raise InputError(f"--rounds must be at least 1, not {rounds}")
    import torch

    from seamseg.inference.predictor import load_predictor
    from seamseg.predict.profiling import STAGES, StageProfile, random_predictor, write_picture
    from seamseg.utils.distributed import choose_device

    chosen, shortest = choose_device(device), min(height, width)
    if model is None:
        predictor = random_predictor(chosen, shortest, precision)
    else:
        predictor = load_predictor(model, chosen, shortest_size=shortest, precision=precision)
    with tempfile.TemporaryDirectory(prefix="seamseg-bench-") as folder:
        photo = Path(folder, "street.jpg")
        write_picture(photo, (height, width))
        profile = StageProfile(predictor, photo, Path(folder, "out"), made_up=model is None)
        profile.run()
        runs, loads = [], []
        for _ in range(rounds):
            runs.append(profile.run())
            loads.append(os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0)
    medians = {stage: statistics.median(run[stage] for run in runs) for stage in STAGES}
    total = statistics.median(sum(run.values()) for run in runs)
    report: dict[str, Any] = {
        "model": model or "vistas_r50 with random weights",
        "size": [height, width],
        "device": str(chosen),
        "precision": precision,
        "threads": torch.get_num_threads(),
        "load": round(statistics.median(loads), 2),
        "rounds": rounds,
        "counts": profile.counts,
        "stages_ms": {stage: round(value * 1e3, 2) for stage, value in medians.items()},
        "total_ms": round(total * 1e3, 2),
        "hints": hints(medians, chosen.type, precision, statistics.median(loads)),
    }
    print(json.dumps(report, indent=1)) if as_json else _print(report)
    return 0


def hints(stages: dict[str, float], device: str, precision: str, load: float) -> list[str]:
    """What limits these stages (seconds) on this machine, the most useful first."""
    import torch

    from seamseg.ops import kernels
    from seamseg.ops.fused import bf16_is_fast, one_pass_works

    said = []
    total = sum(stages.values())
    share = sum(stages[stage] for stage in CONVOLUTIONS) / total
    slowest = max(stages, key=lambda stage: stages[stage])
    said.append(f"{slowest} takes most ({stages[slowest] / total:.0%}); convolutions take {share:.0%} in all")
    if device == "cpu":
        cores, threads = available_cores(), torch.get_num_threads()
        if load > cores:
            said.append(f"the load of this machine is {load:.1f} on {cores} cores: measure again when it is quiet")
        # without the variable torch has a thread for each physical core
        if threads < cores and "OMP_NUM_THREADS" in os.environ:
            said.append(f"torch uses {threads} of {cores} cores: unset OMP_NUM_THREADS, or set it to {cores}")
        if process_settings.describe_malloc() != "large buffers are kept":
            said.append(f"malloc: {process_settings.describe_malloc()} (docs/performance.md)")
        if not process_settings.limits_spin():
            said.append("OpenMP threads spin while they wait, slow beside other programs: docs/performance.md")
        if not one_pass_works():
            said.append("this PyTorch lacks oneDNN's fused operators: activations take a pass of their own")
        fast = bf16_is_fast(torch.device("cpu"))
        if fast and precision == "fp32" and share > 0.5:
            said.append("this CPU has bfloat16 in hardware: --precision bf16 about halves convolutions, results differ")
        if not fast:
            said.append("this CPU has no bfloat16 in hardware: fp32 is the fastest")
        state = kernels().get("CPU", "")
        if "compiled" not in state and "loaded" not in state and os.environ.get("SEAMSEG_PLAIN_OPS"):
            said.append("SEAMSEG_PLAIN_OPS is set: the compiled operators are not used")
    elif precision == "fp32":
        said.append("--precision fp16 or bf16 uses the GPU's tensor cores, results differ a little")
    said.append(_files(stages, device))
    return said


def _files(stages: dict[str, float], device: str) -> str:
    """What reading and writing cost where `predict` has many photos; computed of the stages, not measured."""
    reading, writing = stages["decode"] + stages["resize"], stages["fusion"] + stages["encode"]
    total = sum(stages.values())
    share = f"decoding, resizing, fusion and encoding take {(reading + writing) / total:.0%}"
    if device == "cpu":
        return f"{share}; the network needs the same cores, so `predict` saves only the wait for storage"
    # as many as `predict` has by default, and its threads that write
    workers, threads = max(min(4, available_cores()), 1), 2
    beside = {
        f"{workers} processes that decode": reading / workers,
        "the network": total - reading - writing,
        f"{threads} threads that fuse and encode": writing / threads,
    }
    limit = max(beside, key=lambda name: beside[name])
    best = f"at best {beside[limit] * 1e3:.0f} ms a photo, limited by {limit}"
    return f"{share}; `predict` does them beside the network, {best}"


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None or not all(32 <= int(side) <= 8192 for side in match.groups()):
        raise InputError(f"--size {text}: give HEIGHTxWIDTH in pixels, 32 to 8192, for example 1024x2048")
    return int(match[1]), int(match[2])


def _print(report: dict[str, Any]) -> None:
    height, width = report["size"]
    print(f"{report['model']}, {height}x{width}, {report['device']}, {report['precision']}")
    counts = ", ".join(f"{number} {name}" for name, number in report["counts"].items())
    print(f"{report['threads']} threads, load {report['load']}, median of {report['rounds']}; {counts}\n")
    total = sum(report["stages_ms"].values())
    for stage, milliseconds in report["stages_ms"].items():
        print(f"{stage:<12}{milliseconds:>10.1f} ms{milliseconds / total:>8.1%}")
    print(f"{'all':<12}{report['total_ms']:>10.1f} ms\n")
    for hint in report["hints"]:
        print(f"- {hint}")
