"""The figures of README and docs are those of benchmarks/results."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import figures
import gpu_tables

ROOT = Path(__file__).parents[2]
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


# --- The tables that follow from the results of gpu.py


DOCUMENTS = {name for name, _, _ in gpu_tables.PLACES}


def record(step, results, status="done"):
    """As gpu.py writes it."""
    said = {"device": "NVIDIA H200", "date": "2026-11-22 10:00 UTC", "small": False, "results": results}
    return {"step": step, "status": status, **said, "kernels": {"CPU": "loaded", "GPU": "loaded"}}


FAST = {"side": "fast", "seconds": 0.25, "speed_ratio": 4.0, "peak_mib": 4500.0, "peak_ratio": 0.5, "of_ceiling": 0.4}
RESULTS = {
    "train_step": record("train_step", {"rows": [FAST]}),
    "ops.failed": record("ops", {"reason": "exit code 1"}, "failed"),
    "fusion": record("fusion", {"rows": [{"case": "fuse + to_result", "ours_ms": 2.5, "peer": "p", "peer_ms": 9.0}]}),
}


def test_the_tables_are_those_of_the_results():
    for name, text in gpu_tables.rendered(gpu_tables.read(ROOT / "benchmarks/results"), ROOT).items():
        assert (ROOT / name).read_text() == text, f"{name}: python benchmarks/gpu.py --steps tables"


def test_tables_follow_the_results_and_go_back(tmp_path):
    documents = tmp_path
    for name in DOCUMENTS:
        (documents / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, documents / name)
    gpu_tables.write({}, documents)
    before = {name: (documents / name).read_text() for name in DOCUMENTS}
    assert all("not yet" in text for text in before.values())
    assert set(gpu_tables.write(RESULTS, documents)) == DOCUMENTS
    state = (documents / "benchmarks/results/README.md").read_text()
    assert "| >= 4.2 times | 4.00 times (fast), missed (NVIDIA H200, 2026-11-22) |" in state
    assert "| <= 0.48 times | 0.50 times (fast), missed (NVIDIA H200, 2026-11-22) |" in state
    assert "| <= 2 ms | 2.50 ms, missed (NVIDIA H200, 2026-11-22) |" in state
    assert "| >= 100 images/s | **not yet** |" in state
    assert "**failed** (2026-11-22, NVIDIA H200): exit code 1" in state
    assert gpu_tables.write(RESULTS, documents) == []
    gpu_tables.write({}, documents)
    assert {name: (documents / name).read_text() for name in DOCUMENTS} == before
