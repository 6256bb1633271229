"""Write the tables of GPU runs from `benchmarks/results/gpu.json` into the documents, between their markers.

`python benchmarks/gpu.py --steps tables` writes them. Without results they read "not yet". What was run in its small
form, on a CPU or without the kernels does not count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

NOT_YET = "**not yet**"
Results = dict[str, dict[str, Any]]
"""The records of `gpu.py` by step, those of failures as STEP.failed."""

STATE = [
    ("`csrc/cuda/*`: built for the card", "yes", "-", "build"),
    ("every operator against the CPU, kernels and plain torch (`operators.py`)", "yes", "yes, under sanitizers", "ops"),
    ("`csrc/cuda/*` under compute-sanitizer: memcheck, racecheck", "yes", "-", "sanitizer"),
    (
        "`pytest -m gpu`: network, training step, waits, uploads",
        "-",
        "host reads are counted on the CPU: none",
        "tests",
    ),
    ("the golden network in fp32, bf16, fp16 (`golden.py`)", "-", "fp32 and bf16 on the CPU", "parity"),
    (
        "`train_step.py`: bf16, channels last, CUDA graphs, checkpointed, uploads on a stream of their own",
        "-",
        "on the CPU; graphs with a stand-in that copies and runs",
        "train_step",
    ),
    (
        "`train_step.py`: compiled",
        "-",
        "tests run compiled code on the CPU with `aot_eager` and, narrow, with generated C++",
        "train_step_compiled",
    ),
    (
        "`throughput.py`: `seamseg predict --cuda-graphs` of body, RPN head and semantic head, batches",
        "-",
        "which graphs are captured and when, with doubles that copy and run; the script on the CPU",
        "throughput",
    ),
    ("predictions of fixed sizes, all in a graph; writers on their own streams", "-", "equal; who waits", None),
    ("`throughput.py`: `seamseg predict --compile`", "-", "on the CPU", "throughput_compiled"),
    ("kernels of a training step and of a prediction, and how busy they keep the GPU", "-", "operators", "profile"),
    ("`fusion.py`: the panoptic map", "yes", "yes", "fusion"),
    ("`memory.py`: a training step", "-", "on the CPU", "memory"),
    ("two processes on one card through gloo (`one_card.py`)", "-", "on the CPU", "distributed"),
    ("`demo.py`: training and prediction, fp32 against bf16", "-", "on the CPU", "toy_city"),
    ("training with NCCL (several GPUs)", "-", "-", None),
    (
        "`[general] precision = fp16` with its loss scale, snapshots of the GPU's random numbers",
        "-",
        "on the CPU",
        None,
    ),
]
"""What there is to run: code, compiled with nvcc, emulated or run on a CPU by the tests, and the step that runs it."""


def read(folder: Path) -> Results:
    """Load the records of full runs with kernels in a folder."""
    path = folder / "gpu.json"
    records: Results = json.loads(path.read_text()) if path.exists() else {}
    return {
        key: record
        for key, record in records.items()
        if record["small"] is False and (record["step"] == "build" or record["kernels"].get("GPU") == "loaded")
    }


def record_of(results: Results, step: str) -> dict[str, Any] | None:
    """Return the newest record of a step with figures: of a run that is done, or in which other variants failed."""
    records = [results[key] for key in (step, f"{step}.failed") if key in results]
    parts = ("rows", "variants") if step.startswith(("train_step", "throughput")) else ()
    records = [r for r in records if r["status"] == "done" or any(r["results"].get(part) for part in parts)]
    return max(records, key=lambda record: record["date"], default=None)


def done(results: Results, step: str) -> dict[str, Any] | None:
    """Return the results of a step, None without figures."""
    record = record_of(results, step)
    return None if record is None else record["results"]


def where(results: Results, step: str) -> str:
    """Return device and day of a step."""
    record = record_of(results, step)
    assert record is not None
    return f"{record['device']}, {record['date'][:10]}"


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(row) + " |" for row in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:]])


def state(results: Results) -> str:
    """Return the table of what has run on a GPU."""

    def outcome(step: str | None) -> str:
        if step is None or (step not in results and f"{step}.failed" not in results):
            return NOT_YET
        record = max((results[s] for s in (step, f"{step}.failed") if s in results), key=lambda r: r["date"])
        place = f"{record['date'][:10]}, {record['device']}"
        if record["status"] == "done":
            return place
        found = record["results"]
        reason = f"{found['failed']} failed, {found['passed']} passed" if "passed" in found else found.get("reason", "")
        return f"**{record['status']}** ({place}): {reason[:120]}"

    rows = [(code, compiled, emulated, outcome(step)) for code, compiled, emulated, step in STATE]
    return table(("code", "compiled (nvcc 13, sm_80, sm_90)", "without a GPU", "ran on a GPU"), rows)


Measured = tuple[float, str] | None
"""A number and the name of the side that has it; None if it was not measured."""


def best_variant(results: dict[str, Any], number: Callable[[dict[str, Any]], float | None]) -> Measured:
    """Return the largest number of the variants of prediction."""
    rows = [(value, name) for name, row in results["variants"].items() if (value := number(row)) is not None]
    return max(rows, default=None)


def best_side(results: dict[str, Any], number: str, best: Callable[..., Measured]) -> Measured:
    """Return the best number of all sides of the training step but the plain one."""
    rows = [(row[number], row["side"]) for row in results["rows"] if row["side"] != "plain"]
    return best(rows, default=None)


def busy(results: dict[str, Any], part: str) -> Measured:
    """Return the largest part of the time in which the GPU works, in training or from file to file."""
    found = results[part]
    if part == "train_step":
        return max(
            ((row["step"]["busy"], row["side"]) for row in found["rows"] if row["side"] != "plain"), default=None
        )
    return best_variant(found, lambda row: row["predict"]["busy"])


def fused_ms(results: dict[str, Any]) -> Measured:
    """Return the milliseconds of the fusion."""
    return next((row["ours_ms"], "") for row in results["rows"] if row["case"] == "fuse + to_result")


def goals(results: Results) -> str:
    """Return the table of goals for an H200 and measurements."""

    def measured(step: str, number: Callable[..., Measured], met: Callable[[float], bool], form: str) -> str:
        found = done(results, step)
        pair = None if found is None else number(found)
        if pair is None:
            return NOT_YET
        value, side = pair
        said = f"{form.format(value)}{f' ({side})' if side else ''}"
        return f"{said}, {'met' if met(value) else 'missed'} ({where(results, step)})"

    predict, step = "`seamseg predict`, 1024x2048, bf16", "training step of vistas_r50, 1920x2304"
    network = partial(best_variant, number=lambda row: 1 / row["wall"])
    files = partial(best_variant, number=lambda row: row.get("images/s"))
    faster, peak = partial(best_side, number="speed_ratio", best=max), partial(best_side, number="peak_ratio", best=min)
    rows = [
        (
            f"{predict}, network alone",
            ">= 150 images/s",
            measured("throughput", network, lambda v: v >= 150, "{:.1f} images/s"),
        ),
        (
            f"{predict}, from file to file",
            ">= 100 images/s",
            measured("throughput", files, lambda v: v >= 100, "{:.1f} images/s"),
        ),
        (
            "the same: the GPU works",
            ">= 90 %",
            measured("profile", partial(busy, part="throughput"), lambda v: v >= 0.9, "{:.0%}"),
        ),
        (
            f"{step}, against plain fp32: images a second",
            ">= 4.2 times",
            measured("train_step", faster, lambda v: v >= 4.2, "{:.2f} times"),
        ),
        ("the same: peak memory", "<= 0.48 times", measured("train_step", peak, lambda v: v <= 0.48, "{:.2f} times")),
        (
            "the same: the GPU works",
            ">= 90 %",
            measured("profile", partial(busy, part="train_step"), lambda v: v >= 0.9, "{:.0%}"),
        ),
        (
            "100 detections and a class map of 1024x2048 to a panoptic map",
            "<= 2 ms",
            measured("fusion", fused_ms, lambda v: v <= 2, "{:.2f} ms"),
        ),
    ]
    return table(("on a GPU", "goal for an H200", "measured"), rows)


Figure = tuple[str, str, str]
"""Script, what was measured, the result."""


def train_step_figures(found: dict[str, Any]) -> Iterator[Figure]:
    """Yield the figures of the training step."""
    for row in found["rows"]:
        result = f"{row['seconds']:.3f} s ({row['speed_ratio']:.2f} times plain), peak {row['peak_mib']:.0f} MiB "
        result += f"({row['peak_ratio']:.2f}), {row['of_ceiling']:.0%} of the bf16 ceiling"
        yield "train_step.py", f"training step of vistas_r50, 1920x2304, {row['side']}", result


def throughput_figures(found: dict[str, Any]) -> Iterator[Figure]:
    """Yield the figures of the prediction."""
    for name, row in found["variants"].items():
        result = f"network {1 / row['wall']:.1f} images/s"
        if "images/s" in row:
            result += f", from file to file {row['images/s']:.1f}"
        yield "throughput.py", f"prediction, 1024x2048, {found['precision']}, {name}", result


def profile_figures(found: dict[str, Any]) -> Iterator[Figure]:
    """Yield how busy the GPU is."""
    for row in found["train_step"]["rows"]:
        result = f"{row['step']['launches']:.0f} launches, the GPU works {row['step']['busy']:.0%} of the time"
        yield "train_step.py --profile", f"training step of vistas_r50, 1920x2304, {row['side']}", result
    for name, row in found["throughput"]["variants"].items():
        for part, what in (("network", "network"), ("predict", "from file to file")):
            result = f"{row[part]['launches']:.0f} launches, the GPU works {row[part]['busy']:.0%} of the time"
            yield "throughput.py --profile", f"prediction, 1024x2048, {name}, {what}", result


def fusion_figures(found: dict[str, Any]) -> Iterator[Figure]:
    """Yield the figures of the fusion."""
    for row in found["rows"]:
        result = f"{row['ours_ms']:.2f} ms, {row['peer']} {row['peer_ms']:.2f} ms"
        yield "fusion.py", f"{row['case']}, 1024x2048", result


def memory_figures(found: dict[str, Any]) -> Iterator[Figure]:
    """Yield the figures of the memory."""
    for name, row in found["rows"].items():
        result = f"keeps {row['kept_mib']:.0f} MiB, peak {row['peak_mib']:.0f}"
        yield "memory.py", f"ResNet-50 body, 512x1024, {name}", result


def parity_figures(found: dict[str, Any]) -> Iterator[Figure]:
    """Yield the figures of the parity with the original."""
    for row in found["rows"]:
        result = f"pyramid within {row['pyramid']:.0e}, {row['semantic']:.3%} of the pixels, PQ {row['PQ']:.3f}"
        yield "golden.py", f"seeded network against the original's numbers, {row['precision']}", result


def toy_city_figures(found: dict[str, Any]) -> Iterator[Figure]:
    """Yield the figures of the toy city."""
    for name, row in found["runs"].items():
        last = list(row["losses"].values())[-1]
        result = f"last loss {last:.3f}, PQ {100 * row['PQ']:.1f}, {row['seconds']:.0f} s"
        yield "demo.py", f"toy city, {found['epochs']} epochs, {name}", result


FIGURES: dict[str, Callable[[dict[str, Any]], Iterator[Figure]]] = {
    "train_step": train_step_figures,
    "train_step_compiled": train_step_figures,
    "throughput": throughput_figures,
    "throughput_compiled": throughput_figures,
    "profile": profile_figures,
    "fusion": fusion_figures,
    "memory": memory_figures,
    "parity": parity_figures,
    "toy_city": toy_city_figures,
}


def figures(results: Results) -> str:
    """Return the table of all figures."""
    rows = [
        (what, f"`{script}`", result, where(results, step))
        for step, figures_of in FIGURES.items()
        if (found := done(results, step)) is not None
        for script, what, result in figures_of(found)
    ]
    heads = ("what", "command", "result", "device, date")
    return table(heads, rows or [("all of the steps", "`make gpu`", NOT_YET, "-")])


PLACES: list[tuple[str, str, Callable[[Results], str]]] = [
    ("docs/reference/performance.md", "gpu figures", figures),
    ("benchmarks/results/README.md", "gpu state", state),
    ("benchmarks/results/README.md", "gpu goals", goals),
]
"""File, marker, table."""


def rendered(results: Results, root: Path) -> dict[str, str]:
    """Return the files with their tables, by name."""
    texts: dict[str, str] = {}
    for name, marker, make in PLACES:
        text = texts.get(name) or (root / name).read_text(encoding="utf-8")
        begin, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"gpu_tables.py: {name}: needs one {begin.strip()} and one {end}")
        before, rest = text.split(begin)
        texts[name] = before + begin + make(results) + "\n" + end + rest.split(end)[1]
    return texts


def write(results: Results, root: Path) -> list[str]:
    """Write the files that change; return their names."""
    changed = [
        name for name, text in rendered(results, root).items() if text != (root / name).read_text(encoding="utf-8")
    ]
    for name in changed:
        (root / name).write_text(rendered(results, root)[name], encoding="utf-8")
    return changed
