"""Messages name parameters in Python and flags on the command line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import seamseg
from seamseg.config import config_from_string
from seamseg.utils.errors import InputError, one_line
from seamseg.utils.files import nearest_path

PACKAGE = Path(seamseg.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z]")
COMMAND = re.compile(r"`(?:seamseg|torchrun) [^`]*`|\(docker [^)]*\)|pip install [^`]*")
"""A whole command, whose flags need no parameter."""


def texts(tree):
    """Yield line and text of the literals of a module; the values of f-strings are left out."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def flags_in(path):
    found = []
    for line, text in texts(ast.parse(path.read_text(encoding="utf-8"))):
        found += [
            f"{path.relative_to(PACKAGE)}:{line}: {m.string[m.start() :][:40]}"
            for m in FLAG.finditer(COMMAND.sub("", text))
        ]
    return found


def test_the_library_names_no_flag():
    # `doctor` recommends options of commands, `python -m seamseg.testing` is one
    apart = {"cli", "doctor", "testing.py"}
    files = [path for path in PACKAGE.rglob("*.py") if not apart & set(path.relative_to(PACKAGE).parts)]
    assert len(files) > 100
    assert [found for path in files for found in flags_in(path)] == []


def test_flags_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    path = tmp_path / "module.py"
    path.write_text('A = f"{x}: use --resume {x}; `seamseg train --resume`"\nB = "human--person, docker --shm-size"\n')
    assert flags_in(path) == ["module.py:1: --resume {}; ", "module.py:2: --shm-size"]


def test_texts_of_files_in_messages():
    """No escape sequence reaches a terminal, and no text of any length."""
    assert str(InputError("a\x1b]0;title\x07\x9b2J\r.jpg: truncated")) == r"a\x1b]0;title\x07\x9b2J\r.jpg: truncated"
    assert str(InputError("straße\t\u732b\nb")) == "straße\t\u732b\nb"
    assert str(InputError("caf\udce9 " + "x" * 5000 + " end")) == rf"caf\udce9 {'x' * 150}...{'x' * 150} end"
    assert len(str(InputError("a b " * 5000))) < 2100
    assert one_line(InputError("a\n\tb\x1b")) == r"a b\x1b"


@pytest.mark.parametrize(
    "text",
    [
        "[general]\nkind = {}",
        "[general]\n{} = 1",
        "[general]\n{0} = 1\n{0} = 2",
        "[{}]\nkind = panoptic",
        "[{0}]\na = 1\n[{0}]",
        "[general]\nkind = panoptic\nlog_interval = {}",
        "[body]\nbody = {}",
        "[body]\nnormalization_mode = {}",
        '[body]\nbody = resnet18\nbody_params = {{"dilation": "{}"}}',
        "{}",
    ],
)
@pytest.mark.parametrize("value", ["x" * 60_000, "x y " * 15_000])
def test_a_configuration_of_any_text_is_a_short_message(text, value):
    with pytest.raises(InputError) as found:
        config_from_string(text.format(value))
    assert len(str(found.value)) < 1000
    assert max(map(len, re.findall("(?:x y |x)+", str(found.value))), default=0) <= 300


def test_a_similar_path_is_not_searched_in_a_huge_folder(tmp_path, monkeypatch):
    """Among a million names the search would take a minute."""
    names = [f"street{i}.jpg" for i in range(100)]
    monkeypatch.setattr("os.listdir", lambda folder: names)
    assert nearest_path(tmp_path / "stret7.jpg") == f"; did you mean {tmp_path / 'street7.jpg'}?"
    names *= 200
    assert nearest_path(tmp_path / "stret7.jpg") == ""
