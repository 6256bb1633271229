"""The command line: help, common options, one-line errors, exit codes."""

import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cli_surface import surface
from support.golden_files import DATA

from seamseg.cli import main as frame
from seamseg.cli.main import COMMANDS, build_parser, main
from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.output import console


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], int | None]], None]:
    """Install a command `fake` that runs a given function."""

    def install(run: Callable[[Any], int | None]) -> None:
        module = SimpleNamespace(
            __doc__="A fake.", run=run, add_arguments=lambda parser: parser.add_argument("--set", action="append")
        )
        monkeypatch.setitem(COMMANDS, "fake", "nothing")
        monkeypatch.setitem(sys.modules, "seamseg.cli.fake", module)

    return install


def _fail(error: BaseException) -> Callable[[Any], int]:
    def run(args: Any) -> int:
        raise error

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_in_the_help_of_each_command_are_valid(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: seamseg {name}")
    lines = [line.strip() for line in text.split("\n\n", 1)[1].replace("\\\n", "").splitlines()]
    examples = [line for line in lines if line.startswith(f"seamseg {name} ")]
    assert examples, f"`seamseg {name} --help` shows no example"
    for example in examples:
        # up to a comment, a description in a further column, or another command
        words = shlex.split(re.split(" #|   |&&", example)[0])[1:]
        if "..." not in words:
            build_parser(words).parse_args(words)
    assert "--quiet" in text or "SOURCE" in text


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["trian"], "seamseg: unknown command 'trian'; did you mean 'train'? see seamseg --help"),
        (["--fast"], "seamseg: unknown argument --fast; see seamseg --help"),
        (["doctor", "--dbug"], "seamseg doctor: unknown argument --dbug; did you mean '--debug'? see seamseg doctor"),
        (
            ["train", "--epochs", "3", "a", "b"],
            "seamseg train: unknown argument --epochs; did you mean --set scheduler.epochs=VALUE?",
        ),
        (
            ["train", "a", "b", "--batch-size"],
            "seamseg train: unknown argument --batch-size; did you mean --set dataloader"
            ".train_batch_size=VALUE or --set dataloader.val_batch_size=VALUE?",
        ),
        (
            ["predict", "a", "b", "c", "--conf", "3"],
            "seamseg predict: unknown argument --conf; it is --score-threshold here; see",
        ),
        (
            ["predict", "--model", "a", "--source", "b", "c"],
            "seamseg predict: unknown argument --model; MODEL is the first argument, without a flag; see",
        ),
        (
            ["train", "--data", "a"],
            "seamseg train: the following arguments are required: DATA; write seamseg train CONFIG DATA; see",
        ),
        (
            ["classify", "train", "a", "b", "--learning-rate=3"],
            "seamseg classify train: unknown argument --learning-rate=3; did you mean --set optimizer.learning_rate=3?",
        ),
        (["convert-backbone", "vgg", "x"], "seamseg convert-backbone: argument net: invalid choice: 'vgg'"),
    ],
)
def test_wrong_usage_is_one_line_and_2(argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(expected)
    assert err.count("\n") == 1


@pytest.mark.parametrize("argv", [["--quiet", "--debug", "fake"], ["fake", "--quiet", "--debug"]])
def test_common_options_on_both_sides(argv: list[str], command: Callable) -> None:
    seen: list[tuple[bool, bool, bool]] = []
    command(lambda args: seen.append((args.quiet, args.debug, console.quiet)))
    assert main(argv) == 0
    assert not console.quiet
    assert main(["fake"]) == 0
    assert seen == [(True, True, True), (False, False, False)]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("a.ini: no such config file"), 2, "seamseg fake: a.ini: no such config file\n"),
        (SeamsegError("the loss is\nnot finite"), 1, "seamseg fake: the loss is not finite\n"),
        (KeyboardInterrupt(), 130, "seamseg fake: interrupted\n"),
        (
            ModuleNotFoundError("No module named 'onnx.helper'", name="onnx.helper"),
            2,
            "seamseg fake: needs onnx, which is not installed; pip install 'seamseg[export]'\n",
        ),
        (
            ZeroDivisionError("division\nby zero"),
            1,
            "seamseg fake: unexpected ZeroDivisionError: division by zero (run with --debug to see where)\n",
        ),
    ],
)
def test_errors(
    error: BaseException, code: int, words: str, command: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    command(_fail(error))
    assert main(["fake"]) == code
    assert capsys.readouterr().err == words
    assert main(["fake", "--debug"]) == code
    err = capsys.readouterr().err
    assert ("Traceback (most recent call last)" in err) == isinstance(error, Exception)
    assert err.endswith(words)


def test_warnings_are_one_line(command: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    command(lambda args: warnings.warn("old\nkey", stacklevel=1))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        before = warnings.showwarning
        assert main(["fake"]) == 0
        assert warnings.showwarning is before
    assert capsys.readouterr().err == "seamseg: warning: old key\n"


CHILD = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from seamseg.cli import main as frame
from seamseg.utils.files import replacing

def run(args):
    with replacing(Path("out")) as temporary:
        temporary.write_text("whole")
{body}

frame.COMMANDS["fake"] = ""
sys.modules["seamseg.cli.fake"] = SimpleNamespace(__doc__="", add_arguments=lambda parser: None, run=run)
sys.argv = ["seamseg", "fake"]
sys.exit(frame.main())
"""


def _in_shell(words: str, body: str, folder: Path) -> tuple[int, str, str, str | None]:
    """Run a command with `words` of a shell; its exit code, what it prints, and the file that it writes, if whole."""
    program = CHILD.format(body="        " + body.replace("\n", "\n        "))
    command = ["bash", "-c", words, "bash", sys.executable, "-c", program]
    # a stream that is not buffered is not flushed at exit
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)
    assert set(os.listdir(folder)) <= {"out"}
    path = folder / "out"
    return done.returncode, done.stdout, done.stderr, path.read_text() if path.exists() else None


@pytest.mark.usefixtures("signals_end")
@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        ('exec "$@"', "SIGTERM", 143),
        ('exec "$@"', "SIGHUP", 129),
        ('exec "$@"', "SIGINT", 130),
        ('exec "$@" 2>/dev/full', "SIGTERM", 143),
        ("trap '' HUP; exec \"$@\"", "SIGHUP", 0),
    ],
)
def test_signals_leave_no_file(words: str, number: str, code: int, tmp_path: Path) -> None:
    done = _in_shell(words, f"os.kill(os.getpid(), signal.{number})", tmp_path)
    said = "seamseg fake: interrupted\n" if code and "full" not in words else ""
    assert done == (code, "", said, None if code else "whole")


@pytest.mark.parametrize(
    ("words", "body", "expected"),
    [
        # as by `| head`
        ('set -o pipefail; "$@" | true', "print('x')", (1, "", "", "whole")),
        # what is printed must not go to the file, which would get the number of the closed stream
        ('"$@" <&- >&- 2>&-', "print('x')\nos.system('echo x')", (0, "", "", "whole")),
        (
            '"$@" >/dev/full',
            "print('x')",
            (
                1,
                "",
                "seamseg fake: standard output or another file: cannot be written: No space left on device\n",
                "whole",
            ),
        ),
        ('PYTHONIOENCODING=ascii "$@"', "print('PQ\u2020')", (0, "PQ\\u2020\n", "", "whole")),
    ],
)
def test_odd_environments(words: str, body: str, expected: tuple, tmp_path: Path) -> None:
    assert _in_shell(words, body, tmp_path) == expected


@pytest.mark.parametrize(
    ("argv", "message", "shown"),
    [
        (
            ["train", "c", "d", "--set", "a.b=1"],
            "`overrides=a.b=1`, `pretrain=body:r50.pth` `evaluate=True`, `split`",
            "--set a.b=1, --pre-train body:r50.pth --eval, `split`",
        ),
        (["prepare", "export", "d", "o"], "`formats=coco` `force=True` `tiles=0`", "--format coco --force `tiles=0`"),
    ],
)
def test_messages_name_flags_in_place_of_parameters(argv, message, shown, monkeypatch, capsys):
    def fail(args):
        warnings.warn(message, stacklevel=1)
        raise InputError(message)

    monkeypatch.setattr(f"seamseg.cli.{argv[0]}.run", fail)
    assert main(argv) == 2
    assert capsys.readouterr().err == f"seamseg: warning: {shown}\nseamseg {argv[0]}: {shown}\n"


def test_flags_of_parameters_exist():
    shown: set[str] = set()
    for name in COMMANDS:
        parser = frame.build_parser([name])
        for words in ([name], [name, "export"]) if name == "prepare" else ([name],):
            chosen = SimpleNamespace(command=name, source=words[-1], action="train")
            shown |= {flag for flag, _ in frame._flags_of(parser, chosen).values()}
    assert shown >= set(frame.PARAMETER_FLAGS.values())


# --- The command line stays as it is: people's scripts call it


def test_the_arguments_of_all_commands() -> None:
    stored = json.loads((DATA / "cli_surface.json").read_text())
    how = "if that is meant: .venv/bin/python tests/support/cli_surface.py > tests/golden/cli_surface.json"
    assert surface() == stored, how
