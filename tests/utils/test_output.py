"""Texts of others reach a terminal only with control characters as escapes."""

import ast
from pathlib import Path

import pytest

import seamseg
from seamseg.training.logging.reporter import TextLog
from seamseg.utils.errors import InputError, one_line, printable
from seamseg.utils.output import echo, warn
from seamseg.utils.progress import progress

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
