"""`seamseg COMMAND ...`: finds the command, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

from seamseg.cli import malloc
from seamseg.errors import SeamsegError
from seamseg.version import __version__

COMMANDS = {
    "demo": "generate a toy city, train on it, predict, evaluate, and make a gallery",
    "prepare": "convert a data set to the folder format",
    "train": "train a network from an INI file",
    "predict": "panoptic pictures from a folder of photos",
    "evaluate": "PQ, SQ, RQ and mIoU of a model or of files of predictions",
    "convert-backbone": "an ImageNet ResNet of torchvision as pre-trained weights",
    "doctor": "what this machine has, what serves each operator, what to mend",
}
"""Each command and its line of help; it lives in the module of the same name, imported only when asked for."""

EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 ok, 1 the work failed, 2 bad usage or input."""
    if argv is None:
        malloc.keep_buffers()
        argv = sys.argv[1:]
    parser = build_parser(argv)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    warnings.showwarning = _show_warning
    from seamseg.engine.progress import set_quiet

    set_quiet(args.quiet)
    try:
        return int(command_module(args.command).run(args) or 0)
    except SeamsegError as error:
        if args.debug:
            raise
        print(f"seamseg {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"seamseg {args.command}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # the reader of our output went away, as `| head` does; nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if args.debug:
            raise
        words = " ".join(str(error).split())[:300]
        print(
            f"seamseg {args.command}: unexpected {type(error).__name__}: {words} (run with --debug to see where)",
            file=sys.stderr,
        )
        return 1


def build_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser with the command that `argv` names filled in; the others show their help line only.

    Loading them all would import every library for a `--help`.
    """
    parser = argparse.ArgumentParser(
        prog="seamseg",
        description="Panoptic segmentation of street scenes.",
        epilog="`seamseg COMMAND --help` explains a command with an example. New here? `seamseg demo`.",
    )
    parser.add_argument("--version", action="version", version=f"seamseg {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    wanted = next((word for word in argv if word in COMMANDS), None)
    for name, line in COMMANDS.items():
        if name == wanted:
            module = command_module(name)
            sub = subparsers.add_parser(
                name, help=line, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
            )
            add_common_arguments(sub)
            module.add_arguments(sub)
        else:
            subparsers.add_parser(name, help=line)
    return parser


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every command has."""
    group = parser.add_argument_group("always there")
    group.add_argument("--quiet", action="store_true", help="no progress")
    group.add_argument("--debug", action="store_true", help="show a traceback when something fails")


def command_module(name: str) -> ModuleType:
    """The module of a command: `add_arguments(parser)` and `run(args) -> exit code`; its docstring is the help."""
    return importlib.import_module(f"seamseg.cli.{name.replace('-', '_')}")


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    print(f"seamseg: warning: {' '.join(str(message).split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
