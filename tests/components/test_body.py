"""A body of the user: trained, resumed, predicted with, exported, and refused where it breaks its own declaration."""

import pytest
from PIL import Image
from support.components import assert_refused, component_file, forget

import seamseg
from seamseg.cli.new import template
from seamseg.training.run import run_training
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("imported")

TINY = template("body", "tiny").replace("  # name of each map", "; pretrained = True  # name of each map")
# values of tensors, and a tensor that is no buffer: models are opened on the meta device, which has neither
for old, new in (
    ("from torch import nn", "import torch; from torch import nn"),
    (
        "width, channels = 3, keys.channels",
        "width, channels, self.one = 3, int(torch.ones(1)) * keys.channels, torch.ones(1)",
    ),
    ("maps = {}", "maps, x = {}, x * self.one"),
):
    assert old in TINY
    TINY = TINY.replace(old, new)

OTHER = ":\n    def __new__(*_):\n        return nn.Identity()\n"
file, options = component_file("my_tiny.py", TINY, "body.body=tiny")


def test_a_network_with_it_is_trained_and_predicts(options, file, tmp_path):
    run_training(options("run", "body tiny.channels=6", "body.num_frozen=1", "scheduler.epochs=1"))
    model = seamseg.load(tmp_path / "run", device="cpu", overrides=[f"general.components={file}"])
    assert model.network.net.body.backbone.out_channels == {"c2": 6, "c3": 12, "c4": 24, "c5": 48}
    assert model.predict(Image.new("RGB", (97, 63))).id_map.shape == (63, 97)
    forget("my_tiny")
    with pytest.raises(InputError, match=r"body tiny \(my_tiny.py\) is not imported: name its file with"):
        seamseg.load(tmp_path / "run", device="cpu")


@pytest.mark.parametrize(
    ("old", "new", "overrides", "message"),
    [
        ("(Body):", OTHER, (), r"\(.*my_tiny.py\): must be a class derived from .*Body"),
        ("super().__init__(keys, context)\n", "super().__init__(keys, context)\n        1 / 0\n", (), "line 25: Zero"),
        ("return maps", "return maps['c2']", (), "body tiny, .*my_tiny.py: .*must return a dict of maps"),
        ('"c3": 8', '"c3": 16', (), r"of 3 x 191 x 257 are .*'c3': \(64, 24, 33\).* declare .*'c3': \(64, 12, 17\)"),
        (
            "step, padding=1",
            "step, padding=2 // step",
            (),
            r"191 x 257 are {'c2': \(32, 48, 64\), .* declare {'c2': \(32, 48, 65\)",
        ),
        ("self.out_channels[name] =", "self.out_channels['c2'] =", (), r"declare .*'c3': \(None, 24, 33\)"),
        ("", "", ("body.num_frozen=5",), "num_frozen: tiny has 4 modules, not 5"),
        ("", "", ("body.body_params={'a': 1}",), r"body_params has no effect on tiny: set keys of \[body tiny\]"),
        ("", "", ("general.checkpoint_body=yes",), "checkpoint_body: tiny does not support it"),
        ("", "", ("optimizer.layer_decay=.5",), "layer_decay: tiny does not number its layers"),
        ("", "", ("body.weights=timm",), "tiny is not a timm network"),
    ],
)
def test_what_is_refused(old, new, overrides, message, options, file):
    assert_refused(options("run", *overrides), message, file, old, new, InputError)
