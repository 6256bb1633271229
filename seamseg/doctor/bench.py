"""Time the stages of a prediction and the backends of a network, and suggest faster settings."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from seamseg.checkpoints.foreign import is_foreign
from seamseg.checkpoints.model_path import local_model
from seamseg.doctor.backends import Bench, compare, recommendation
from seamseg.doctor.stages import StageProfile, WholeProfile, random_predictor
from seamseg.inference.options import InferenceOptions
from seamseg.inference.predictor import build_predictor, open_for_inference
from seamseg.ops import kernels
from seamseg.ops.fused import bf16_is_fast, one_pass_works
from seamseg.utils import process_settings
from seamseg.utils.distributed import choose_device
from seamseg.utils.errors import InputError
from seamseg.utils.parallel import available_cores, share_cores
from seamseg.utils.synthetic_image import synthetic_image, write_synthetic_image

CONVOLUTIONS = ("body", "FPN", "RPN head", "mask", "semantic")
"""Stages that mainly multiply matrices; a network of another library has none of them."""

MAX_ROUNDS = 1000
"""Maximum number of runs of a benchmark."""


def measure(
    model: str | None,
    size: tuple[int, int],
    rounds: int = 5,
    device: str = "cpu",
    precision: str = "fp32",
    backends: Sequence[str] = (),
    meta: str | Path | None = None,
) -> dict[str, Any]:
    """Measure the duration of each stage of a prediction, and of the network in each backend.

    Parameters
    ----------
    model : model as for `seamseg predict`; None for random weights
    size : `(height, width)` of the image and of the network's input in pixels
    rounds : runs after a warm-up run; medians are reported
    device, precision : see `seamseg predict`
    backends : names from :func:`seamseg.doctor.backends.parse`; none if empty, or for a network of another library
    meta : classes of a network of another library, as for `seamseg predict`

    Returns
    -------
    a report that JSON can hold: `stages_ms`, `total_ms`, `counts` (proposals, detections, segments), `hints`, what was
    measured, `licence` (of weights of another library that state one), and with backends `formats_ms` (milliseconds,
    or why it was not measured) and `recommendation`

    Raises
    ------
    InputError
        if an argument is invalid, or the kind of network has other stages
    """
    if not 1 <= rounds <= MAX_ROUNDS:
        raise InputError(f"`rounds={rounds}`: must be from 1 to {MAX_ROUNDS}")
    chosen, shortest = choose_device(device), min(size)
    if meta is not None and (model is None or not is_foreign(local_model(model))):
        raise InputError("`meta` is for networks of transformers and torchvision")
    foreign, licence = False, ""
    if model is None:
        predictor = random_predictor(chosen, shortest, precision)
    else:
        options = InferenceOptions(shortest_size=shortest, precision=precision)
        path = local_model(model)
        opened = open_for_inference(path, chosen, meta=meta, options=options)
        predictor = build_predictor(opened, options)
        foreign, licence = is_foreign(path), getattr(opened, "licence", "")
    with tempfile.TemporaryDirectory(prefix="seamseg-bench-") as folder:
        image = Path(folder, "street.jpg")
        write_synthetic_image(image, size)
        profile: StageProfile | WholeProfile
        if foreign:
            profile = WholeProfile(predictor, image, Path(folder, "out"))
        else:
            profile = StageProfile(predictor, image, Path(folder, "out"), random_weights=model is None)
        profile.run()
        runs, loads = [], []
        for _ in range(rounds):
            runs.append(profile.run())
            loads.append(os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0)
    medians = {stage: statistics.median(run[stage] for run in runs) for stage in profile.stages}
    total = statistics.median(sum(run.values()) for run in runs)
    report: dict[str, Any] = {
        "model": model or "vistas_r50 with random weights",
        "size": list(size),
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
    if licence:
        report["licence"] = licence
    if backends and not foreign:
        found = compare(Bench.of(model, chosen), synthetic_image(size), rounds, backends)
        report |= {"formats_ms": found, "recommendation": recommendation(found)}
    return report


def hints(stages: dict[str, float], device: str, precision: str, load: float) -> list[str]:
    """List what limits the stages (seconds), the most useful hint first."""
    total = sum(stages.values())
    share = sum(stages.get(stage, 0.0) for stage in CONVOLUTIONS) / total
    ours = bool(share)
    slowest = max(stages, key=lambda stage: stages[stage])
    found = [f"{slowest} takes most ({stages[slowest] / total:.0%})"]
    if ours:
        found[0] += f"; convolutions take {share:.0%} in total"
    if device == "cpu":
        found += _process_hints(load)
        # a network of another library has its own operators
        found += _operator_hints(precision, share) if ours else []
    elif precision == "fp32":
        found.append("--precision fp16 or bf16 uses the tensor cores of the GPU; results differ slightly")
    found.append(_file_hint(stages, device))
    return found


def _process_hints(load: float) -> list[str]:
    """List settings of the process and the machine that slow down work on the CPU."""
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
    found = []
    if not one_pass_works():
        found.append("this PyTorch lacks oneDNN's fused operators: activations take a separate pass")
    fast = bf16_is_fast(torch.device("cpu"))
    if fast and precision == "fp32" and share > 0.5:
        found.append(
            "this CPU is faster in bfloat16: --precision bf16 about halves the time of convolutions; results differ"
        )
    if not fast:
        found.append("this CPU is not faster in bfloat16: fp32 is the fastest")
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
    workers, threads = share_cores()
    parallel = {
        f"{workers} decoder processes": reading / workers,
        "the network": total - reading - writing,
        f"{threads} writer threads (fusion, encoding)": writing / threads,
    }
    limit = max(parallel, key=lambda name: parallel[name])
    best = f"at best {parallel[limit] * 1e3:.0f} ms per image, limited by {limit}"
    return f"{share}; `predict` does them in parallel to the network: {best}"
