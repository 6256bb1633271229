"""Losses of boxes and refinements of masks by the user: trained, resumed, predicted, exported, left out."""

from __future__ import annotations

import re

import pytest
import torch
from PIL import Image
from support.components import component_file, forget

import seamseg
from seamseg.cli.new import template
from seamseg.config import load_config
from seamseg.models.build import build_network
from seamseg.models.heads.box_loss import BoxSamples, ImageBoxes, MatchedImage
from seamseg.training.run import run_training

pytestmark = pytest.mark.usefixtures("imported", "narrow")

CHOSEN = ("roi.mask_refinement=own", "roi.box_loss=own", "mask_refinement own.channels=4", "box_loss own.weight=2")
TEXT = "\n\n".join(template(kind, "own").replace("Own", kind.title()) for kind in ("box_loss", "mask_refinement"))
file, options = component_file("my_masks.py", TEXT, *CHOSEN)


def test_a_network_with_them_is_trained_and_predicts(options, file, tmp_path):
    run = tmp_path / "run"
    run_training(options("run", "scheduler.epochs=1"))
    model = seamseg.load(run, device="cpu", overrides=[f"general.components={file}"])
    net = model.network.net
    assert net.roi_head.refinement.output.weight.abs().sum() > 0, "it starts with 0, and is trained"
    assert model.predict(Image.new("RGB", (97, 63))).id_map.shape == (63, 97)
    # a model opens without the refinement
    forget("my_masks")
    with pytest.warns(UserWarning, match=r"mask_refinement own \(my_masks.py\) is not imported: name its file"):
        model = seamseg.load(run, device="cpu")
    assert model.network.net.roi_head.refinement is None
    assert model.predict(Image.new("RGB", (97, 63))).id_map.shape == (63, 97)


def test_what_a_loss_of_boxes_is_given(options, micro_config):
    config = load_config(micro_config, None, options("loss").overrides)
    assert build_network(config, 2, 1).roi_head.refinement.hidden.out_channels == 4
    component, keys = config.component("box_loss")
    assert keys.weight == 2
    boxes, nothing = torch.tensor([[0.0, 0, 20, 30], [4, 4, 12, 12]]), torch.tensor([], dtype=torch.long)
    cut = torch.tensor([[False] * 4, [True, False, False, True], [True] * 4])
    crop, whole = ImageBoxes(boxes, (20, 30), torch.tensor([1, 2]), cut), ImageBoxes(None, (20, 30), nothing, None)
    first = MatchedImage(torch.rand(3, 4), torch.tensor([1, -1, 0]), crop)
    second = MatchedImage(torch.rand(2, 4), torch.tensor([-1, -1]), whole)
    samples = BoxSamples(torch.zeros(5, 4), torch.zeros(5, 4), [first, second], 1.0)
    assert torch.equal(samples.boxes, torch.cat((first.samples, second.samples)))
    assert torch.equal(samples.targets[:3], boxes[[1, 0, 0]])
    assert torch.equal(samples.targets[3:], second.samples)
    # only sides on the border of the crop, of things whose image continues there
    assert samples.cut.tolist() == [[False] * 4, *[[True, False, False, True]] * 2, *[[False] * 4] * 2]
    assert component.make(samples, keys).shape == (5,)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hull = outside", "hull = nowhere", "box_loss own, .*my_masks.py line .*NameError"),
        ("logits, boxes = outputs", "logits, boxes, more = outputs", "mask_refinement own, .*py line .*ValueErr"),
        (
            "refine(self, regions):",
            "refine(self, regions):\n        return regions.coarse[:1]",
            "must be 2 x h x w, is 1",
        ),
        ("(MaskRefinement):", "(nn.Module):", r"mask_refinement own"),
        (
            "return plain.sum(dim=1) + keys.weight * (1 - iou)",
            "return plain.mean()",
            r"box_loss own \(.*my_masks.py\): must return \d+ or \d+ x 4 numbers, returned a scalar",
        ),
    ],
)
def test_the_command_names_the_component_of_an_exception(options, file, seamseg_main, capsys, old, new, message):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    run = options("broken")
    words = ["--device", "cpu", *(word for override in run.overrides for word in ("--set", override))]
    assert seamseg_main("train", run.config, run.data, "--log-dir", run.log_dir, *words) != 0
    assert re.search(message, capsys.readouterr().err.strip().splitlines()[-1])
