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
        "`train_step.py`: bf16, channels last, compiled, checkpointed, uploads on a stream of their own",
        "-",
        "tests run compiled code on the CPU with `aot_eager` and, narrow, with generated C++",
        "train_step",
    ),
    (
        "`throughput.py`: `seamseg predict --cuda-graphs`, `--compile`; class maps downloaded as int16",
        "-",
        "which graphs are captured and when, with doubles that copy and run; the script on the CPU",
        "throughput",
    ),
    ("`fusion.py`: the panoptic map", "yes", "yes", "fusion"),
    ("`memory.py`: a training step, a huge image", "-", "on the CPU", "memory"),
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
    parts = ("rows", "variants") if step in ("train_step", "throughput") else ()
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


def best_variant(results: dict[str, Any], number: str) -> Measured:
    """Return a number of the variant with the most images per second from file to file."""
    rows = [(row["images/s"], row[number], name) for name, row in results["variants"].items() if "images/s" in row]
    return max(rows)[1:] if rows else None


def best_side(results: dict[str, Any], number: str, best: Callable[..., Measured]) -> Measured:
    """Return the best number of all sides of the training step but the plain one."""
    rows = [(row[number], row["side"]) for row in results["rows"] if row["side"] != "plain"]
    return best(rows, default=None)


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

    step = "training step of vistas_r50, 1920x2304, against plain fp32: images a second"
    fused = "100 detections and a class map of 1024x2048 to a panoptic map"
    speed, outside = (partial(best_variant, number=number) for number in ("images/s", "outside"))
    faster, peak = partial(best_side, number="speed_ratio", best=max), partial(best_side, number="peak_ratio", best=min)
    predict = "`seamseg predict`, 1024x2048, bf16, from file to file"
    rows = [
        (predict, ">= 40 images/s", measured("throughput", speed, lambda v: v >= 40, "{:.1f} images/s")),
        (
            "the part of it outside of the network",
            "< 20 %",
            measured("throughput", outside, lambda v: v < 0.2, "{:.0%}"),
        ),
        (step, ">= 3 times", measured("train_step", faster, lambda v: v >= 3, "{:.2f} times")),
        ("the same: peak memory", "<= 0.5 times", measured("train_step", peak, lambda v: v <= 0.5, "{:.2f} times")),
        (fused, "<= 2 ms", measured("fusion", fused_ms, lambda v: v <= 2, "{:.2f} ms")),
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
            result += f", from file to file {row['images/s']:.1f}, outside of the network {row['outside']:.0%}"
        yield "throughput.py", f"prediction, 1024x2048, {found['precision']}, {name}", result


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
    for row in found["images"]:
        result = f"{row['seconds']:.1f} s, {row['gpu']:.1f} GiB of the GPU, {row['peak']:.1f} of the host"
        yield "memory.py", f"an image of {row['photo']}, tiles {row['tiles']}", result


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
    "throughput": throughput_figures,
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
