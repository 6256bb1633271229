"""The page of keys is generated from the code."""

import subprocess
import sys
from pathlib import Path

from seamseg.config.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "config.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run `make reference` and commit docs/config.md"


def test_the_page_of_components_is_up_to_date() -> None:
    """In a process of its own: other tests import components."""
    program = [sys.executable, "-m", "seamseg.cli.components"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    page = PAGE.parent / "reference" / "components.md"
    assert page.read_text(encoding="utf-8") == done.stdout, "run `make reference` and commit components.md"
