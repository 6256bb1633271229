"""The check of components: it passes for the templates, and names what is wrong with others."""

from __future__ import annotations

import pytest
from support.components import DEPTH

from seamseg.cli.new import TEMPLATES, template
from seamseg.testing import check_component, main
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.usefixtures("imported")

EXPORTS = "exports to ONNX, which gives the same for an image"
TOO = {
    **{kind: [EXPORTS] for kind in ("body", "mask_refinement", "roi_head", "rpn_head", "semantic_head")},
    "head": [EXPORTS, "writes NAME_mine.png, also in shards; the model opens without it, with a warning"],
    "format": ["writes NAME_mine.png, also in shards"],
    "metric": ["two processes give the same mine_error as one"],
    "callback": ["its state is restored"],
    "scheduler": ["its factors are numbers from 0"],
}
"""Lines of a kind, besides those of all kinds."""


@pytest.fixture
def file(tmp_path, request):
    """A file with a template, and another one for each replacement."""

    def write(kind, **replaced):
        path = tmp_path / f"check_{kind}_{request.node.name[:4]}{len(list(tmp_path.iterdir()))}.py"
        text = template(kind, "mine")
        for old, new in replaced.values():
            assert text.count(old) >= 1
            text = text.replace(old, new)
        path.write_text(text)
        return path

    return write


@pytest.mark.slow
@pytest.mark.parametrize("kind", TEMPLATES)
def test_the_templates_pass(kind, file):
    lines = check_component(file(kind))
    dtypes = [f"trains two steps on two processes ({dtype})" for dtype in ("bfloat16", "float32")]
    found = [line.removeprefix(f"{kind} mine: ") for line in lines]
    assert found[0] == "a resumed training has the same weights, to the bit"
    assert found[1] in dtypes
    views = " and in tiles" if kind == "network" else ", in tiles and mirrored"
    assert found[2:] == [f"predicts an image as a whole{views}", *TOO.get(kind, [])]


def test_errors_name_component_and_file(file):
    path = file("scheduler", error=("max(1, total)", "max(1, totals)"))
    with pytest.raises(SeamsegError, match=r"scheduler mine, .*\.py line 19: NameError: name 'totals' is not") as error:
        check_component(path)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "old", "new", "message"),
    [
        (
            "metric",
            "return self.counts",
            "return self.counts / max(1, self.counts[1])",
            "on two: state.. must be a sum",
        ),
        (
            "optimizer",
            'self.state[p].setdefault("average", torch.zeros_like(p))',
            'vars(self).setdefault("averages", {}).setdefault(p, torch.zeros_like(p))',
            "optimizer mine: a resumed training has other weights, first ",
        ),
        ("augmentation", "rng.uniform(-keys.strength, keys.strength)", "np.random.uniform(-0.9, 0)", "first body.*RNG"),
        ("callback", 'self.best, self.waited = state["best"], state["waited"]', "pass", "does not restore what state_"),
        ("callback", 'scores.get("PQ", 0.0)', 'scores["AP"]', "again, .*line .*: KeyError: 'AP'"),
    ],
)
def test_mistakes(kind, old, new, message, file):
    with pytest.raises((AssertionError, SeamsegError), match=message) as error:
        check_component(file(kind, wrong=(old, new)))
    assert "\n" not in str(error.value)


def test_a_misspelt_method(file):
    message = r"callback mine: it has a method validate, which nothing calls.* validated"
    with pytest.raises(AssertionError, match=message):
        check_component(file("callback", old=("def validated(", "def validate(")))


def test_what_is_not_there(file):
    path = file("loss")
    with pytest.raises(InputError, match=r"registers no head$"):
        check_component(path, "head")
    with pytest.raises(InputError, match=r"registers no loss other$"):
        check_component(path, "loss", "other")
    with pytest.raises(InputError, match=r"none\.py: no such file"):
        check_component("none.py")
    with pytest.raises(InputError, match=r"none\.zip: no such file or folder"):
        check_component(path, data="none.zip")


@pytest.mark.slow
def test_heads_that_read_maps(tmp_path):
    """The maps are made."""
    path = tmp_path / "check_depth.py"
    text = DEPTH.replace("fill=-1)", "fill=-1, optional=True)")
    # some batches have no ground truth
    text = text.replace(".log1p())", '.log1p(), reduction="sum") / valid.sum().clamp(min=1)')
    path.write_text(text)
    assert any("writes NAME_depth.png" in line for line in check_component(path))


def test_help_and_wrong_options(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(option in out for option in ("--kind", "--name", "--set", "--data", "--not-deterministic"))
    with pytest.raises(SystemExit) as stop:
        main(["a.py", "--set", "channels"])
    assert stop.value.code == 2
    (tmp_path / "check_none.py").write_text("")
    assert main([str(tmp_path / "check_none.py"), "--kind", "head", "--name", "x"]) == 2
    assert capsys.readouterr().err.strip().endswith("registers no head x")
    assert main([str(tmp_path / "none.py")]) == 2
