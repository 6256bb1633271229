"""The figures of README and docs are those of benchmarks/results."""

from __future__ import annotations

import re
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


def test_the_tables_are_those_of_the_results():
    for name, text in gpu_tables.rendered(gpu_tables.read(ROOT / "benchmarks/results"), ROOT).items():
        assert (ROOT / name).read_text() == text, f"{name}: python benchmarks/gpu.py --steps tables"
