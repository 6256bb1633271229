"""The arguments of every command as JSON, so that a change of the command line is seen and meant.

After such a change: `.venv/bin/python tests/support/cli_surface.py > tests/golden/cli_surface.json`
"""

import argparse
import json
import sys
from typing import Any

from seamseg.cli.main import COMMANDS, Parser, build_parser


def surface() -> dict[str, Any]:
    """What each argument takes, by command; `seamseg` has those that may stand before a command."""
    found = {"seamseg": _arguments(build_parser([]))}
    for name in sorted(COMMANDS):
        found[name] = _arguments(_commands(build_parser([name]))[name])
    return found


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next((dict(a.choices) for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {})


def _arguments(parser: argparse.ArgumentParser) -> dict[str, Any]:
    assert isinstance(parser, Parser), "the parser of a command must be made by the frame"
    found: dict[str, Any] = {
        ", ".join(action.option_strings) or action.dest: _takes(action)
        for action in parser._actions
        if not isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))
    }
    if parser.prog != "seamseg":
        found.update({name: _arguments(command) for name, command in _commands(parser).items()})
    return dict(sorted(found.items()))


def _takes(action: argparse.Action) -> str:
    """In words: nothing, one value or how many, of which ones, and whether it may be repeated."""
    words = {None: "a value", 0: "nothing", "?": "a value or nothing", "*": "values"}.get(
        action.nargs, str(action.nargs)
    )
    if action.choices:
        words += f" of {', '.join(map(str, action.choices))}"
    return words + (", repeatable" if isinstance(action, argparse._AppendAction) else "")


if __name__ == "__main__":
    json.dump(surface(), sys.stdout, indent=1)
    print()
