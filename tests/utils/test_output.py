"""Texts of others are printed with control characters as escapes; progress as lines, as a bar, or not at all."""

import ast
import sys
from pathlib import Path

import pytest
import tqdm.std

import seamseg
from seamseg.training.logging.reporter import TextLog
from seamseg.utils import progress as module
from seamseg.utils.errors import InputError, one_line, printable
from seamseg.utils.output import console, echo, warn
from seamseg.utils.progress import counter, progress

PACKAGE = Path(seamseg.__file__).parent
ALONE = ("utils/output.py", "utils/native.py", "utils/progress.py", "training/logging/reporter.py")
"""The functions themselves, the bar and the log, which are tested below, and a file that setup.py runs alone."""
RAW = ("warnings.warn", "warnings.warn_explicit", "traceback.print_", "sys.stdout.write", "sys.stderr.write")
HOSTILE = "a\x1b]0;x\x07\x9b2J\u202egpj\u2066\u200b\U000e0041"
SHOWN = r"a\x1b]0;x\x07\x9b2J\u202egpj\u2066\u200b\U000e0041"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_nothing_else_prints(path):
    if path.relative_to(PACKAGE).as_posix() in ALONE:
        return
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = ast.unparse(node)
            if name in ("print", "tqdm", "pprint") or name.startswith(RAW) or name.endswith("StreamHandler"):
                found.append(f"{path}:{node.lineno}: {name}: use `echo` or `warn` of seamseg.utils.output")
    assert not found


def test_escapes():
    assert printable(HOSTILE) == SHOWN
    kept = "straße\t\u732b\n\u05d0 \u0645\u06cc\u200c\u062e\u0648 \U0001f468\u200d\U0001f469 \u2602\ufe0f"
    assert printable(kept) == kept == str(InputError(kept))
    assert str(InputError("caf\udce9 " + "x" * 5000 + " end")) == rf"caf\udce9 {'x' * 150}...{'x' * 150} end"
    assert len(str(InputError("a b " * 5000))) < 2100
    assert one_line(InputError("a\n\tb\x1b")) == r"a b\x1b"


def test_every_way_out(tmp_path, capsys):
    echo(HOSTILE, 1, sep=HOSTILE)
    list(progress([1], desc=f"{HOSTILE}\n{HOSTILE}"))
    log = TextLog(tmp_path / "log.txt")
    log.info(HOSTILE)
    log.progress(HOSTILE)
    log.close()
    with pytest.warns(UserWarning, match="b") as caught:
        warn(f"{HOSTILE}\nb")
    assert (str(caught[0].message), caught[0].filename) == (f"{SHOWN} b", __file__)
    printed = capsys.readouterr()
    assert printed.out == f"{SHOWN}{SHOWN}1\n"
    assert printed.err.splitlines()[-2:] == [SHOWN, SHOWN]
    assert (tmp_path / "log.txt").read_text().endswith(f" {SHOWN}\n")
    assert printable(printed.err) == printed.err


def lines(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


@pytest.mark.parametrize(
    ("items", "options", "shown"),
    [
        (range(1000), {"desc": "images"}, ["images: 1000/1000 ("]),
        (iter(range(5)), {"desc": "images"}, ["images: 5 ("]),
        (iter(range(5)), {"total": 5}, ["5/5 ("]),
        ([], {"desc": "images"}, []),
    ],
)
def test_fast_work_is_one_line(items, options, shown, capsys):
    list(progress(items, **options))
    found = lines(capsys)
    assert len(found) == len(shown)
    assert all(line.startswith(start) for line, start in zip(found, shown))


def test_slow_work_prints_lines_with_the_time_left(capsys, monkeypatch):
    now = 0.0
    monkeypatch.setattr(tqdm.std, "time", lambda: now)
    monkeypatch.setattr(module, "LINE_SECONDS", 15.0)
    for _ in progress(range(10), desc="images"):
        now += 4.0
    assert lines(capsys) == [
        "images: 4/10 (0.2/s, 24 s left)",
        "images: 8/10 (0.2/s, 8 s left)",
        "images: 10/10 (0.2/s)",
    ]


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(progress(range(3), desc="images")) == [0, 1, 2]
    assert "3/3" in capsys.readouterr().err


@pytest.mark.parametrize("quiet", [True, False])
def test_work_that_reports_itself(quiet, capsys):
    console.quiet = quiet
    report = counter("scenes")
    for done in (1, 2, 3):
        report(done, 3)
    printed = lines(capsys)
    assert printed == [] if quiet else printed[-1].startswith("scenes: 3/3 (")
    assert list(progress(range(3))) == [0, 1, 2]
    assert bool(lines(capsys)) != quiet
