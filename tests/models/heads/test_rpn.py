"""Region proposals: anchors, targets, losses and proposals against the original, and their properties."""

from dataclasses import replace

import pytest
import torch
from support.golden_files import golden as ops
from support.sections import rpn, things
from torch.testing import assert_close

from seamseg.models.heads.rpn import (
    BACKGROUND,
    IGNORED,
    AnchorGenerator,
    AnchorMatcher,
    ProposalGenerator,
    RPNHead,
    RPNOutputs,
    rpn_losses,
)
from seamseg.ops.norm import InPlaceABN

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "scale", "ratios"), [("cityscapes", 8, (1.0, 0.5, 2.0)), ("vistas", 2, (0.2, 0.5, 1, 2, 5))]
)
def test_anchors_equal_the_original(name, scale, ratios):
    strides = tuple(ops(f"anchors/{name}/strides").tolist())
    generator = AnchorGenerator(rpn(anchor_scale=scale, anchor_ratios=ratios), strides)
    base = ops(f"anchors/{name}/base").float().flatten(0, 1)
    assert_close(generator(((1, 1),) * len(strides), CPU), base, rtol=0, atol=0)
    shapes = tuple(tuple(hw) for hw in ops(f"anchors/{name}/hw").tolist())
    assert_close(generator(shapes, CPU), ops(f"anchors/{name}/shifted"), rtol=0, atol=0)
    assert generator(shapes, CPU) is generator(shapes, CPU), "anchors of one size are made once"


def test_anchors_made_at_inference_serve_training():
    generator = AnchorGenerator(rpn(), (4,))
    with torch.inference_mode():
        generator(((3, 5),), CPU)
    assert not generator(((3, 5),), CPU).is_inference()


def golden_images():
    """A crowd mask, crowd boxes, no ground truth, a small valid size."""
    boxes = [ops("rpn/gt0"), ops("rpn/gt1"), None, ops("rpn/gt0")]
    crowds = [ops("rpn/crowd_mask").bool(), ops("rpn/crowd_bbx").float(), None, None]
    return list(map(things, boxes, crowds)), [tuple(size) for size in ops("rpn/valid_size").tolist()]


def matches(matcher):
    return matcher.sample(ops("rpn/anchors"), *golden_images())


def test_every_anchor_is_matched_as_by_the_original():
    state = torch.get_rng_state()
    assert_close(matches(AnchorMatcher(rpn(num_samples=10**6))), ops("rpn/match_all"), rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), state), "nothing is drawn where all are taken"
    fixed = AnchorMatcher(rpn(num_samples=10**6), fixed=True)
    assert_close(matches(fixed), ops("rpn/match_all"), rtol=0, atol=0)


def test_the_same_anchors_are_drawn_as_by_the_original():
    torch.manual_seed(3)
    found = matches(AnchorMatcher(rpn(num_samples=64, pos_threshold=0.6, void_threshold=0)))
    assert_close(found, ops("rpn/match_64_seed3_pos.6_novoid"), rtol=0, atol=0)
    counts = torch.stack([(found >= 0).sum(1), (found == BACKGROUND).sum(1)], dim=1)
    assert_close(counts, ops("rpn/match_64_counts"), rtol=0, atol=0)


def test_without_ground_truth_all_sampled_anchors_are_negative():
    anchors = ops("rpn/anchors")
    (match,) = AnchorMatcher(rpn(num_samples=32, neg_threshold=0)).sample(anchors, [things(None)], [(96, 128)])
    assert (match == BACKGROUND).sum() == 32
    assert ((match == BACKGROUND) | (match == IGNORED)).all()
    # an anchor whose part in a crowd reaches the threshold has no part in the losses
    crowd = torch.arange(10)[:, None].expand(10, 10) < 5
    found = AnchorMatcher(rpn(void_threshold=0.5)).sample(
        torch.tensor([[0.0, 0, 10, 10]]), [things(None, crowd)], [(10, 10)]
    )
    assert found.tolist() == [[IGNORED]]


def test_of_two_boxes_that_claim_an_anchor_the_later_one_gets_it():
    anchors = torch.tensor([[0.0, 0, 10, 10], [50, 50, 60, 60]])
    boxes = torch.tensor([[0.0, 0, 10, 4], [0, 0, 4, 10]])
    # the second anchor reaches to both borders of the image
    assert AnchorMatcher(rpn()).sample(anchors, [things(boxes)], [(60, 60)]).tolist() == [[1, BACKGROUND]]
    assert AnchorMatcher(rpn()).sample(anchors, [things(boxes[:1])], [(60, 59)]).tolist() == [[0, IGNORED]]


