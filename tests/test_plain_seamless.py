"""examples/plain_seamless.py computes what the network computes, in both variants."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from seamseg.config import load_config
from seamseg.fusion import fuse
from seamseg.models.build import build_training_module
from seamseg.structures import PackedSequence

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("benchmarks", "examples")]

import plain_seamless as plain
import street

# one side of the window is even, one odd, and the coarse levels are smaller than it
CONFIG = load_config("toy_city_r18", overrides=["sem.pooling_size=(8, 5)"])


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    made = build_training_module(CONFIG, street.CITYSCAPES.num_stuff, street.CITYSCAPES.num_thing)
    # things are found
    torch.nn.init.constant_(made.net.roi_head.roi_cls.bias[1:4], 1.0)
    # in float32 rounding decides about overlaps next to a threshold
    return made.double()


@pytest.mark.parametrize("separated", [False, True])
def test_predictions_agree(module, separated):
    net = module.net.eval()
    image = street.smooth(64, 96, (8, 12))
    ours, peer = (n.predict(PackedSequence([image]))[0] for n in (net, plain.plain_network(net, separated)))
    assert len(ours.boxes) == CONFIG.roi.max_predictions
    torch.testing.assert_close(peer.boxes.float(), ours.boxes, rtol=0, atol=1e-3)
    assert torch.equal(peer.classes, ours.classes)
    torch.testing.assert_close(peer.scores.float(), ours.scores, rtol=0, atol=1e-5)
    torch.testing.assert_close(peer.mask_logits.float(), ours.mask_logits, rtol=1e-4, atol=1e-4)
    assert (peer.semantic != ours.semantic).float().mean() < 1e-3


def test_fused_maps_agree(module):
    generator = torch.Generator().manual_seed(0)
    found = module.net.eval().predict(PackedSequence([street.smooth(64, 96, (8, 12))]))[0]
    masks = torch.randn(found.mask_logits.shape, generator=generator)
    scores = torch.rand(found.scores.shape, generator=generator)
    prediction = replace(found, mask_logits=masks, scores=scores).on_cpu()
    ours, peer = fuse(prediction, 11, min_stuff_area=64), plain.plain_fusion(prediction, 11, min_stuff_area=64)
    assert len(ours.categories) > 5
    assert peer.categories == ours.categories
    assert peer.iscrowd == ours.iscrowd
    assert peer.scores == pytest.approx(ours.scores)
    assert (peer.ids != ours.ids).mean() < 1e-3


@pytest.mark.parametrize("separated", [False, True])
def test_losses_and_gradients_agree(module, separated):
    batch = street.street([street.smooth(64, 128, (8, 16))], street.CITYSCAPES)
    found = []
    for side in (module.train(), plain.PlainTrainingModule(module, separated)):
        torch.manual_seed(1)
        losses = side(batch)
        layers = (side.net.body.backbone.mod5.block1.convs.conv1, side.net.roi_head.roi_cls, side.net.rpn_head.conv1)
        gradients = torch.autograd.grad(sum(losses.means.values()), [layer.weight for layer in layers])
        found.append((losses, gradients))
    (ours, expected), (peer, gradients) = found
    assert peer.means.keys() == ours.means.keys()
    for name, loss in ours.means.items():
        # one pixel of a mask target may fall on the other side of an edge
        assert peer.means[name].item() == pytest.approx(loss.item(), rel=1e-2), name
        assert peer.counts[name] == ours.counts[name], name
    for mine, theirs in zip(expected, gradients):
        assert (mine - theirs).abs().max() < 1e-3 * mine.abs().max()
