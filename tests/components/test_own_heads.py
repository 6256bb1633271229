"""Heads of the user in place of RPN, ROI and semantic head: trained, resumed, exported, refused if they are wrong."""

from __future__ import annotations

import pytest
from PIL import Image
from support.components import assert_refused, component_file, forget
from support.interruptions import result, signals_at, train_until_done

import seamseg
from seamseg.cli.new import template
from seamseg.config import load_config
from seamseg.models.build import build_network
from seamseg.models.heads.roi import ROIHead
from seamseg.training.run import run_training
from seamseg.utils.errors import InputError

pytestmark = pytest.mark.usefixtures("imported", "narrow")

CHOSEN = {"semantic_head": "sem.head", "rpn_head": "rpn.head", "roi_head": "roi.head"}
OVERRIDES = [f"{key}=own" for key in CHOSEN.values()] + [f"{kind} own.channels=8" for kind in CHOSEN]
BODY = ("body.body=own", "body own.channels=6")
TEXT = "\n\n".join(template(kind, "own").replace("Own", kind.title()) for kind in (*CHOSEN, "body"))
file, options = component_file("my_three_heads.py", TEXT, *OVERRIDES)


def test_networks_with_them_are_trained_resumed_and_predict(options, file, tmp_path):
    run_training(options("straight", *BODY))
    with signals_at([3, 5]):
        assert train_until_done(options("stopped", *BODY, resume="auto")) == 2
    assert result(tmp_path / "stopped") == result(tmp_path / "straight")
    run = tmp_path / "straight"
    model = seamseg.load(run, device="cpu", components=file)
    assert model.network.net.roi_head.classes.in_features == 8
    assert not isinstance(model.network.net.roi_head, ROIHead)
    assert model.predict(Image.new("RGB", (97, 63))).id_map.shape == (63, 97)
    forget("my_three_heads")
    with pytest.raises(InputError, match=r"own \(my_three_heads.py\) is not imported"):
        seamseg.load(run, device="cpu")


def test_detection_has_no_masks(component_options, file, tmp_path):
    chosen = [override for override in OVERRIDES if "sem" not in override]
    run_training(component_options(file, "boxes", *chosen, "general.kind=detection", "scheduler.epochs=1"))
    model = seamseg.load(tmp_path / "boxes", device="cpu", overrides=[f"general.components={file}"])
    assert not hasattr(model.network.net.roi_head, "mask")


def test_initial_weights_are_those_of_the_head(options, micro_config):
    net = build_network(load_config(micro_config, None, options("run").overrides), 11, 8)
    assert net.roi_head.codes.weight.std() < 0.002
    config = load_config(micro_config, None, options("run", "general.qat=yes").overrides)
    with pytest.raises(InputError, match=r"\[rpn_head own\]: \[general\] qat quantises no custom heads"):
        build_network(config, 11, 8)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("class Roi_Head(RegionHead):", "class Roi_Head(nn.Module):", "roi_head own.*TypeError"),
        ("(self.hidden(total))", "(self.hidden(total) / nothing)", "semantic_head own, .* line"),
        ("x = self.hidden(x.mean((2, 3))).relu()", "x = self.hidden(x).relu()", "roi_head own, .* line .*RuntimeError"),
        ("for x in levels:", "for x in levels + 1:", "rpn_head own, .* line .*TypeError"),
        (
            "nn.ConvTranspose2d(keys.channels, context.num_thing, 2, stride=2)",
            "nn.Conv2d(keys.channels, 1, 1)",
            "1 x 14",
        ),
        (
            ".reshape(x.shape[0], self.num_things, 4)",
            "",
            "roi_head own, .*: the box codes .* must be 3 x 1 x 4, is 3 x",
        ),
        ("context.num_stuff + context.num_thing", "context.num_stuff", "semantic_head own, .*the logits must be"),
        ("codes, dim=1), shapes", "codes, dim=1), shapes[1:]", "rpn_head own, .*the sizes of . levels are returned"),
    ],
)
def test_an_exception_names_the_head(options, file, old, new, message):
    assert_refused(options("broken"), message, file, old, new)
