"""Losses and gradients of instance segmentation against the original's, and the crowd rule of detection."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.golden_files import array, has, numpy_permutation, tensor
from support.golden_weights import golden_state
from support.networks import (
    NUM_STUFF,
    NUM_THING,
    assert_below,
    golden_batch,
    gradient_errors,
    tiny_config,
    toy_batch,
)

from seamseg.config import config_from_string, default_config
from seamseg.models.build import build_network, build_training_module
from seamseg.models.panoptic import Things
from seamseg.ops.boxes import crowd_fraction
from seamseg.panoptic_map import VOID
from seamseg.structures import PackedSequence

FILE = "train_instance_seg"
VARIANTS = json.loads(bytes(array(FILE, "variants")))
FAST = ("sampled_big_crowd",)


def golden_module(kind, overrides=()):
    """The golden weights in a network of a kind; those of a panoptic snapshot that fit."""
    config = config_from_string("", kind, overrides=overrides)
    module = build_training_module(config, NUM_STUFF, NUM_THING)
    for part, state in golden_state().items():
        if (own := getattr(module.net, part)) is not None:
            own.load_state_dict({key: state[key] for key in own.state_dict()})
    return module


def batch_of(variant):
    batch = golden_batch(default_config("instance_seg"))
    categories, iscrowd = batch.categories[0].clone(), batch.iscrowd[0].clone()
    if "no_things" in variant:
        categories[categories >= NUM_STUFF] = 1
        categories[0] = VOID
    if "no_things" in variant or "no_crowd" in variant:
        iscrowd[:] = 0
    if "big_crowd" in variant:
        iscrowd[7] = 1
    return replace(batch, categories=PackedSequence([categories]), iscrowd=PackedSequence([iscrowd]))


class Step:
    """One forward pass of a golden variant, and the backward pass where the original's gradients are known."""

    def __init__(self, variant):
        self.variant = variant
        changes = [f"{s}.{k}={v}" for s, keys in VARIANTS[variant].items() for k, v in keys.items()]
        self.module = golden_module("instance_seg", changes).train(not variant.startswith("eval"))
        options = {"matcher": replace(self.module.net.options.matcher, permutation=numpy_permutation)}
        if variant.startswith("sampled"):
            # near ties decide the order of the proposals, and that which are drawn: draw among the original's
            options["proposals"] = lambda *_: PackedSequence([tensor(FILE, f"{variant}/proposals")])
        net = self.module.net.with_options(**options)
        self.batch = batch_of(variant)
        np.random.seed(0)
        torch.manual_seed(0)
        self.outputs = net(self.batch.images, self.batch)
        self.losses = self.module.criterion(self.outputs, self.batch).means
        self.parameters = dict(self.module.net.named_parameters())

    def stored(self, name):
        return array(FILE, f"{self.variant}/{name}")


@pytest.fixture(scope="module", params=[v if v in FAST else pytest.param(v, marks=pytest.mark.slow) for v in VARIANTS])
def step(request):
    return Step(request.param)


def test_losses(step):
    found = np.array([float(loss.detach()) for loss in step.losses.values()])
    np.testing.assert_allclose(found, step.stored("losses"), rtol=1e-4, atol=1e-6)


def test_anchors_that_count(step):
    torch.manual_seed(0)
    (things,) = Things.of(step.batch, NUM_STUFF)
    matcher, outputs = step.module.criterion.anchor_matcher, step.outputs
    (match,) = matcher.batch(outputs.anchors, [things.boxes], outputs.valid_sizes, [things.crowd])
    if has(FILE, f"{step.variant}/rpn_match_full"):
        np.testing.assert_array_equal(match.numpy(), step.stored("rpn_match_full"))
    else:
        chosen = torch.nonzero(match >= -1).flatten()
        np.testing.assert_array_equal(chosen.numpy(), step.stored("rpn_sel_idx"))
        np.testing.assert_array_equal(match[chosen].numpy(), step.stored("rpn_sel_match"))


def test_samples(step):
    if not has(FILE, f"{step.variant}/roi_proposals"):
        assert step.outputs.rois.samples == [None]
        return
    (sample,) = step.outputs.rois.samples
    wanted = tensor(FILE, f"{step.variant}/roi_proposals")
    distance, order = (sample.boxes[None] - wanted[:, None]).abs().amax(dim=2).min(dim=1)
    assert distance.max() < 0.02
    assert order.sort().values.tolist() == list(range(len(sample.boxes)))
    np.testing.assert_array_equal(sample.match[order].numpy(), step.stored("roi_match"))


