"""Templates of components, complete files that are registered under the given name; and the list of components."""

from dataclasses import fields

import pytest
from support.components import LION

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


def test_lists_built_in_components_and_those_of_files(seamseg_main, tmp_path, capsys, imported):
    file = tmp_path / "my_lion.py"
    file.write_text(LION)
    assert seamseg_main("components", "--components", file) == 0
    own = capsys.readouterr().out
    assert "sgd" not in own
    assert seamseg_main("components") == 0
    lines = (own + capsys.readouterr().out).splitlines()
    assert "optimizer: updates the weights; chosen by [optimizer] type = NAME" in lines
    assert any(line.startswith("  sgd (built in): Return SGD") for line in lines)
    assert f"  lion ({file}): The sign of an average of the gradients (arXiv 2302.06675)." in lines
    assert "    beta1 = 0.9    weight of the momentum in an update" in lines
    assert seamseg_main("components", "--kind", "loss") == 0
    out = capsys.readouterr().out
    assert out.startswith("loss: ")
    assert "  max_pooling (seamseg.contrib.recipes.max_pooling)" in out
    assert "optimizer" not in out
    assert seamseg_main("components", "--kind", "body") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "resnet50" in line]
    assert line.startswith("  densenet121, densenet169, "), "one line for a family"
    assert line.endswith("wider_resnet38_a2 (built in): Backbones of the original, and ResNets, see `build_backbone`.")
