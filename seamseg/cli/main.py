"""`seamseg COMMAND ...`: finds the command, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from seamseg.cli import process_settings
from seamseg.utils.errors import SeamsegError, Terminated
from seamseg.version import __version__

COMMANDS = {
    "demo": "generate a toy city, train on it, predict, evaluate, and make a report",
    "prepare": "convert a data set to the folder format",
    "train": "train a network from an INI file",
    "predict": "panoptic pictures from a folder of photos",
    "evaluate": "PQ, SQ, RQ and mIoU of a model or of files of predictions",
    "report": "a page to look at an evaluation with, or at two side by side",
    "convert-backbone": "an ImageNet ResNet of torchvision as pre-trained weights",
    "doctor": "what this machine has, what serves each operator, what to mend",
}
"""Each command and its line of help; it lives in the module of the same name, imported only when asked for."""

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 ok, 1 the work failed, 2 bad usage or input, 128 + a signal."""
    if argv is None:
        process_settings.apply()
        argv = sys.argv[1:]
    # as long as the arguments are not parsed nobody else can say whether a traceback is wanted
    debug = "--debug" in argv
    with warnings.catch_warnings():
        if not debug:
            warnings.showwarning = _show_warning
        try:
            code = _run(argv)
            # a reader that went away shows here, while it can still be caught
            sys.stdout.flush()
            return code
        except KeyboardInterrupt as stop:
            print(f"{_name(argv)}: interrupted{'; ' if str(stop) else ''}{stop}", file=sys.stderr)
            return EXIT_TERMINATED if isinstance(stop, Terminated) else EXIT_INTERRUPTED
        except BrokenPipeError:
            # the reader of our output went away, as `| head` does; nothing is left to say
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_FAILED
        except Exception as error:
            if debug:
                traceback.print_exc()
            print(f"{_name(argv)}: {_in_a_line(error)}", file=sys.stderr)
            return error.exit_code if isinstance(error, SeamsegError) else EXIT_FAILED


def _run(argv: Sequence[str]) -> int:
    try:
        parser = build_parser(argv)
        args = parser.parse_args(argv)
    except SystemExit as end:
        # argparse ends --help, --version and wrong usage so
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    if args.command is None:
        parser.print_help()
        return 0
    from seamseg.utils.progress import set_quiet

    set_quiet(args.quiet)
    return int(command_module(args.command).run(args) or 0)


class Parser(argparse.ArgumentParser):
    """argparse, with wrong usage told in one line and no abbreviated options, which new ones would make ambiguous."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and end with exit code 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def,override]
        """As argparse does, but unknown options are told by the command's own parser, with the nearest known one."""
        namespace, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(
                f"unknown argument {extra[0]}{_nearest(extra[0].partition('=')[0], self._option_string_actions)}"
            )
        return namespace, extra


def build_parser(argv: Sequence[str]) -> Parser:
    """The parser with the command that `argv` names filled in; the others show their help line only.

    Loading them all would import every library for a `--help`.
    """
    parser = Parser(
        prog="seamseg",
        description="Panoptic segmentation of street scenes.",
        epilog="`seamseg COMMAND --help` explains a command with an example. New here? `seamseg demo`.",
    )
    parser.add_argument("--version", action="version", version=f"seamseg {__version__}")
    add_common_arguments(parser, default=False)
    wanted = next((word for word in argv if not word.startswith("-")), None)
    if wanted is not None and wanted not in COMMANDS:
        parser.error(f"unknown command {wanted!r}{_nearest(wanted, COMMANDS)}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)
    for name, line in COMMANDS.items():
        if name == wanted:
            module = command_module(name)
            sub = subparsers.add_parser(
                name, help=line, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
            )
            module.add_arguments(sub)
            add_common_arguments(sub, default=argparse.SUPPRESS)
        else:
            subparsers.add_parser(name, help=line)
    return parser


def add_common_arguments(parser: argparse.ArgumentParser, default: Any) -> None:
    """The options that may stand before or after the command; after it they must not undo what stood before."""
    group = parser.add_argument_group("always there")
    group.add_argument("--quiet", action="store_true", default=default, help="no progress")
    group.add_argument("--debug", action="store_true", default=default, help="show a traceback when something fails")


def command_module(name: str) -> ModuleType:
    """The module of a command: `add_arguments(parser)` and `run(args) -> exit code`; its docstring is the help."""
    return importlib.import_module(f"seamseg.cli.{name.replace('-', '_')}")


def _name(argv: Sequence[str]) -> str:
    command = next((word for word in argv if word in COMMANDS), None)
    return f"seamseg {command}" if command else "seamseg"


def _in_a_line(error: Exception) -> str:
    words = " ".join(str(error).split())
    if isinstance(error, SeamsegError):
        return words
    if isinstance(error, ModuleNotFoundError) and error.name and error.name.partition(".")[0] != "seamseg":
        return f"needs {error.name}, which is not installed; `seamseg doctor` lists what is missing"
    return f"unexpected {type(error).__name__}: {words[:300]} (run with --debug to see where)"


def _nearest(word: str, known: Any) -> str:
    match = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {match[0]}?" if match else ""


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    print(f"seamseg: warning: {' '.join(str(message).split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
