"""Templates of components: complete files that are registered under the given name."""

from __future__ import annotations

from dataclasses import fields

import pytest

from seamseg.cli.new import example
from seamseg.config import components
from seamseg.config.components import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_registers_the_component(kind, seamseg_main, tmp_path, monkeypatch, capsys, imported):
    monkeypatch.chdir(tmp_path)
    assert seamseg_main("new", kind, f"template_{kind}") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"template_{kind}.py: {kind} template_{kind}; next:"
    command = out[1].split()
    assert command[:2] == ["seamseg", "predict" if kind == "format" else "train"]
    assert command[command.index("--components") + 1] == f"template_{kind}.py"
    assert out[2] == f"  python -m seamseg.testing template_{kind}.py"
    text = (tmp_path / f"template_{kind}.py").read_text()
    old, _ = example(kind)
    assert old not in text
    assert old.replace("_", "") not in text.lower()
    assert len(text.splitlines()) < 60
    components.load([f"template_{kind}.py"])
    found = components.find(kind, f"template_{kind}")
    camel = "".join(word.capitalize() for word in f"template_{kind}".split("_"))
    assert found.make.__name__ in (camel, f"template_{kind}")
    assert found.section in found.keys.__doc__
    assert fields(found.keys), "its keys show how they are declared"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("head", "Edge"), "head 'Edge': a name has lower-case letters, digits and underscores"),
        (("loss", "lambda"), "loss lambda: is a keyword of Python; choose another name"),
        (("loss", "torch"), "torch.py: another module has this name, or it is not one; choose another file with --out"),
        (("loss", "mine", "--out", "mine.txt"), "--out mine.txt: must end with .py"),
    ],
)
def test_mistakes(words, message, refused, tmp_path):
    assert message in refused("new", *words)
    assert list(tmp_path.iterdir()) == []
    out = tmp_path / "edge.py"
    out.write_text("mine")
    assert f"{out}: exists already; choose another file with --out" in refused("new", "head", "edge", "--out", out)
    assert out.read_text() == "mine"