def test_running_statistics(step):
    if not step.module.training:
        return
    buffers = dict(step.module.net.named_buffers())
    for name, norm in zip(step.stored("bn_names"), step.stored("bn_norm")):
        assert abs(float(buffers[name].double().norm()) - norm) < 1e-4 * norm, name


def test_gradients(step):
    """Runs last: it frees the graph."""
    if not has(FILE, f"{step.variant}/grad_names"):
        return
    sum(step.losses.values()).backward()
    names, norms, samples = (step.stored(name) for name in ("grad_names", "grad_norm", "grad_sample"))
    of_norms, of_values = gradient_errors(step.parameters, names, norms, samples)
    assert_below(of_norms, 2e-2, 6e-4)
    assert_below(of_values, 0.3, 0.05)
    # where the original has none, ours are 0: a head without regions runs on zero rows
    for name in step.stored("no_grad_names"):
        assert step.parameters[name].grad is None or not step.parameters[name].grad.any(), name


def test_overlap_with_crowd_boxes():
    boxes = torch.tensor([[0.0, 0, 10, 10], [5, 5, 15, 15], [20, 20, 30, 24], [3, 3, 3, 9]])
    crowd = torch.tensor([[0.0, 0, 10, 5], [8, 0, 30, 30]])
    # the crowd that covers most counts, not their union: .5 and .2 of the first box, .0 and .7 of the second
    torch.testing.assert_close(crowd_fraction(boxes[:3], crowd), torch.tensor([0.5, 0.7, 1.0]))
    assert crowd_fraction(boxes[3:], crowd).isnan().all()


def test_detection_excludes_the_boxes_of_crowds_of_things_and_instances_their_masks():
    batch = toy_batch((64, 96), crowd=(0,))
    (boxes,) = Things.of(batch, 2, crowd_boxes=True)
    (masks,) = Things.of(batch, 2)
    assert boxes.crowd.tolist() == [batch.boxes[0][-1].tolist()]
    assert masks.crowd.dtype == torch.bool
    for crowd_boxes, kind in ((True, "detection"), (False, "instance_seg")):
        assert build_network(tiny_config(kind), 2, 4).options.crowd_boxes is crowd_boxes
    # a crowd of stuff, and one without a pixel
    stuff = torch.tensor([0, 1, 0, 0, 1])
    absent = torch.cat([batch.boxes[0][:-1], torch.full((1, 4), -1.0)])
    other = replace(batch, iscrowd=PackedSequence([stuff.byte()]), boxes=PackedSequence([absent]), target_info=None)
    assert Things.of(other, 2, crowd_boxes=True)[0].crowd is None


@pytest.mark.parametrize("kind", ["detection", "instance_seg"])
def test_crowds_without_things_give_losses(kind):
    """The original's detection fails on such an image."""
    module = build_training_module(tiny_config(kind), 2, 4)
    batch = toy_batch((64, 96), (96, 64), crowd=(0, 1))
    only = [torch.tensor([VOID, 0, 1, VOID, 2]), torch.tensor([VOID, 0, 1, VOID, 1])]
    batch = replace(batch, categories=PackedSequence(only), target_info=None)
    if kind == "detection":
        batch = replace(batch, masks=PackedSequence([None, None]))
    losses = module(batch)
    assert tuple(losses.means) == module.criterion.names
    assert losses.means["roi_cls_loss"] == 0
    assert losses.means["obj_loss"] > 0
    sum(losses.means.values()).backward()
    assert all(p.grad is not None for p in module.net.roi_head.parameters())


def test_a_detection_network_has_the_boxes_of_an_instance_segmentation_network():
    """Without a crowd, whose rule differs, its losses are those of the other network, but for the masks."""
    torch.manual_seed(0)
    found, state = {}, {}
    for kind in ("instance_seg", "detection"):
        config = tiny_config(kind, overrides=("rpn.num_samples=100000", "roi.num_samples=10000"))
        module = build_training_module(config, 2, 4).eval()
        if state:
            own = module.net.state_dict()
            module.net.load_state_dict({key: state[key] for key in own})
        state = module.net.state_dict()
        found[kind] = module(toy_batch((64, 96))).means
    del found["instance_seg"]["roi_msk_loss"]
    torch.testing.assert_close(found["detection"], found["instance_seg"])
