"""How the network behaves: batches of several sizes, images with nothing to learn, determinism, misuse."""

import math
from dataclasses import replace
from unittest import mock

import pytest
import torch
from support.networks import narrow_module, tiny_config, toy_batch
from torch.testing import assert_close

from seamseg.config import KINDS
from seamseg.maps.panoptic_map import VOID
from seamseg.models.build import build_network, build_training_module
from seamseg.structures import Features, PackedSequence, Things


@pytest.mark.parametrize(
    ("keys", "mode", "kind"),
    [
        ("roi.fixed_samples=yes", "bn", "panoptic"),
        *(("roi.fixed_samples=no", mode, "panoptic") for mode in ("bn", "syncbn", "syncbn+gn", "off")),
        ("roi.fixed_samples=no", "bn", "detection"),
    ],
)
def test_empty_images_give_the_roi_head_gradients_of_zero(keys, mode, kind):
    """Also images of void only; without rows its norms keep their statistics; levels of regions get gradients, too."""
    module, batch = narrow_module(keys, mode=mode, kind=kind), toy_batch((64, 64), (64, 64), empty=(0, 1))
    before = {name: buffer.clone() for name, buffer in module.net.roi_head.named_buffers()}
    for mask in batch.masks:
        mask.zero_()
    found = module(batch)
    losses, counts = found.means, found.counts
    of_head = [name for name in losses if name.startswith("roi_")]
    assert len(of_head) == (3 if kind == "panoptic" else 2)
    for name in of_head:
        assert losses[name] == counts[name] == 0
        assert losses[name].requires_grad
    assert losses.get("sem_loss", 0) == 0
    sum(losses[name] for name in of_head).backward(retain_graph=True)
    assert all(p.grad is not None and not p.grad.any() for p in module.net.roi_head.parameters())
    assert all(not p.grad.any() for p in module.net.body.parameters() if p.grad is not None)
    assert module.net.body.fpn.output[0].conv.weight.grad is not None
    sum(losses.values()).backward()
    assert all(p.grad.isfinite().all() for p in module.net.parameters())
    if keys.endswith("no"):
        assert all(torch.equal(buffer, before[name]) for name, buffer in module.net.roi_head.named_buffers())
    assert all(layer.training for layer in module.modules())


def test_no_detection_and_no_proposal_at_all():
    net = narrow_module("roi.score_threshold=1").net.eval()
    predictions = net.predict(toy_batch((64, 64), (32, 32)).images)
    assert [p.boxes.shape for p in predictions] == [(0, 4)] * 2
    assert [p.mask_logits.shape for p in predictions] == [(0, 16, 16)] * 2
    net, batch = narrow_module("rpn.min_size=1000").net, toy_batch((64, 64), empty=(0,))
    outputs = net(batch.images, batch)
    assert list(outputs.proposals) == [None]
    assert outputs.rois.samples == [None]
    assert outputs.rois.cls_logits.shape[0] == 0
    (prediction,) = net.eval().predict(toy_batch((64, 64)).images)
    assert prediction.boxes.shape == (0, 4)


