"""The page of keys is generated from the code."""

from pathlib import Path

from seamseg.config.reference import reference
from seamseg.config.sections import SECTIONS

PAGE = Path(__file__).parents[2] / "docs" / "config.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run `make docs` and commit docs/config.md"


def test_every_section_is_there() -> None:
    assert [line[4:-1] for line in reference().splitlines() if line.startswith("## [")] == list(SECTIONS)
