"""The `seamseg` command: parse arguments, run a sub-command, convert errors to one line and an exit code."""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, fields
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn, TextIO, TypeVar

from seamseg import extensions
from seamseg.utils import process
from seamseg.utils.distributed import is_main_process, process_count
from seamseg.utils.errors import (
    InputError,
    SeamsegError,
    Terminated,
    did_you_mean,
    missing_packages,
    one_line,
    require_packages,
)
from seamseg.utils.options import flags_of
from seamseg.utils.output import console, echo
from seamseg.utils.process import graceful_termination
from seamseg.version import __version__

COMMANDS = {
    "demo": "Train, predict, evaluate and report on a generated toy data set.",
    "prepare": "Convert a data set to the dataset folder format.",
    "train": "Train a network from an INI config.",
    "predict": "Predict segmentations or detections of images and videos.",
    "evaluate": "Compute PQ, mIoU, AP and other metrics of a model or of prediction files.",
    "report": "Write an HTML report of an evaluation, or a comparison of two.",
    "convert-backbone": "Convert a torchvision ResNet to pre-trained backbone weights.",
    "new": "Write an example of a component under another name: a head, a loss, ...",
    "components": "List the parts that a configuration can choose, yours included.",
    "doctor": "Check the installation.",
    **extensions.COMMANDS,
}
"""Help line of each command."""

Options = TypeVar("Options")

PARAMETER_FLAGS = {
    "components": "--components",
    "formats": "--format",
    "pretrain": "--pre-train",
}
"""Flags of parameters that have another name than their flag."""

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 on success, 1 on failure, 2 for bad usage or input, 128 + N after signal N."""
    if argv is None:
        _open_streams()
        process.apply_settings()
        try:
            return main(sys.argv[1:])
        finally:
            # SIGINT ends the process at once, unless it is ignored: no traceback while the interpreter exits
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
    # parsing the arguments may fail, too
    debug = "--debug" in argv
    with warnings.catch_warnings():
        if not debug:
            warnings.showwarning = _show_warning
        try:
            # processes of a launcher wait for each other, in C++: SIGTERM ends them at once
            with graceful_termination() if process_count() == 1 else nullcontext():
                code = _run(argv)
            # raises BrokenPipeError here rather than at interpreter exit
            sys.stdout.flush()
            return code
        except KeyboardInterrupt as stop:
            # launchers signal all processes
            if is_main_process():
                _print_error(f"{_name(argv)}: interrupted{'; ' if str(stop) else ''}{stop}")
            return stop.exit_code if isinstance(stop, Terminated) else EXIT_INTERRUPTED
        except BrokenPipeError:
            # the reader of stdout has exited, as `| head` does
            _discard(sys.stdout)
            return EXIT_FAILED
        except Exception as error:
            if debug:
                echo(traceback.format_exc(), file=sys.stderr)
            error = _as_ours(error)
            if not (isinstance(error, SeamsegError) and error.reported):
                _print_error(f"{_name(argv)}: {_one_line(error)}")
            return error.exit_code if isinstance(error, SeamsegError) else EXIT_FAILED
        finally:
            console.quiet, console.flags = False, dict


def _open_streams() -> None:
    """Open the standard streams that the caller has closed, and let stdout escape what its encoding lacks."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # the lowest free number: the next file that is opened would get it, with all that is printed
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard(stream: TextIO) -> None:
    """Connect a stream to nothing: it is flushed once more when the interpreter exits, whose code a failure changes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _as_ours(error: Exception) -> Exception:
    """Return the error for a full disk or a missing package; others as they are."""
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("seamseg"):
        return missing_packages([error.name.partition(".")[0]])
    if isinstance(error, OSError) and error.errno in _FULL:
        from seamseg.utils.files import cannot_write

        try:
            sys.stdout.flush()
        except OSError:
            _discard(sys.stdout)
        return cannot_write(error.filename or "standard output or another file", error)
    return error


def _print_error(line: str) -> None:
    # stderr may be gone with a closed terminal: the exit code must not change
    try:
        echo(line, file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _run(argv: Sequence[str]) -> int:
    try:
        parser = build_parser(argv)
        args = parser.parse_args(argv)
    except SystemExit as end:
        # raised by argparse after --help, --version and wrong usage
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    if args.command is None:
        parser.print_help()
        return 0
    from seamseg.utils.limits import image_budget

    image_budget()  # a wrong value is an error of the command, not of each image
    console.quiet, console.flags = args.quiet, partial(_flags_of, parser, args)
    return int(command_module(args.command).run(args) or 0)


def _flags_of(parser: argparse.ArgumentParser, args: argparse.Namespace) -> dict[str, tuple[str, bool]]:
    """Return the flags of the chosen command by parameter, each with whether it takes a value."""
    found: dict[str, argparse.Action] = {}
    flags: dict[str, argparse.Action] = {}
    inner: argparse.ArgumentParser | None = parser
    while inner is not None:
        # --components is an override, too: the first flag of a destination has its name
        found |= {action.dest: action for action in reversed(inner._actions) if action.option_strings}
        flags |= {action.option_strings[0]: action for action in inner._actions if action.option_strings}
        chosen = next((a for a in inner._actions if isinstance(a, argparse._SubParsersAction)), None)
        inner = None if chosen is None else chosen.choices.get(getattr(args, chosen.dest))
    found |= {name: flags[flag] for name, flag in PARAMETER_FLAGS.items() if flag in flags}
    return {name: (action.option_strings[0], action.nargs != 0) for name, action in found.items()}


_FIRST, _MIDDLE = "MODEL is the first argument, without a flag", "the images follow MODEL, without a flag"
ELSEWHERE = {
    **dict.fromkeys(("--model", "--weights", "--checkpoint"), _FIRST),
    **dict.fromkeys(("--source", "--input", "--images"), _MIDDLE),
    **dict.fromkeys(("--output", "--out", "--project", "-o"), "OUT is the last argument, without a flag"),
    "--conf": "it is --score-threshold here",
    "--imgsz": "it is --size here",
    "--save-json": "it is --format json here, one file an image; coco and coco-results are files of all images",
}
"""Flags of `predict` in other tools."""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with one-line errors; made without abbreviations, which further options make ambiguous."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with code 2."""
        if "arguments are required" in message and (order := self._in_order()):
            message += f"; write {self.prog} {' '.join(order)}"
        line = one_line(f"{self.prog}: {message}")
        self.exit(2, f"{line}{'' if line.endswith('?') else ';'} see {self.prog} --help\n")

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def,override]
        """Parse arguments; the parser of the command reports unknown options, with the most similar known one."""
        namespace, extra = super().parse_known_args(args, namespace)
        if extra:
            known = self._option_string_actions
            meant = _as_key(self.prog, extra[0]) if "--set" in known else ""
            flag = extra[0].partition("=")[0]
            said = f"; {ELSEWHERE[flag]}" if self.prog.endswith(" predict") and flag in ELSEWHERE else ""
            if (name := flag[2:].upper()) in (order := self._in_order()):
                said = said or f"; {name} needs no flag: {self.prog} {' '.join(order)}"
            self.error(f"unknown argument {extra[0]}{meant or said or did_you_mean(flag, known)}")
        return namespace, extra

    def _in_order(self) -> list[str]:
        """Return the arguments without a flag, as the help shows them."""
        given = [a for a in self._get_positional_actions() if not isinstance(a, argparse._SubParsersAction)]
        return [str(a.metavar or a.dest) for a in given]


