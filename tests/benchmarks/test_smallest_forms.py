"""Every script of benchmarks/ in its smallest form succeeds, and writes its table and JSON; the figures of README and
docs are those of benchmarks/results."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import figures
import gpu_tables

ROOT = Path(__file__).parents[2]
MODULES = {"timing", "street", "networks", "gpu_machine", "gpu_steps", "gpu_tables"}
CASE = r"\d  .+ +\d+\.\d\d +\d+\.\d\d"
"""A row of `timing.report`: milliseconds, the peer, its milliseconds, the ratio."""
SMALLEST: dict[str, tuple[str, str]] = {
    "bandwidth": ("statistics --small --rounds 1 --json OUT", r"abn_statistics +\d+x.* \d"),
    "calls": ("--json OUT", r"\d\d+ functions in \d\d+ files, \d\d+ of them before"),
    "demo": (
        "fp32 --train 2 --val 1 --epochs 1 --set scheduler.burn_in_steps=0 --set dataloader.train_batch_size=2 "
        "--set general.log_interval=1 --json OUT",
        r"fp32 +\d+ +\d+ +\d+\.\d+ +\d+\.\d\d",
    ),
    "exported": (
        "fp32 onnx openvino-int8 --config toy_city_r18 --size 64x96 --rounds 1 --json OUT",
        r"onnx( +\d+\.\d+){3}\n*openvino-int8( +\d+\.\d+){3}",
    ),
    "figures": ("", r"\d+ figures agree"),
    "fusion": ("--rounds 1 --json OUT", CASE),
    "gpu": ("--device cpu --small --steps build,fusion,tables --out OUT", r"fusion +done"),
    "inference": (
        "fp32 plain maskrcnn fp32/300 --rounds 1 --sizes 64 --json OUT",
        r"plain takes \d.*\n.*maskrcnn takes \d.*\n.*fp32/300 takes \d",
    ),
    "int8": ("--train 2 --val 1 --epochs 1 --calibrate 1 --rounds 1 --json OUT", r"onnx int8 +\d.*PQ"),
    "kernels": ("6000 backward noise --rounds 1 --json OUT", CASE),
    "loading": ("crop --rounds 1 --size 128 --json OUT", r"images/s, peer \d"),
    "memory": ("--size 64 128 --json OUT", r"in-place ABN( +\d+\.\d+){4}"),
    "models": ("toy_city_r18 --json OUT", r"toy_city_r18 +\d+\.\d\d s, peak \d\.\d\d GB"),
    "network": ("--rounds 1 --side 64 --config toy_city_r18 --json OUT", r"separated( +\d+\.\d+){4}"),
    "panoptic_quality": ("--pairs 2 --rounds 1 --workers 1 --json OUT", r"seamseg +\d"),
    "ray_data": ("--help", r"Compare the throughput"),
    "throughput": (
        "plain --device cpu --size 64x96 --rounds 1 --photos 2 --workers 0 --config toy_city_r18 --profile --json OUT",
        r"plain +predict +\d.*images/s",
    ),
    "train_step": (
        "--device cpu --size 64x128 --rounds 1 --config toy_city_r18 --json OUT",
        r"eager +\d(.|\n)*checkpointed, not compiled +\d",
    ),
    "training_memory": ("--size 64x128 --config toy_city_r18 --json OUT", r"eager +\d+ +\d\.\d+ +\d"),
}


def test_every_script_is_listed():
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} == set(SMALLEST) | MODULES


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), SMALLEST.items())
def test_smallest_form(name, form, tmp_path):
    words, wanted = form
    out = tmp_path / "out"
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *shlex.split(words.replace("OUT", str(out)))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "TORCHDYNAMO_DISABLE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert re.search(wanted, done.stdout), done.stdout[-3000:]
    if "--json" in words:
        assert json.loads(out.read_text())


OTHERS = re.compile(r"<!-- (gpu \w+|models) -->.*?<!-- end of \1 -->", re.DOTALL)
"""Tables of GPU runs, which have tests of their own, and of published numbers."""


def test_figures_agree():
    wrong = [line for _, _, lines in figures.pages(figures.figures()) for line in lines]
    assert not wrong, "\n".join(["python benchmarks/figures.py --write corrects:", *wrong])


@pytest.mark.parametrize("page", figures.PAGES)
def test_each_row_with_a_figure_is_compared(page):
    text = OTHERS.sub(lambda found: "\n" * found[0].count("\n"), (ROOT / page).read_text(encoding="utf-8"))
    compared = set()
    for figure in figures.figures():
        if figure.page == page:
            compared.update(text.count("\n", 0, found.start()) for found in figure.pattern.finditer(text))
    # a number after the first cell, but for the text of code
    rows = {
        i: line
        for i, line in enumerate(text.splitlines())
        if re.match(r"\|[^|]*\|.*\d.*\|", re.sub("`[^`]*`", "", line))
    }
    assert len(rows) > 2
    left = [line for i, line in rows.items() if i not in compared]
    assert not left, "no figure of benchmarks/figures.py:\n" + "\n".join(left)


def test_wrong_numbers_are_named_and_corrected():
    figure = figures.Figure("page.md", "| NMS | {} ms | torchvision {} ms | {} |", (4.26, 55.4, 13.0))
    text = "| other | 1 |\n| NMS | 4.2 ms | torchvision 55 ms | 12 |\n"
    corrected, wrong = figure.corrected(text)
    assert corrected == "| other | 1 |\n| NMS | 4.3 ms | torchvision 55 ms | 13 |\n"
    assert wrong == ["page.md: '| NMS': 4.2 should be 4.3", "page.md: '| NMS': 12 should be 13"]
    assert figure.corrected(corrected) == (corrected, [])
    assert figure.corrected("| NMS | gone |")[1] == [f"page.md: {figure.text!r} occurs 0 times, expected one"]
    assert figures.Figure("page.md", "a gain of {}", (2.84,)).corrected("a gain\nof +2.7")[0] == "a gain\nof +2.8"


def test_the_tables_are_those_of_the_results():
    for name, text in gpu_tables.rendered(gpu_tables.read(ROOT / "benchmarks/results"), ROOT).items():
        assert (ROOT / name).read_text() == text, f"{name}: python benchmarks/gpu.py --steps tables"
