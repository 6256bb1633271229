"""`seamseg doctor --bench`: time the stages of a prediction and the forms of a network, and suggest faster settings."""

from __future__ import annotations

import json
import os
import re
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seamseg.cli import process_settings
from seamseg.utils.errors import InputError
from seamseg.utils.parallel import available_cores

if TYPE_CHECKING:
    import torch

CONVOLUTIONS = ("body", "FPN", "RPN head", "mask", "semantic")


def bench(
    model: str | None, size: str, rounds: int, device: str, precision: str, as_json: bool, formats: str = "fp32,bf16"
) -> int:
    """Measure and print the duration of each stage, and of the network in each form.

    Parameters
    ----------
    model : model as for `seamseg predict`; None for random weights
    size : size of the image and of the network's input, `HxW` in pixels
    rounds : runs after a warm-up run; medians are printed
    device, precision : as for `seamseg predict`
    as_json : print a JSON object instead of a table
    formats : forms of the network to compare, see :func:`seamseg.cli.doctor_formats.parse`; none if empty

    Raises
    ------
    InputError
        if an argument is invalid
    """
    height, width = _size(size)
    if rounds < 1:
        raise InputError(f"--rounds must be at least 1, not {rounds}")
    import torch

    from seamseg.cli.doctor_formats import parse
    from seamseg.inference.options import InferenceOptions
    from seamseg.inference.predictor import load_predictor
    from seamseg.predict.profiling import STAGES, StageProfile, random_predictor, write_test_image
    from seamseg.utils.distributed import choose_device

    forms = parse(formats)
    chosen, shortest = choose_device(device), min(height, width)
    if model is None:
        predictor = random_predictor(chosen, shortest, precision)
    else:
        options = InferenceOptions(shortest_size=shortest, precision=precision)
        predictor = load_predictor(model, chosen, options=options)
    with tempfile.TemporaryDirectory(prefix="seamseg-bench-") as folder:
        photo = Path(folder, "street.jpg")
        write_test_image(photo, (height, width))
        profile = StageProfile(predictor, photo, Path(folder, "out"), random_weights=model is None)
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
    report |= _compare(model, (height, width), rounds, chosen, forms) if forms else {}
    print(json.dumps(report, indent=1)) if as_json else _print(report)
    return 0


def _compare(
    model: str | None, size: tuple[int, int], rounds: int, device: torch.device, forms: list[str]
) -> dict[str, Any]:
    """Return the part of the report about the forms of the network."""
    from seamseg.cli.doctor_formats import Bench, compare, recommendation
    from seamseg.predict.profiling import synthetic_image

    image = synthetic_image(size)
    found = compare(Bench.of(model, device), image, rounds, forms)
    return {"formats_ms": found, "recommendation": recommendation(found)}


def hints(stages: dict[str, float], device: str, precision: str, load: float) -> list[str]:
    """List what limits the stages (seconds), the most useful hint first."""
    total = sum(stages.values())
    share = sum(stages[stage] for stage in CONVOLUTIONS) / total
    slowest = max(stages, key=lambda stage: stages[stage])
    found = [f"{slowest} takes most ({stages[slowest] / total:.0%}); convolutions take {share:.0%} in total"]
    if device == "cpu":
        found += _process_hints(load) + _operator_hints(precision, share)
    elif precision == "fp32":
        found.append("--precision fp16 or bf16 uses the tensor cores of the GPU; results differ slightly")
    found.append(_file_hint(stages, device))
    return found


def _process_hints(load: float) -> list[str]:
    """List settings of the process and the machine that slow down work on the CPU."""
    import torch

    found = []
    cores, threads = available_cores(), torch.get_num_threads()
    if load > cores:
        found.append(f"the load of this machine is {load:.1f} on {cores} cores: measure again when it is idle")
    # without the variable torch has a thread for each physical core
    if threads < cores and "OMP_NUM_THREADS" in os.environ:
        found.append(f"torch uses {threads} of {cores} cores: unset OMP_NUM_THREADS, or set it to {cores}")
    if process_settings.malloc_status() != process_settings.BUFFERS_KEPT:
        found.append(f"malloc: {process_settings.malloc_status()} (docs/reference/performance.md)")
    if not process_settings.is_spin_set():
        found.append("waiting OpenMP threads spin, which is slow beside other programs: docs/reference/performance.md")
    return found


def _operator_hints(precision: str, share: float) -> list[str]:
    """List what a PyTorch build, the CPU and the compiled operators lack."""
    import torch

    from seamseg.ops import kernels
    from seamseg.ops.fused import bf16_is_fast, one_pass_works

    found = []
    if not one_pass_works():
        found.append("this PyTorch lacks oneDNN's fused operators: activations take a separate pass")
    fast = bf16_is_fast(torch.device("cpu"))
    if fast and precision == "fp32" and share > 0.5:
        found.append(
            "this CPU supports bfloat16: --precision bf16 about halves the time of convolutions; results differ"
        )
    if not fast:
        found.append("this CPU does not support bfloat16: fp32 is the fastest")
    state = kernels().get("CPU", "")
    if "compiled" not in state and "loaded" not in state and os.environ.get("SEAMSEG_PLAIN_OPS"):
        found.append("SEAMSEG_PLAIN_OPS is set: the compiled operators are not used")
    return found


def _file_hint(stages: dict[str, float], device: str) -> str:
    """Describe the cost of reading and writing many images with `predict`; computed from the stages, not measured."""
    reading, writing = stages["decode"] + stages["resize"], stages["fusion"] + stages["encode"]
    total = sum(stages.values())
    share = f"decoding, resizing, fusion and encoding take {(reading + writing) / total:.0%}"
    if device == "cpu":
        return f"{share}; the network needs the same cores, so `predict` only saves waiting for storage"
    # the defaults of `predict`: decoder processes, and writer threads
    workers, threads = max(min(4, available_cores()), 1), 2
    parallel = {
        f"{workers} decoder processes": reading / workers,
        "the network": total - reading - writing,
        f"{threads} writer threads (fusion, encoding)": writing / threads,
    }
    limit = max(parallel, key=lambda name: parallel[name])
    best = f"at best {parallel[limit] * 1e3:.0f} ms per image, limited by {limit}"
    return f"{share}; `predict` does them in parallel to the network: {best}"


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
    print(f"{'total':<12}{report['total_ms']:>10.1f} ms\n")
    for hint in report["hints"]:
        print(f"- {hint}")
    if "formats_ms" not in report:
        return
    print("\nthe network alone, in turns")
    for name, value in report["formats_ms"].items():
        print(f"{name:<12}{value:>10.1f} ms" if isinstance(value, float) else f"{name:<12}not measured: {value}")
    print(f"\n{report['recommendation']}")