def losses(found, number=10**6):
    obj, bbx = ops("rpn/obj_logits").requires_grad_(), ops("rpn/bbx_logits").requires_grad_()
    outputs = RPNOutputs(ops("rpn/anchors"), obj, bbx)
    terms = rpn_losses(outputs, found, golden_images()[0], rpn(num_samples=number))
    (terms["obj_loss"][0] + terms["bbx_loss"][0]).backward()
    return terms["obj_loss"][0], terms["bbx_loss"][0], obj.grad, bbx.grad


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ("all", lambda: ops("rpn/match_all")),
        ("64", lambda: ops("rpn/match_64_seed3_pos.6_novoid")),
        ("nopos", lambda: ops("rpn/match_64_seed3_pos.6_novoid").clamp(max=BACKGROUND)),
        ("void", lambda: torch.full_like(ops("rpn/match_all"), IGNORED)),
    ],
)
def test_losses_equal_the_original(case, found):
    obj_loss, bbx_loss, dobj, dbbx = losses(found())
    assert_close(obj_loss, ops(f"rpn/loss_{case}/obj"))
    assert_close(bbx_loss, ops(f"rpn/loss_{case}/bbx"))
    assert dobj is not None, "every rank runs the same backward pass"
    assert dbbx is not None, "every rank runs the same backward pass"
    if case == "64":
        assert_close(dobj, ops("rpn/loss_64/dobj"))
        assert_close(dbbx, ops("rpn/loss_64/dbbx"))


def test_head_orders_its_outputs_as_the_anchors():
    head = RPNHead(rpn(hidden_channels=16), 8, InPlaceABN).eval()
    levels = [torch.randn(2, 8, 4, 6), torch.randn(2, 8, 2, 3)]
    obj, bbx, shapes = head(levels)
    assert shapes == [(4, 6), (2, 3)]
    assert obj.shape == (2, 90)
    assert bbx.shape == (2, 90, 4)
    hidden = head.bn1(head.conv1(levels[1]))
    anchor = 4 * 6 * 3 + (1 * 3 + 2) * 3 + 1  # second level, row 1, column 2, ratio 1
    assert_close(obj[:, anchor], head.conv_obj(hidden)[:, 1, 1, 2])
    assert_close(bbx[:, anchor], head.conv_bbx(hidden)[:, 4:8, 1, 2])


@pytest.mark.parametrize(("min_size", "training"), [(0, False), (0, True), (16, False)])
def test_proposals_equal_the_original(min_size, training):
    train = {"num_pre_nms_train": 300, "num_post_nms_train": 100}
    val = {"num_pre_nms_val": 200, "num_post_nms_val": 50}
    generator = ProposalGenerator(rpn(min_size=min_size, **train, **val))
    for image in range(2):
        boxes, scores = ops("proposal_generator/boxes")[image], ops("proposal_generator/scores")[image]
        wanted = ops(f"proposal_generator/minsize{min_size}_train{int(training)}/{image}")
        # a box code of zeros is the anchor itself; moved inside, so that nothing is clipped: these boxes never were
        given = torch.zeros(3, *boxes.shape), boxes + 8, [(200, 200)] * 3, training
        padded, counts = generator.padded(torch.stack((scores, -scores, scores)), *given)
        assert padded.shape == (3, min(100 if training else 50, len(boxes)), 4)
        alone = [*generator(torch.stack((-scores,)), given[0][:1], given[1], given[2][:1], training)]
        for rows, count, one in zip(padded, counts.tolist(), (wanted + 8, *alone, wanted + 8), strict=True):
            assert count == (0 if one is None else len(one))
            assert rows[count:].isnan().all()
            if count:
                assert_close(rows[:count], one, rtol=0, atol=1e-4)


def test_proposals_are_clipped_to_the_valid_size():
    anchors = torch.tensor([[-10.0, -10, 30, 30], [0, 0, 100, 100]])
    (boxes,) = ProposalGenerator(rpn(min_size=0))(
        torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2, 4), anchors, [(40, 50)], training=False
    )
    assert boxes.tolist() == [[0, 0, 30, 30], [0, 0, 40, 50]]


@pytest.mark.parametrize("limit", [0, -1])
def test_without_a_limit_all_proposals_are_kept(limit):
    anchors = torch.arange(5.0)[:, None] * 20 + torch.tensor([0.0, 0, 9, 9])
    generator = ProposalGenerator(rpn(min_size=0, num_pre_nms_val=limit, num_post_nms_val=limit))
    (boxes,) = generator(torch.arange(5.0)[None], torch.zeros(1, 5, 4), anchors, [(200, 200)], training=False)
    assert boxes.tolist() == anchors.flip(0).tolist()


def test_as_many_anchors_are_drawn_as_by_the_original():
    loose = rpn(pos_threshold=0.6, void_threshold=0)
    exact, fixed = (matches(AnchorMatcher(replace(loose, num_samples=64), fixed=choice)) for choice in (False, True))
    everything = matches(AnchorMatcher(replace(loose, num_samples=10**6, pos_ratio=1.0)))
    taken = fixed >= BACKGROUND
    assert_close(fixed[taken], everything[taken], rtol=0, atol=0)
    for kind in (lambda match: match >= 0, lambda match: match == BACKGROUND):
        assert kind(fixed).sum(1).tolist() == kind(exact).sum(1).tolist()
    assert not torch.equal(fixed, exact)


def test_losses_look_at_no_more_anchors_than_there_are_samples():
    found = ops("rpn/match_64_seed3_pos.6_novoid")
    assert_close(losses(found), losses(found, 64))
