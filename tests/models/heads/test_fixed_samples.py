"""Samples of fixed numbers: the same as the exact ones where all are taken, and rows that count nowhere fill up."""

from dataclasses import replace

import pytest
import torch
from support.golden_files import crowd_mask_of
from support.golden_files import golden as ops
from support.sections import roi, rpn, things
from torch.testing import assert_close

from seamseg.models.heads.roi import ProposalMatcher, box_loss, class_loss, leading_rows
from seamseg.models.heads.rpn import BACKGROUND, AnchorMatcher, ProposalGenerator, RPNOutputs, rpn_losses


def golden_images():
    """Things and valid sizes of the four golden images."""
    boxes = [ops("rpn/gt0"), ops("rpn/gt1"), None, ops("rpn/gt0")]
    crowds = [ops("rpn/crowd_mask").bool(), crowd_mask_of(ops("rpn/crowd_bbx"), (96, 128)), None, None]
    return list(map(things, boxes, crowds)), [tuple(size) for size in ops("rpn/valid_size").tolist()]


# Anchors


def test_every_anchor_is_taken_where_there_is_room():
    found = AnchorMatcher(rpn(num_samples=10**6), fixed=True).batch(ops("rpn/anchors"), *golden_images())
    assert_close(found, ops("rpn/match_all"), rtol=0, atol=0)


def test_as_many_anchors_are_drawn_as_by_the_original():
    loose = rpn(pos_threshold=0.6, void_threshold=0)
    exact, fixed = (
        AnchorMatcher(replace(loose, num_samples=64), fixed=choice).batch(ops("rpn/anchors"), *golden_images())
        for choice in (False, True)
    )
    everything = AnchorMatcher(replace(loose, num_samples=10**6, pos_ratio=1.0)).batch(
        ops("rpn/anchors"), *golden_images()
    )
    taken = fixed >= BACKGROUND
    assert_close(fixed[taken], everything[taken], rtol=0, atol=0)
    for kind in (lambda match: match >= 0, lambda match: match == BACKGROUND):
        assert kind(fixed).sum(1).tolist() == kind(exact).sum(1).tolist()
    assert not torch.equal(fixed, exact)


def test_losses_look_at_no_more_anchors_than_there_are_samples():
    found = ops("rpn/match_64_seed3_pos.6_novoid")
    results = []
    for number in (10**6, 64):
        obj, bbx = ops("rpn/obj_logits").requires_grad_(), ops("rpn/bbx_logits").requires_grad_()
        outputs = RPNOutputs(ops("rpn/anchors"), obj, bbx)
        losses = rpn_losses(outputs, found, golden_images()[0], rpn(num_samples=number))
        (losses["obj_loss"][0] + losses["bbx_loss"][0]).backward()
        results.append((losses, obj.grad, bbx.grad))
    assert_close(results[0], results[1])


# Proposals


@pytest.mark.parametrize(("min_size", "most"), [(0, 100), (0, 1), (16, 100), (10**4, 100)])
def test_padded_proposals_are_those_of_a_call(min_size, most):
    torch.manual_seed(0)
    counts = {"num_pre_nms_train": 300, "num_post_nms_train": most}
    generator = ProposalGenerator(rpn(min_size=min_size, **counts))
    anchors = ops("rpn/anchors")
    arguments = (torch.randn(3, len(anchors)), torch.randn(3, len(anchors), 4) * 0.1, anchors, [(96, 128)] * 3, True)
    boxes, counts = generator.padded(*arguments)
    assert boxes.shape == (3, most, 4)
    for rows, count, wanted in zip(boxes, counts.tolist(), generator(*arguments)):
        assert rows[count:].isnan().all()
        assert (wanted is None) == (count == 0)
        if wanted is not None:
            assert_close(rows[:count], wanted, rtol=0, atol=0)
    assert (counts == 0).all() == (min_size == 10**4)


# Samples


def roi_images():
    boxes, crowds = (ops("rpn/gt0"), None, ops("rpn/gt0")), (ops("rpn/crowd_mask").bool(), None, None)
    return [ops("roi/prop0"), ops("roi/prop1"), ops("roi/prop0")], list(map(things, boxes, crowds))