@pytest.mark.parametrize(("device", "chunks"), [("cpu", [256, 256, 88]), ("meta", [600])])
def test_only_a_cpu_processes_regions_in_chunks(device, chunks):
    net = build_network(tiny_config(), 2, 3).to(device)
    levels = [torch.zeros(1, 8, 64 // stride, 64 // stride, device=device) for stride in (4, 8, 16, 32)]
    boxes, index = torch.zeros(600, 4, device=device), torch.zeros(600, dtype=torch.long, device=device)
    found = net._roi_chunks(Features(levels, (64, 64), [(64, 64)]), boxes, index)
    assert [x.shape[0] for x, _ in found] == chunks


def test_boxes_of_classes_are_decoded_by_the_weights():
    net, proposal = narrow_module().net, torch.tensor([[20.0, 20, 30, 40]])
    codes = torch.tensor([2, 3, 5 * math.log(2), 0]).expand(1, 3, 4)
    features = Features([torch.zeros(1, 8, 64 // side, 64 // side) for side in (4, 8, 16, 32)], (64, 64), [(64, 64)])
    with mock.patch.object(net.roi_head, "boxes", return_value=(torch.zeros(1, 4), codes)):
        ((boxes, scores),) = net.score_proposals(features, PackedSequence([proposal]), [(64, 64)])
    assert_close(boxes, torch.tensor([17.0, 26, 37, 46]).expand(1, 3, 4))
    assert scores.tolist() == [[0.25] * 4]


def test_another_memory_format_leaves_the_network_as_it_is():
    net = narrow_module().net.eval()
    strides = {name: p.stride() for name, p in net.named_parameters()}
    other = net.with_options(channels_last=False)
    assert {name: p.stride() for name, p in net.named_parameters()} == strides
    assert all(p.is_contiguous() for p in other.parameters())
    images = toy_batch((64, 96)).images
    levels, contiguous = (network.encode(images).levels for network in (net, other))
    assert levels[0].is_contiguous(memory_format=torch.channels_last)
    assert contiguous[0].is_contiguous()
    assert not net.dense(net.padded(images)[0]).semantic_logits.is_contiguous()
    with mock.patch("seamseg.models.panoptic.mark_sizes_dynamic") as marked:
        net.classify(net.encode(images))
    assert not marked.called
    assert_close(levels, contiguous, rtol=1e-3, atol=1e-4)
    assert net.train().dense(net.padded(images)[0]).semantic_logits.is_contiguous()
    # with the same format the weights are shared
    assert net.with_options(pad_to=32).body is net.body


@pytest.mark.parametrize("kind", ["panoptic", "instance_seg", "detection"])
def test_predictions_of_high_scores_and_of_fixed_sizes_are_those_of_all(kind):
    net, images = narrow_module("roi.max_predictions=12", kind=kind).net, toy_batch((64, 96), (64, 96)).images
    with pytest.raises(RuntimeError, match=r"call eval\(\) first"):
        net.predict(images)
    every, (padded, sizes) = net.eval().predict(images), images.as_padded()
    assert [p.mask_logits is None for p in every] == [kind == "detection"] * 2
    assert [p.semantic is None for p in every] == [kind != "panoptic"] * 2
    best = torch.cat([p.scores for p in every]).sort(descending=True).values
    # no mask is computed alone: its bits would differ from those among others
    for limit, count in ((0, len(best)), (best[5], 5), (best[1], len(best)), (best[0], 0)):
        found = net.predict(images, least_score=float(limit))
        assert sum(len(p.scores) for p in found) == count
        for one, other in zip(found, every, strict=True):
            rows = other.scores >= one.scores.min() if len(one.scores) else other.scores > 1
            same_rows(one, other, rows)
    fixed = net.predict_padded(padded, torch.tensor(sizes))
    assert fixed.levels == []
    for one, other, (count, complete) in zip(fixed.predictions, every, fixed.found.tolist(), strict=True):
        assert (count, complete, len(one.scores)) == (len(other.scores), 1, 12)
        same_rows(other, one, slice(count))
        assert not one.boxes[count:].any()
    # a head with masks of its own computes those of all classes
    masks = net.roi_head.masks
    net.roi_head.masks = lambda x: masks(x)
    if kind != "detection":
        for one, other in zip(net.predict(images), every, strict=True):
            assert_close(one.mask_logits, other.mask_logits, rtol=1e-5, atol=1e-5)


def same_rows(found, wanted, rows):
    assert found.size == wanted.size
    for name in ("boxes", "classes", "scores", "mask_logits"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert (one is None) == (other is None)
        assert one is None or (torch.equal(one, other[rows]) and not one.requires_grad)
    assert found.semantic is None or torch.equal(found.semantic.long(), wanted.semantic.long())


POSITIVES = "roi.mask_positives_only=yes"


@pytest.mark.parametrize("fixed", ["yes", "no"])
@pytest.mark.parametrize("kind", ["panoptic", "instance_seg"])
def test_masks_of_positives_only(kind, fixed):
    """With a norm of single regions nothing changes but the order of sums; the mask branch runs on fewer rows."""
    batch = toy_batch((64, 96), (80, 64), (48, 48), empty=(2,))
    common = (f"roi.fixed_samples={fixed}", "roi.sample_empty_images=yes")
    found = []
    for more in ((), (POSITIVES,)):
        module = narrow_module(*common, *more, mode="gn", kind=kind)
        rows = []
        module.net.roi_head.conv[0].register_forward_hook(lambda layer, given, out, rows=rows: rows.append(len(out)))
        torch.manual_seed(1)
        losses = module(batch)
        sum(losses.means.values()).backward()
        found.append((losses.means, losses.counts, {name: p.grad for name, p in module.named_parameters()}, rows))
    assert_close(found[1][:3], found[0][:3], rtol=1e-3, atol=1e-5)
    (every,), (positive,) = (one[3] for one in found)
    assert every == 3 * 24
    assert positive == 3 * 6 if fixed == "yes" else 0 < positive <= 3 * 6


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
    assert tuple(losses.means) == KINDS[kind].losses
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
    assert_close(found["detection"], found["instance_seg"])


# Samples of fixed numbers: losses and gradients of exact samples, where both take all candidates

ALL = ("roi.num_samples=300", "roi.pos_ratio=0.5", "rpn.num_samples=100000")
"""Room for every candidate: the two ways then differ in the rows that fill up only."""


def trained(batch, *overrides):
    module = narrow_module(*overrides, mode="gn")
    torch.manual_seed(1)
    losses = module(batch)
    sum(losses.means.values()).backward()
    gradients = {name: p.grad for name, p in module.named_parameters()}
    return {name: loss.detach() for name, loss in losses.means.items()}, losses.counts, gradients


@pytest.mark.parametrize("asked", ["yes", "no"])
@pytest.mark.parametrize("min_size", [0, 12])
def test_equal_where_all_candidates_are_taken(asked, min_size):
    batch = toy_batch((64, 96), (80, 64), (48, 48), empty=(2,), crowd=(0,))
    common = (*ALL, f"rpn.min_size={min_size}", f"roi.sample_empty_images={asked}")
    exact = trained(batch, *common)
    fixed = trained(batch, *common, "roi.fixed_samples=yes")
    assert all(loss > 0 for loss in exact[0].values())
    assert_close(fixed[0], exact[0], rtol=1e-5, atol=1e-6)
    assert_close(fixed[1], exact[1], rtol=0, atol=0)
    assert_close(fixed[2], exact[2], rtol=1e-3, atol=1e-5)


def test_target_info_matches_the_targets():
    batch = toy_batch((32, 32), (48, 48), empty=(1,), crowd=(0,))
    batch.boxes[0][3] = -1
    first, second = batch.with_target_info().target_info
    assert first.categories == (255, 0, 1, 2, 4)
    assert first.iscrowd == (False, False, False, False, True)
    assert first.present == (False, True, True, False, True)
    assert second.categories == (255, 0, 1)
    known = batch.with_target_info()
    assert known.with_target_info() is known
    assert known.to("cpu").target_info == known.target_info