_OF_COMMANDS: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}


def build_parser(argv: Sequence[str]) -> Parser:
    """Build the parser with the options of the command in `argv`; the others only have their help line.

    Importing all commands would import every library for `--help`.
    """
    parser = Parser(
        prog="seamseg",
        description="Panoptic segmentation of street scenes.",
        epilog="Run `seamseg COMMAND --help` for the options and an example, `seamseg demo` for a first try.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"seamseg {__version__}")
    add_common_arguments(parser, default=False)
    wanted = next((word for word in argv if not word.startswith("-")), None)
    if wanted is not None and wanted not in COMMANDS:
        parser.error(f"unknown command {wanted!r}{did_you_mean(wanted, COMMANDS)}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)
    for name, line in COMMANDS.items():
        if name == wanted:
            module = command_module(name)
            sub = subparsers.add_parser(name, help=line, description=module.__doc__, **_OF_COMMANDS)
            module.add_arguments(sub)
            add_common_arguments(sub, default=argparse.SUPPRESS)
        else:
            subparsers.add_parser(name, help=line)
    return parser


def add_common_arguments(parser: argparse.ArgumentParser, default: Any) -> None:
    """Add the options that are accepted before and after the command; SUPPRESS after it keeps what is before it."""
    group = parser.add_argument_group("common options")
    group.add_argument("--quiet", action="store_true", default=default, help="do not show progress")
    group.add_argument("--debug", action="store_true", default=default, help="print a traceback on errors")


def add_action(actions: argparse._SubParsersAction, name: str, text: str) -> argparse.ArgumentParser:
    """Add an action of a command, whose help is `text`; the list of actions shows its first line."""
    parser: argparse.ArgumentParser = actions.add_parser(
        name, help=text.partition("\n")[0], description=text, **_OF_COMMANDS
    )
    add_common_arguments(parser, default=argparse.SUPPRESS)
    return parser


def add_options(
    parser: argparse.ArgumentParser,
    options: type,
    groups: Mapping[str, argparse._ActionsContainer] | None = None,
    without: Sequence[str] = (),
    unused: Sequence[str] = (),
) -> None:
    """Add the arguments of a dataclass of options: those without a default by position, the others as flags.

    `groups` are those that exist, by title. Options in `unused` get an argument that help does not show.
    """
    made: dict[str, argparse._ActionsContainer] = {"": parser, "opening": parser, **(groups or {})}
    names = {field.name: flags_of(field)[0] for field in fields(options)}
    for field in fields(options):
        told = field.metadata
        if field.name in without:
            continue
        if told["group"] not in made:
            made[told["group"]] = parser.add_argument_group(told["group"])
        group = made[told["group"]]
        if field.name == "overrides":
            add_override(made["opening"], "--set")
            add_override(made["opening"], "--components")
            continue
        text = re.sub(r"`(\w+)`", lambda found: names.get(found[1], found[0]), told["text"])
        value: dict[str, Any] = {"help": argparse.SUPPRESS if field.name in unused else text}
        if field.type == "bool":
            value["action"] = "store_true"
        else:
            value |= {"type": _TYPES.get(field.type.removesuffix(" | None")), "metavar": told["metavar"]}
            value["choices"] = told["choices"]
            value |= {"words": {"nargs": "+"}, "flags": {"action": "append"}, "": {}}[told["several"]]
        if field.default is MISSING:
            value["metavar"] = told["metavar"] or field.name.upper()
            group.add_argument(field.name, **value)
        else:
            default = [] if told["several"] else field.default
            group.add_argument(*flags_of(field), dest=field.name, default=default, **value)


def size(text: str) -> tuple[int, int]:
    """Return the height and width of `HEIGHTxWIDTH`; InputError for another text."""
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None:
        raise InputError(f"--size {text}: give HEIGHTxWIDTH in pixels, for example 1024x2048")
    return int(match[1]), int(match[2])


_TYPES: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str | int": lambda text: int(text) if text.isdecimal() and len(text) < 20 else text,
    "tuple[int, int]": size,
}
"""Types of values by the annotation of a field; text for others."""


_OVERRIDES: dict[str, dict[str, Any]] = {
    "--set": {"metavar": "SECTION.KEY=VALUE", "help": "any configuration key; repeatable"},
    "--components": {
        "type": "general.components={}".format,
        "metavar": "FILE",
        "help": "Python file or module with components, see docs/how-to/extend.md; repeatable",
    },
}


def add_override(parser: argparse._ActionsContainer, flag: str) -> None:
    """Add `--set` or `--components`, which are both overrides."""
    parser.add_argument(flag, dest="overrides", action="append", default=[], **_OVERRIDES[flag])


def add_set_and_device(parser: argparse.ArgumentParser) -> None:
    """Add `--set` and `--device`."""
    add_override(parser, "--set")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")


def options_of(args: argparse.Namespace, options: Callable[..., Options]) -> Options:
    """Return a dataclass of options with the values of the arguments."""
    declared = vars(options)["__dataclass_fields__"]
    return options(**{name: value for name, value in vars(args).items() if name in declared})


def check_model(model: str, device: str = "auto") -> None:
    """Raise InputError for a missing model or package, before the libraries are loaded, which takes seconds.

    A model of the hub is not downloaded.
    """
    from seamseg.checkpoints.hub import SCHEME
    from seamseg.checkpoints.model_path import (
        FOREIGN,
        PACKAGE_ENDING,
        WEIGHTS_ENDING,
        library_of,
        local_model,
        snapshot_in,
    )

    needed, library = "", library_of(model)
    if model.startswith(SCHEME):
        needed = "huggingface_hub"
    elif library in FOREIGN:
        needed = library
    else:
        path = snapshot_in(local_model(model))
        if path.suffix == WEIGHTS_ENDING:
            needed = "safetensors"
        elif library == "exported" and path.suffix != PACKAGE_ENDING:
            needed = "openvino" if device.startswith("openvino") else "onnxruntime"
    if needed:
        require_packages(needed, what=model)


def command_module(name: str) -> ModuleType:
    """Import the module of a command: `add_arguments(parser)`, `run(args) -> exit code`; its docstring is the help."""
    return import_module(f"seamseg.cli.{name.replace('-', '_')}")


def _name(argv: Sequence[str]) -> str:
    command = next((word for word in argv if word in COMMANDS), None)
    return f"seamseg {command}" if command else "seamseg"


def _one_line(error: Exception) -> str:
    words = one_line(error)
    if isinstance(error, SeamsegError):
        return words
    if (components := sys.modules.get("seamseg.config.components")) is not None:
        found: str | None = components.at_fault(error)
        if found is not None:
            return found
    return f"unexpected {type(error).__name__}: {words[:300]} (run with --debug to see where)"


def _as_key(prog: str, given: str) -> str:
    """Return how to write an unknown option, `--epochs`, that is the name of a configuration key or its end."""
    from seamseg.config import sections

    keys = getattr(command_module(prog.split()[1]), "KEYS", sections.KEYS)
    name, _, value = given.partition("=")
    value = value or "VALUE"
    wanted = name.lstrip("-").replace("-", "_").lower()
    exact = [key for key in keys if key.endswith(f".{wanted}")]
    found = exact or [key for key in keys if key.endswith(f"_{wanted}")]
    if not name.startswith("--") or not 1 <= len(found) <= 3:
        return ""
    return f"; did you mean {' or '.join(f'--set {key}={value}' for key in found)}?"


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    # warnings of the package name it: in Python one sees no command
    echo(f"seamseg: warning: {one_line(message).removeprefix('seamseg: ')}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