def as_set(boxes, match):
    return {(*box, m) for box, m in zip(boxes.tolist(), match.tolist())}


def test_all_candidates_are_sampled_where_there_is_room():
    exact = ProposalMatcher(roi(num_samples=10**4)).batch(*roi_images())
    fixed = ProposalMatcher(roi(num_samples=600, pos_ratio=0.5, fixed_samples=True)).batch(*roi_images())
    for wanted, found in zip(exact, fixed):
        assert found.boxes.shape == (600, 4)
        assert found.leading == 300
        if wanted is None:
            assert (found.weight == 0).all()
            assert (found.match == BACKGROUND).all()
            continue
        count = int(found.weight.sum())
        assert count == len(wanted.match) < 600
        assert as_set(found.boxes[:count], found.match[:count]) == as_set(wanted.boxes, wanted.match)
        assert (found.match[: wanted.leading] >= 0).all()
        assert (found.match[wanted.leading :] == BACKGROUND).all()
        # padding repeats the same rows, with weight 0
        assert (found.weight == (torch.arange(600) < count)).all()
        assert_close(found.boxes, found.boxes[torch.arange(600) % count], rtol=0, atol=0)


def test_as_many_proposals_are_drawn_as_exactly():
    torch.manual_seed(0)
    exact = ProposalMatcher(roi(num_samples=16)).batch(*roi_images())
    drawn = [ProposalMatcher(roi(num_samples=16, fixed_samples=True)).batch(*roi_images()) for _ in range(2)]
    for wanted, found, again in zip(exact, *drawn):
        if wanted is not None:
            assert (found.match >= 0).tolist() == (wanted.match >= 0).tolist()
            assert (found.weight == 1).all()
            assert len(found.boxes.unique(dim=0)) == 16
            assert not torch.equal(found.boxes, again.boxes)


def test_images_without_ground_truth():
    proposals = torch.cat([ops("roi/prop1"), torch.full((5, 4), torch.nan)])
    for asked in (False, True):
        config = roi(num_samples=16, fixed_samples=True, sample_empty_images=asked)
        (sample,) = ProposalMatcher(config).batch([proposals], [things(None)])
        assert (sample.weight == float(asked)).all()
        assert (sample.match == BACKGROUND).all()
        assert sample.boxes.isfinite().all()
        assert sample.boxes.abs().sum() > 0


def test_nothing_to_sample_gives_rows_of_weight_0():
    padding, box = torch.full((5, 4), torch.nan), torch.tensor([[0.0, 0, 10, 10]])
    matcher = ProposalMatcher(roi(num_samples=8, fixed_samples=True))
    crowd = torch.ones(20, 20, dtype=torch.bool)
    empty, covered = matcher.batch([padding, box], [things(None), things(box, crowd)])
    assert (empty.boxes == 0).all()
    for sample in (empty, covered):
        assert (sample.weight == 0).all()
        assert (sample.match == BACKGROUND).all()


def test_leading_rows():
    fixed = ProposalMatcher(roi(num_samples=16, fixed_samples=True)).batch(*roi_images())
    assert leading_rows([fixed[0], None, fixed[2]], torch.device("cpu")).tolist() == [0, 1, 2, 3, 16, 17, 18, 19]


# Losses


def test_rows_of_weight_0_count_in_no_loss():
    torch.manual_seed(0)
    labels, cls, errors = torch.tensor([2, 0, 1, 0, 0]), torch.randn(5, 4), torch.randn(5, 4)
    for count in (3, 1):
        weights = (torch.arange(5) < count).float()
        labels = labels * weights.long()
        assert_close(class_loss(cls, labels, weights), class_loss(cls[:count], labels[:count]))
        assert_close(box_loss(errors, labels, weights), box_loss(errors[:count], labels[:count]))
    nothing = torch.zeros(5)
    assert class_loss(cls, labels * 0, nothing) == box_loss(errors, labels * 0, nothing) == 0
