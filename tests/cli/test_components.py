"""The command that lists components."""

from support.components import LION


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
    assert (
        "head: head of the network, with losses and output maps; added by a section [head NAME], or by its file"
        in lines
    )
    assert seamseg_main("components", "--kind", "loss") == 0
    out = capsys.readouterr().out
    assert out.startswith("loss: ")
    assert "  max_pooling (seamseg.contrib.recipes.max_pooling)" in out
    assert "optimizer" not in out
    assert seamseg_main("components", "--kind", "body") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "resnet50" in line]
    assert line.startswith("  densenet121, densenet169, "), "one line for a family"
    assert line.endswith("wider_resnet38_a2 (built in): Backbones of the original, and ResNets, see `build_backbone`.")
