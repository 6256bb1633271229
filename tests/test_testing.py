"""The check of components: it passes for the examples, and names what is wrong with others."""

import shutil
from pathlib import Path

import pytest

from seamseg import testing
from seamseg.cli.new import template
from seamseg.config.components import KINDS
from seamseg.maps.prepare.cityscapes import prepare_cityscapes
from seamseg.maps.toy_city import generate_toy_city
from seamseg.testing import check_component
from seamseg.utils.errors import InputError, SeamsegError

pytestmark = pytest.mark.usefixtures("imported")

LAYERS = ["all parameters get gradients, and void images finite losses", "saved weights give the same outputs"]
FIRST = {**dict.fromkeys(("body", "head", "network"), LAYERS), "loss": LAYERS[:1]}


@pytest.fixture(scope="module")
def city(tmp_path_factory):
    folder = tmp_path_factory.mktemp("city")
    generate_toy_city(folder / "raw", 4, 3, size=(64, 128), workers=1)
    prepare_cityscapes(folder / "raw", folder / "data", ("train", "val"))
    return folder / "data"


@pytest.fixture(autouse=True)
def _one_city(city, monkeypatch):
    """Make the city of all checks once: it takes longer than many of them."""
    monkeypatch.setattr(testing, "generate_toy_city", lambda *_, **__: None)
    monkeypatch.setattr(testing, "prepare_cityscapes", lambda raw, out, splits: shutil.copytree(city, out))


@pytest.mark.slow
def test_the_network_of_the_page_of_parts(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "parts.md").read_text(encoding="utf-8")
    path = tmp_path / "parts_page.py"
    path.write_text("\n".join(block.split("```")[0] for block in page.split("```python\n")[1:]))
    assert check_component(path)[-1] == "network parts: writes NAME.jpg"


@pytest.fixture
def file(tmp_path, request):
    """A file with an example, and another one for each replacement."""

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
@pytest.mark.parametrize("kind", KINDS)
def test_the_examples_pass(kind, file):
    lines = check_component(file(kind))
    found = [line.removeprefix(f"{kind} mine: ") for line in lines]
    first = FIRST.get(kind, [])
    assert found[: len(first)] == first
    del found[: len(first)]
    written = "NAME_mine.png" if kind in ("head", "format") else "NAME.jpg"
    assert found == ["a resumed training has the same weights, to the bit", f"writes {written}"]


def test_errors_name_component_and_file(file):
    path = file("scheduler", error=("max(1, total)", "max(1, totals)"))
    with pytest.raises(SeamsegError, match=r"scheduler mine, .*\.py line 19: NameError: name 'totals' is not") as error:
        check_component(path)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_state_that_is_not_saved(file):
    old = 'self.state[p].setdefault("momentum", torch.zeros_like(p))'
    new = 'vars(self).setdefault("momenta", {}).setdefault(p, torch.zeros_like(p))'
    with pytest.raises(
        AssertionError, match=r"optimizer mine \(.*\.py\): a resumed training has other weights"
    ) as error:
        check_component(file("optimizer", wrong=(old, new)))
    assert "\n" not in str(error.value)


LOGITS = "self.output(self.norm(self.hidden(features.levels[0])))"
STAGE, OUTPUT = "self.add_module(name, stage)", "self.output = nn.Conv2d"
MISTAKES = {
    "layer that is not used": (
        "body",
        {STAGE: f"{STAGE}\n            self.extra = nn.Conv2d(3, 4, 1)"},
        "2 of 26 parameters get no gradient, first extra.weight: use",
    ),
    "parameters in a list": (
        "head",
        {OUTPUT: f"self.scale = [nn.Parameter(torch.rand(1))]\n        {OUTPUT}", LOGITS: f"self.scale[0] * {LOGITS}"},
        "mine of image 0 differs after the saved .*ParameterList",
    ),
    "mean of void": ("network", {".clamp(min=1)": ""}, "mine_loss is nan for images that are void: ret"),
    "map that is NaN": (
        "head",
        {'outputs["mine"].sigmoid()': 'outputs["mine"] * float("nan")'},
        "mine of image 0 is not finite in evaluation mode",
    ),
    "lost groups": ("optimizer", {"(groups, {})": "(groups[:1], {})"}, "57 of 131 parameters are in no group"),
    "detached loss": ("loss", {"image.cross_entropy": "image.cross_entropy.detach()"}, "parameters get no gradient"),
}


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [pytest.param(*m, id=name) for name, m in MISTAKES.items()],
)
def test_mistakes_that_need_no_training(kind, changes, message, file, monkeypatch):
    channels = "out_channels = {'mod1': 64, 'mod2': 8, 'mod3': 16, 'mod4': 16, 'mod5': 16}"
    body = "" if kind == "body" else f"[body]\n{channels}"
    monkeypatch.setattr(testing, "_TINY", testing._TINY.replace("[body]", body or "[body]"))
    with pytest.raises((AssertionError, SeamsegError), match=message) as error:
        check_component(file(kind, **{str(number): change for number, change in enumerate(changes.items())}))
    assert "\n" not in str(error.value)


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


def test_keys_of_the_configuration(file):
    with pytest.raises(InputError, match="num_frozen: mine has 4 modules, not 5"):
        check_component(file("body"), keys={"body.num_frozen": 5, "channels": 8})
