"""Losses, gradients and running statistics against the original with the same weights."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.golden_files import array, has, numpy_permutation, tensor
from support.golden_weights import golden_state, sample_positions
from support.networks import (
    CITYSCAPES,
    NUM_STUFF,
    NUM_THING,
    assert_below,
    assert_order,
    golden_batch,
    gradient_errors,
)

from seamseg.config import config_from_string, load_config
from seamseg.maps.panoptic_map import VOID
from seamseg.models.build import build_training_module
from seamseg.ops.boxes import clip_boxes, decode_boxes
from seamseg.structures import PackedSequence, Things

PANOPTIC, INSTANCES = "train", "train_instance_seg"
VARIANTS = {file: json.loads(bytes(array(file, "variants"))) for file in (PANOPTIC, INSTANCES)}
FAST = ((PANOPTIC, "sampled"), (INSTANCES, "sampled_big_crowd"))
NEAR_ZERO = {f"sem_head.output.{i}.conv1_glb.weight" for i in (1, 2, 3)}
"""Their true gradient is nearly 0 in training mode: what is computed is rounding."""


def golden_module(file, variant):
    """The network of a variant and its losses, with those of the golden weights that fit."""
    changes = [f"{s}.{k}={v}" for s, keys in VARIANTS[file][variant].items() for k, v in keys.items()]
    if file == PANOPTIC:
        config = load_config(CITYSCAPES, overrides=changes)
    else:
        config = config_from_string("", "instance_seg", overrides=changes)
    module = build_training_module(config, NUM_STUFF, NUM_THING)
    for part, state in golden_state().items():
        if (own := getattr(module.net, part)) is not None:
            own.load_state_dict({key: state[key] for key in own.state_dict()})
    return config, module.train(not variant.startswith("eval"))


def batch_of(variant, config):
    batch = golden_batch(config)
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

    def __init__(self, file, variant):
        self.file, self.variant = file, variant
        config, self.module = golden_module(file, variant)
        options = {"proposal_matcher": replace(self.module.net.options.proposal_matcher, permutation=numpy_permutation)}
        if variant.startswith("sampled"):
            # a draw follows the order of the proposals, which near ties decide: sample among the original's
            options["proposals"] = lambda *_: PackedSequence([tensor(file, f"{variant}/proposals")])
        net = self.module.net.with_options(**options)
        self.batch = batch_of(variant, config)
        np.random.seed(0)
        torch.manual_seed(0)
        self.outputs = net(self.batch.images, self.batch)
        self.losses = net.loss(self.outputs, self.batch).means
        if self.has("grad_names"):
            sum(self.losses.values()).backward()
        self.parameters = dict(self.module.net.named_parameters())
        self.buffers = dict(self.module.net.named_buffers())

    def has(self, name):
        return has(self.file, f"{self.variant}/{name}")

    def stored(self, name):
        return array(self.file, f"{self.variant}/{name}")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((file, variant), id=f"{file}-{variant}", marks=() if (file, variant) in FAST else pytest.mark.slow)
        for file, variants in VARIANTS.items()
        for variant in variants
    ],
)
def step(request):
    return Step(*request.param)


def test_losses(step):
    if step.has("loss_names"):
        assert list(step.losses) == step.stored("loss_names").tolist()
    found = np.array([float(loss.detach()) for loss in step.losses.values()])
    np.testing.assert_allclose(found, step.stored("losses"), rtol=3e-5 if step.file == PANOPTIC else 1e-4, atol=1e-6)


def proposal_logits(step):
    outputs = step.outputs
    boxes = clip_boxes(
        decode_boxes(outputs.rpn.anchors, outputs.rpn.bbx_logits[0].detach()), outputs.features.valid_sizes[0]
    )
    anchors = (outputs.proposals[0][:, None] == boxes).all(dim=2)
    assert anchors.any(dim=1).all()
    return outputs.rpn.obj_logits[0].detach()[anchors.int().argmax(dim=1)]


def order_of(found, wanted):
    """Number of our box that each stored one is."""
    assert found.shape == wanted.shape
    distance, order = (found[None] - torch.from_numpy(wanted)[:, None]).abs().amax(dim=2).min(dim=1)
    assert distance.max() < 0.02
    return order


def test_samples(step):
    if not step.has("roi_proposals"):
        assert step.outputs.rois.samples == [None]
        return
    (sample,) = step.outputs.rois.samples
    order = order_of(sample.boxes, step.stored("roi_proposals"))
    np.testing.assert_array_equal(sample.match[order].numpy(), step.stored("roi_match"))
    assert order.sort().values.tolist() == list(range(len(order)))
    if step.variant == "sampled":
        assert order.tolist() == list(range(len(order)))
    elif step.file == PANOPTIC:
        # rounding decides the order of proposals whose logits differ by less than the tolerance of a logit
        proposals = order_of(step.outputs.proposals[0], step.stored("proposals"))
        assert_order(proposals, proposal_logits(step)[proposals], 1e-3)


def test_anchors_that_count(step):
    torch.manual_seed(0)
    (things,) = Things.of(step.batch, NUM_STUFF)
    matcher, outputs = step.module.net.options.anchor_matcher, step.outputs
    (match,) = matcher.sample(outputs.rpn.anchors, [things], outputs.features.valid_sizes)
    if step.has("rpn_match_full"):
        np.testing.assert_array_equal(match.numpy(), step.stored("rpn_match_full"))
    else:
        chosen = torch.nonzero(match >= -1).flatten()
        np.testing.assert_array_equal(chosen.numpy(), step.stored("rpn_sel_idx"))
        np.testing.assert_array_equal(match[chosen].numpy(), step.stored("rpn_sel_match"))


def test_gradients(step):
    if not step.has("grad_names"):
        return
    names, norms, samples = (step.stored(name) for name in ("grad_names", "grad_norm", "grad_sample"))
    of_norms, of_values = gradient_errors(step.parameters, names, norms, samples)
    near_zero = () if step.variant == "eval_all" else NEAR_ZERO
    assert_below({name: error for name, error in of_norms.items() if name not in near_zero}, 2e-2, 6e-4)
    without = {*NEAR_ZERO, *names[norms == 0]} if step.file == PANOPTIC else ()
    assert_below({name: error for name, error in of_values.items() if name not in without}, 0.3, 0.05)
    # where the original has none, ours are 0: a head without regions runs on zero rows
    frozen, none = {name for name, p in step.parameters.items() if p.grad is None}, step.stored("no_grad_names")
    assert all(name in frozen or not step.parameters[name].grad.any() for name in none.tolist())
    assert step.file != PANOPTIC or frozen == set(none.tolist())


def test_running_statistics(step):
    if not step.module.training and step.file != PANOPTIC:
        return
    names = step.stored("bn_names")
    for name, norm in zip(names, step.stored("bn_norm")):
        assert abs(float(step.buffers[name].double().norm()) - norm) < 1e-4 * norm, name
    if step.file != PANOPTIC:
        return
    for name, sample in zip(names, step.stored("bn_sample")):
        buffer = step.buffers[name]
        found = buffer.double().numpy()[sample_positions(name, buffer.numel(), 4)]
        np.testing.assert_allclose(found, sample, rtol=1e-3, atol=1e-4)
    assert step.buffers["rpn_head.bn1.num_batches_tracked"] == step.stored("nbt"), "one update a level"
