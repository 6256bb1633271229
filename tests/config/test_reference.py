"""The page of keys is generated from the code."""

from pathlib import Path

from seamseg.config.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "config.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run `make reference` and commit docs/config.md"
