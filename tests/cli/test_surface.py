"""The command line stays as it is: people's scripts call it."""

import json

import pytest
from support.cli_surface import surface
from support.golden_files import DATA

from seamseg.cli.main import COMMANDS

STORED = json.loads((DATA / "cli_surface.json").read_text())
HOW = "if that is meant: .venv/bin/python tests/support/cli_surface.py > tests/golden/cli_surface.json"


def test_the_commands() -> None:
    assert {"seamseg", *COMMANDS} == set(STORED), HOW


@pytest.mark.parametrize("name", STORED)
def test_the_arguments_of_a_command(name: str) -> None:
    assert surface()[name] == STORED[name], HOW
