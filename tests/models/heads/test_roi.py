"""The ROI head: samples, targets, losses and detections against the original, and their properties."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.golden_files import golden as ops
from support.golden_files import numpy_permutation
from support.sections import roi, things
from torch.testing import assert_close

from seamseg.models import panoptic_inference
from seamseg.models.heads.roi import (
    IGNORED_PIXEL,
    ProposalMatcher,
    ROIExtractor,
    ROIHead,
    box_loss,
    class_loss,
    leading_rows,
    mask_loss,
    mask_targets,
    of_class,
)
from seamseg.models.heads.rpn import BACKGROUND, box_targets
from seamseg.models.panoptic_inference import DetectionSelector
from seamseg.ops.boxes import smooth_l1
from seamseg.ops.norm import ABN, ActivatedGroupNorm, ActivatedIdentity, InPlaceABN, InPlaceABNSync

WEIGHTS = (10.0, 10.0, 5.0, 5.0)


@pytest.mark.parametrize(
    ("case", "keys"),
    [("match_all", {"num_samples": 10**6}), ("match_16_npseed11", {"num_samples": 16, "neg_threshold_lo": 0.1})],
)
def test_the_same_proposals_are_drawn_as_by_the_original(case, keys):
    matcher = ProposalMatcher(roi(**keys), permutation=numpy_permutation)
    gt0, crowd_boxes = ops("rpn/gt0"), ops("rpn/crowd_bbx").float()
    images = [
        (ops("roi/prop0"), things(gt0, ops("rpn/crowd_mask").bool())),
        (ops("roi/prop1"), things(None)),
        (None, things(gt0)),
        (ops("roi/prop0"), things(gt0, crowd_boxes)),
    ]
    np.random.seed(11)
    for i, sample in enumerate(matcher.sample(*zip(*images))):
        if i == 1:
            assert sample is None
            continue
        assert_close(sample.boxes, ops(f"roi/{case}/{i}/prop"), rtol=0, atol=0)
        assert_close(sample.match, ops(f"roi/{case}/{i}/match"), rtol=0, atol=0)


def test_images_without_ground_truth_give_negatives_when_asked():
    image = [ops("roi/prop1")], [things(None)]
    assert ProposalMatcher(roi()).sample(*image) == [None]
    (sample,) = ProposalMatcher(roi(num_samples=16, sample_empty_images=True)).sample(*image)
    assert sample.boxes.shape == (16, 4)
    assert (sample.match == BACKGROUND).all()
    assert ProposalMatcher(roi(sample_empty_images=True)).sample([None], [things(None)]) == [None]


def test_nothing_left_outside_the_crowd_gives_nothing():
    boxes, crowd = torch.tensor([[0.0, 0, 10, 10]]), torch.ones(20, 20, dtype=torch.bool)
    assert ProposalMatcher(roi()).sample([boxes], [things(boxes, crowd)]) == [None]
    (sample,) = ProposalMatcher(roi(void_threshold=0)).sample([boxes], [things(boxes, crowd)])
    assert sample.match.tolist() == [0, 0], "a threshold of 0 ignores crowds"


@pytest.mark.parametrize("void_is_background", [False, True])
def test_targets_equal_the_original(void_is_background):
    samples, match = ops("roi/match_all/0/prop"), ops("roi/match_all/0/match")
    boxes, ids = ops("rpn/gt0"), ops("roi/ids0").flatten()
    case = f"roi/lbl_vb{int(void_is_background)}"
    codes = box_targets(samples, boxes, match) * torch.tensor(WEIGHTS)
    assert_close(codes[match >= 0], ops(f"{case}/bbx"), rtol=1e-6, atol=1e-5)
    masks = mask_targets(samples, match, ids, ops("roi/msk"), (28, 28), void_is_background)
    assert (masks[match < 0] == IGNORED_PIXEL).all()
    assert_close(masks[match >= 0], ops(f"{case}/msk").float(), rtol=0, atol=0)


def test_overlapping_layers_all_count_in_the_mask_target():
    layers = torch.zeros(2, 8, 8, dtype=torch.long)
    layers[0, :4], layers[1, 2:6] = 1, 2
    box = torch.tensor([[0.0, 0, 8, 8], [0, 0, 8, 8]])
    one, two = mask_targets(box, torch.tensor([0, 1]), torch.tensor([1, 2]), layers, (8, 8), False)
    assert one[:, 0].tolist() == [1, 1, 1, 1, 0, 0, -1, -1]
    assert two[:, 0].tolist() == [0, 0, 1, 1, 1, 1, -1, -1]


def test_losses_equal_the_original():
    labels = ops("roi/lbl_vb0/cls")
    codes, masks = torch.zeros(labels.shape[0], 4), ops("roi/lbl_vb0/msk").float()
    codes[labels > 0] = ops("roi/lbl_vb0/bbx")
    cls, bbx = ops("roi/cls_logits").requires_grad_(), ops("roi/bbx_logits").requires_grad_()
    draws = np.random.RandomState(int(ops("roi/msk_logits_seed"))).randn(labels.shape[0], 8, 28, 28) * 2
    msk = torch.from_numpy(draws.astype(np.float32)).requires_grad_()

    losses = (
        class_loss(cls, labels),
        box_loss(smooth_l1(of_class(bbx, labels), codes, 1.0), labels),
        mask_loss(msk[labels > 0], labels[labels > 0], masks)[0],
    )
    for loss, name in zip(losses, ("cls", "bbx", "msk")):
        assert_close(loss, ops(f"roi/loss/{name}"))
    sum(losses).backward()
    assert_close(cls.grad, ops("roi/loss/dcls"))
    assert_close(bbx.grad, ops("roi/loss/dbbx"))
    assert_close(msk.grad.abs().sum((1, 2, 3)), ops("roi/loss/dmsk_sum_abs"), rtol=1e-4, atol=1e-6)


def test_losses_without_positives_keep_their_graph():
    labels = torch.zeros(5, dtype=torch.long)
    cls, bbx = ops("roi/cls_logits")[:5], ops("roi/bbx_logits")[:5].requires_grad_()
    errors = smooth_l1(of_class(bbx, labels), torch.zeros(5, 4), 1.0)
    for count in (0, 2):  # no masks, and masks that are all void
        msk, void = torch.randn(count, 8, 28, 28, requires_grad=True), torch.full((count, 28, 28), -1.0)
        of_masks, _ = mask_loss(msk, torch.tensor([1, 3])[:count], void)
        losses = [class_loss(cls, labels), box_loss(errors, labels), of_masks]
        found = torch.stack([loss.detach().double() for loss in losses])
        assert_close(found, ops("roi/loss_nopos"), rtol=1e-6, atol=1e-6)
        (losses[1] + losses[2]).backward(retain_graph=True)
        assert bbx.grad.abs().sum() == 0
        assert msk.grad.abs().sum() == 0


def test_levels_equal_the_original():
    wanted = ops("target_level/out")
    level = ROIExtractor(roi()).level_of(ops("target_level/bbx"))
    # the original has NaN for a box inside out; ours looks it up on the finest level
    assert level[wanted.isnan()].tolist() == [0]
    assert level[~wanted.isnan()].tolist() == wanted[~wanted.isnan()].tolist()


def test_levels_are_counted_from_the_first_in_use():
    levels = [torch.full((1, 1, 256 >> i, 256 >> i), float(i)) for i in range(4)]
    boxes = torch.tensor([[0.0, 0, 20, 20], [0, 0, 500, 500], [10, 0, 250, 240], [-900, 0, 1900, 2000]])
    extractor = ROIExtractor(roi(fpn_min_level=1, fpn_levels=3))
    found = extractor(levels, boxes[:3], torch.zeros(3, dtype=torch.long), (1024, 1024))
    assert extractor.level_of(boxes).tolist() == [1, 3, 2, 3]
    assert_close(found, extractor.level_of(boxes[:3]).float().view(3, 1, 1, 1).expand_as(found))


@pytest.mark.parametrize("norm", [ABN, InPlaceABN])
def test_mask_logits_of_some_rows_still_use_the_statistics_of_all(norm, monkeypatch):
    torch.manual_seed(0)
    head, seen = ROIHead(roi(fc_channels=8, conv_channels=4), 6, 3, norm), []
    if norm is InPlaceABN:
        enlarge = head.conv.bn_up.upsample_rows
        monkeypatch.setattr(head.conv.bn_up, "upsample_rows", lambda *args: seen.append(args[1]) or enlarge(*args))
    x, rows = torch.randn(5, 6, 14, 14), torch.tensor([3, 1])
    assert_close(head.masks(x, rows), head.masks(x)[rows])
    assert len(seen) == (norm is InPlaceABN)
    head.masks(x, rows[:0]).sum().backward()
    assert head.conv.conv1.weight.grad is not None
    head.conv.conv_up = torch.nn.ConvTranspose2d(4, 4, 1, bias=False)
    assert_close(head.masks(x, rows), head.masks(x)[rows])


@pytest.mark.parametrize("limit", [1000, 30])
def test_detections_equal_the_original(limit):
    select = DetectionSelector(roi(nms_threshold=0.5, max_predictions=limit))
    boxes, classes, scores = select(ops("pred_gen/boxes"), ops("pred_gen/scores"))
    assert_close(boxes, ops(f"pred_gen/max{limit}/bbx"), rtol=0, atol=0)
    assert_close(classes, ops(f"pred_gen/max{limit}/cls"), rtol=0, atol=0)
    assert_close(scores, ops(f"pred_gen/max{limit}/obj"), rtol=0, atol=0)


@pytest.mark.parametrize("candidates", [4096, 300, 40])
@pytest.mark.parametrize("limit", [10, 1000])
def test_detections_in_fixed_sizes_are_the_same(limit, candidates, monkeypatch):
    """With ties, and without any: all of them, or it is known that others may be missing."""
    monkeypatch.setattr(panoptic_inference, "CANDIDATES", candidates)
    generator, known = torch.Generator().manual_seed(0), 0
    for threshold, proposals in [(0.05, 200), (0.3, 200), (0.9, 30), (0.05, 0), (0.05, 1)]:
        select = DetectionSelector(roi(score_threshold=threshold, nms_threshold=0.5, max_predictions=limit))
        corners = torch.rand(proposals, 4, 2, generator=generator).mul(60).round()
        boxes = torch.cat((corners, corners + 30), dim=2)
        boxes[::7] = torch.nan
        scores = torch.softmax(torch.randn(proposals, 5, generator=generator) * 2, dim=1).mul(20).round() / 20
        wanted, (*found, state) = select(boxes, scores), select.padded(boxes, scores)
        count, complete = state.tolist()
        assert complete or candidates < (scores[:, 1:] > threshold)[boxes[:, 0, 0] >= 0].sum()
        known += complete
        for one, other in zip(found, wanted, strict=True):
            assert not complete or torch.equal(one[:count], other)
            assert not one[count:].any()
    assert known == (5 if limit == 10 else {4096: 5, 300: 4, 40: 3}[candidates]), "also where there are more than asked"


def test_empty_and_undefined_boxes_are_no_detections():
    boxes = torch.tensor([[0.0, 0, 1, 1], [0, 0, 0, 1], [1, 1, 0, 0], [0, 0, float("nan"), 1], [0, 0, 1, 1]])
    scores = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.5])
    found, _, best = DetectionSelector(roi(score_threshold=0.5))(boxes[:, None], torch.stack((1 - scores, scores), 1))
    assert found.tolist() == [[0, 0, 1, 1]]
    assert_close(best, scores[:1])


@pytest.mark.parametrize("norm", [ABN, InPlaceABN, InPlaceABNSync, ActivatedGroupNorm, ActivatedIdentity])
@pytest.mark.parametrize("half", [False, True])
def test_zero_rows(norm, half):
    """All of the head runs; every parameter and every level gets a gradient of 0, and no statistics move."""
    head = ROIHead(roi(fc_channels=32, conv_channels=16), 16, 3, norm).to(memory_format=torch.channels_last)
    leaves = [torch.randn(2, 16, 32 >> i, 32 >> i).requires_grad_() for i in range(4)]
    before = {name: buffer.clone() for name, buffer in head.named_buffers()}
    none = torch.zeros(0, dtype=torch.long)
    for rows in (none, None):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            x = ROIExtractor(roi())(leaves, torch.zeros(0, 4), none, (64, 64))
            logits = head(x, rows)
        assert [tuple(t.shape) for t in logits] == [(0, 4), (0, 3, 4), (0, 3, 28, 28)]
        head.zero_grad()
        torch.stack([t.float().sum() for t in logits]).sum().backward()
        for name, leaf in (*head.named_parameters(), *enumerate(leaves)):
            assert leaf.grad is not None, name
            assert torch.equal(leaf.grad, torch.zeros_like(leaf)), name
    for name, buffer in head.named_buffers():
        assert torch.equal(buffer, before[name]), name


def roi_images():
    boxes, crowds = (ops("rpn/gt0"), None, ops("rpn/gt0")), (ops("rpn/crowd_mask").bool(), None, None)
    return [ops("roi/prop0"), ops("roi/prop1"), ops("roi/prop0")], list(map(things, boxes, crowds))


def as_set(boxes, match):
    return {(*box, m) for box, m in zip(boxes.tolist(), match.tolist())}


def test_all_candidates_are_sampled_where_there_is_room():
    proposals, truths = roi_images()
    exact = ProposalMatcher(roi(num_samples=10**4)).sample(proposals, truths)
    # the last row of the ground truth is no thing
    boxes = [torch.cat((one.boxes, torch.tensor([[-2.0, -2, -1, -1]]))) for one in truths]
    padded = [replace(one, boxes=rows, real=rows[:, 0] > -2) for one, rows in zip(truths, boxes)]
    fixed = ProposalMatcher(roi(num_samples=600, pos_ratio=0.5, fixed_samples=True)).sample(proposals, padded)
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
    exact = ProposalMatcher(roi(num_samples=16)).sample(*roi_images())
    drawn = [ProposalMatcher(roi(num_samples=16, fixed_samples=True)).sample(*roi_images()) for _ in range(2)]
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
        (sample,) = ProposalMatcher(config).sample([proposals], [things(None)])
        assert (sample.weight == float(asked)).all()
        assert (sample.match == BACKGROUND).all()
        assert sample.boxes.isfinite().all()
        assert sample.boxes.abs().sum() > 0


def test_nothing_to_sample_gives_rows_of_weight_0():
    padding, box = torch.full((5, 4), torch.nan), torch.tensor([[0.0, 0, 10, 10]])
    matcher = ProposalMatcher(roi(num_samples=8, fixed_samples=True))
    crowd = torch.ones(20, 20, dtype=torch.bool)
    empty, covered = matcher.sample([padding, box], [things(None), things(box, crowd)])
    assert (empty.boxes == 0).all()
    for sample in (empty, covered):
        assert (sample.weight == 0).all()
        assert (sample.match == BACKGROUND).all()


def test_leading_rows():
    fixed = ProposalMatcher(roi(num_samples=16, fixed_samples=True)).sample(*roi_images())
    assert leading_rows([fixed[0], None, fixed[2]], torch.device("cpu")).tolist() == [0, 1, 2, 3, 16, 17, 18, 19]


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
