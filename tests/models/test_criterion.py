"""The losses of a network: what they count, what they add up, and losses of a user that return something else."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.networks import tiny_config, toy_batch

from seamseg.models.build import build_training_module
from seamseg.models.criterion import SemanticCriterion, _custom_box_loss, _custom_image_loss
from seamseg.models.heads.refinement import RegionTruth
from seamseg.structures import PackedSequence
from seamseg.utils.errors import SeamsegError


def training_module(*overrides):
    torch.manual_seed(0)
    return build_training_module(tiny_config(overrides=overrides), 2, 3)


@pytest.fixture(scope="module")
def refined():
    """A network that refines masks."""
    return training_module("roi.mask_refinement=points", "mask_refinement points.points=12")


def test_the_loss_of_refined_masks_is_added(refined):
    batch = toy_batch((64, 96), (80, 64), empty=(1,))
    outputs = refined.net(batch.images, batch)
    rois = outputs.rois
    plain = refined.criterion(replace(outputs, rois=replace(rois, refined=None)), batch)
    truth = RegionTruth(rois.samples, [things.ids for things in outputs.things], list(batch.masks), False)
    more = rois.refined.refinement.loss(rois.refined.outputs, truth)
    both = refined.criterion(outputs, batch)
    assert more > 0
    assert both.means["roi_msk_loss"] == plain.means["roi_msk_loss"] + more
    assert both.counts == plain.counts
    assert both.counts["roi_cls_loss"] == both.counts["roi_bbx_loss"] == sum(len(s.match) for s in rois.samples if s)
    assert both.counts["sem_loss"] == 2


def test_the_semantic_loss_is_that_of_the_labelled_images():
    """As many of them as classes, too."""
    logits = torch.randn(3, 2, 4, 4, requires_grad=True)
    criterion = SemanticCriterion.of(tiny_config())
    batch = toy_batch((16, 16), (16, 16), (16, 16), empty=(0, 1, 2))
    masks, categories = list(batch.masks), list(batch.categories)
    alone = [criterion.term(logits[i : i + 1], (16, 16), part(batch, [i]))[0] for i in range(3)]
    for labelled in ([0, 1, 2], [0, 2], [1]):
        kept = [masks[i] if i in labelled else None for i in range(3)]
        some = replace(batch, masks=PackedSequence(kept), categories=PackedSequence(categories))
        loss, count = criterion.term(logits, (16, 16), some)
        assert count == len(labelled)
        torch.testing.assert_close(loss, torch.stack([alone[i] for i in labelled]).mean())
    nothing, count = criterion.term(logits, (16, 16), replace(batch, masks=PackedSequence([None] * 3)))
    nothing.backward()
    assert (nothing, count, logits.grad.any()) == (0, 0, False)


def part(batch, indices):
    """Some images of a batch."""
    fields = {name: PackedSequence([getattr(batch, name)[i] for i in indices]) for name in ("masks", "categories")}
    return replace(batch, **fields)


BOXES = SimpleNamespace(predicted=torch.zeros(3, 4))


@pytest.mark.parametrize(
    ("call", "given", "made", "problem"),
    [
        (_custom_image_loss, None, torch.tensor(2.0), ""),
        (_custom_image_loss, None, torch.zeros(2, 1), r"a scalar tensor, returned a tensor of \(2, 1\)"),
        (_custom_image_loss, None, 2.0, "a scalar tensor, returned float"),
        (_custom_box_loss, BOXES, torch.zeros(3), ""),
        (_custom_box_loss, BOXES, torch.zeros(3, 4), ""),
        (_custom_box_loss, BOXES, torch.zeros(4, 3), "3 or 3 x 4 numbers, returned 4 x 3"),
        (_custom_box_loss, BOXES, torch.tensor(0.0), "3 or 3 x 4 numbers, returned a scalar"),
        (_custom_box_loss, BOXES, [0.0] * 3, "3 or 3 x 4 numbers, returned list"),
    ],
)
def test_what_a_loss_of_the_user_returns(call, given, made, problem):
    """It is passed on, or the error says what it is."""
    own = SimpleNamespace(section="loss mine", module=__name__, file="mine.py", make=lambda given, keys: made)
    if not problem:
        assert call(own, None, given) is made
        return
    with pytest.raises(SeamsegError, match=rf"^loss mine \(mine\.py\): must return {problem}$"):
        call(own, None, given)
