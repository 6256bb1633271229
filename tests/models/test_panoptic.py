"""How the network behaves: batches of several sizes, images with nothing to learn, determinism, misuse."""

from dataclasses import replace

import pytest
import torch
from support.networks import narrow_module, tiny_config, toy_batch
from torch.testing import assert_close

from seamseg.config.checks import check_training
from seamseg.models.panoptic import Things
from seamseg.structures import PackedSequence
from seamseg.utils.errors import InputError


def test_things_leave_out_stuff_crowds_and_absent_ids():
    batch = toy_batch((32, 32), (32, 32), (32, 32), empty=(1,), crowd=(2,))
    batch.boxes[0][3] = -1
    one, none, crowd = Things.of(batch, 2)
    assert one.ids.tolist() == [4]
    assert one.classes.tolist() == [2]
    assert one.crowd is None
    assert none.ids.shape == (0,)
    assert none.boxes.shape == (0, 4)
    assert crowd.ids.tolist() == [3]
    assert torch.equal(crowd.crowd, batch.masks[2][0] == 4)


@pytest.mark.parametrize("keys", ["roi.fixed_samples=yes", "roi.fixed_samples=no", "roi.mask_refinement=points"])
def test_empty_images_give_the_roi_head_gradients_of_zero(keys):
    module = narrow_module(keys)
    found = module(toy_batch((64, 64), (64, 64), empty=(0, 1)))
    losses, counts = found.means, found.counts
    for name in ("roi_cls_loss", "roi_bbx_loss", "roi_msk_loss"):
        assert losses[name] == counts[name] == 0
        assert losses[name].requires_grad
    sum(losses.values()).backward()
    assert all(p.grad is not None and not p.grad.any() for p in module.net.roi_head.parameters())
    assert all(p.grad.isfinite().all() for p in module.net.parameters())


def test_an_image_of_void_only():
    module = narrow_module()
    batch = toy_batch((64, 64), empty=(0,))
    batch.masks[0].zero_()
    losses = module(batch).means
    assert all(torch.isfinite(loss) for loss in losses.values())
    assert losses["sem_loss"] == 0


def test_predictions_of_a_batch_of_one_size_equal_those_alone():
    net = narrow_module().net.eval()
    images = toy_batch((64, 96), (64, 96)).images
    together = net.predict(images)
    for i, found in enumerate(together):
        (alone,) = net.predict(images[i : i + 1])
        assert found.size == alone.size == (64, 96)
        assert_close(found.boxes, alone.boxes, rtol=1e-4, atol=1e-3)
        assert (found.semantic == alone.semantic).float().mean() > 0.999


@pytest.mark.parametrize("size", [(1, 1), (5, 300), (33, 31)])
def test_odd_sizes_predict(size):
    net = narrow_module().net.eval()
    (prediction,) = net.predict(PackedSequence([torch.randn(3, *size)]))
    assert prediction.semantic.shape == size
    assert prediction.mask_logits.shape[1:] == (16, 16)
    assert len(prediction.boxes) == len(prediction.classes) == len(prediction.scores) == len(prediction.mask_logits)


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
    assert_close(levels, contiguous, rtol=1e-3, atol=1e-4)
    # with the same format the weights are shared
    assert net.with_options(pad_to=32).body is net.body


@pytest.mark.parametrize("mode", ["bn", "gn", "off"])
def test_bfloat16(mode):
    module, batch = narrow_module(mode=mode), toy_batch((64, 96), (80, 64), crowd=(0,))
    results = []
    for enabled in (False, True):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            results.append(module(batch).means)
    for name, wanted in results[0].items():
        assert_close(results[1][name], wanted, rtol=0.1, atol=0.05, msg=name)
    sum(results[1].values()).backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())
    module.eval()
    with torch.autocast("cpu", torch.bfloat16):
        prediction = module.net.predict(batch.images)[0]
    assert {prediction.boxes.dtype, prediction.scores.dtype, prediction.mask_logits.dtype} == {torch.float32}


def test_predict_wants_evaluation_mode():
    with pytest.raises(RuntimeError, match=r"call eval\(\) first"):
        narrow_module().net.predict(toy_batch((32, 32)).images)


# Optional layers and losses

RECIPES = (
    "roi.box_convs=2",
    "roi.mask_refinement=points",
    "mask_refinement points.points=12",
    "roi.box_loss=cabb",
    "dataloader.crop_size=(64, 64)",
)


def borders(batch, *cut):
    """The flags `cut` of each image for all of its ids."""
    return PackedSequence([torch.tensor(sides).expand(len(cat), 4) for sides, cat in zip(cut, batch.categories)])


@pytest.mark.parametrize("fixed", [pytest.param("yes", marks=pytest.mark.slow), "no"])
def test_the_crop_aware_loss_of_a_network(fixed):
    """Without cut boxes it is the plain one to the bit; boxes that are cut cost less, and other losses are the same."""
    batch = toy_batch((64, 96), (80, 64), (48, 48), empty=(2,))
    batch.boxes[0][3, 1] = 0
    values = {}
    for name, loss, cut in (("plain", "smooth_l1", True), ("whole", "cabb", False), ("cut", "cabb", True)):
        sides = borders(batch, (False, cut, False, False), (cut,) * 4, (cut,) * 4)
        module = narrow_module(f"roi.box_loss={loss}", *RECIPES[-1:], f"roi.fixed_samples={fixed}")
        torch.manual_seed(1)
        losses = module(replace(batch, cut=sides)).means
        sum(losses.values()).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
        values[name] = {key: value.item() for key, value in losses.items()}
    assert values["whole"] == values["plain"]
    assert values["cut"]["roi_bbx_loss"] < values["plain"]["roi_bbx_loss"]
    assert values["cut"]["bbx_loss"] <= values["plain"]["bbx_loss"]
    boxes = ("bbx_loss", "roi_bbx_loss")
    assert {k: v for k, v in values["cut"].items() if k not in boxes} == {
        k: v for k, v in values["plain"].items() if k not in boxes
    }


def test_a_crop_aware_loss_needs_crops():
    with pytest.raises(
        InputError, match=r"\[roi\] box_loss = cabb is for training on crops: set \[dataloader\] crop_size"
    ):
        check_training(tiny_config(overrides=("roi.box_loss=cabb",)), "my.ini")


def test_masks_refined_at_points():
    """The loss of points is a part of that of masks; predicted masks are larger, those before refinement the same."""
    batch = toy_batch((64, 96), (80, 64), empty=(1,))
    # points are drawn before the anchors: all of these are used
    every = ("rpn.num_samples=100000",)
    plain, module = (
        narrow_module(*every),
        narrow_module(*every, "roi.mask_refinement=points", "mask_refinement points.points=12"),
    )
    module.net.load_state_dict(plain.net.state_dict(), strict=False)
    losses = []
    for one in (plain, module):
        torch.manual_seed(1)
        losses.append({name: value.item() for name, value in one(batch).means.items()})
    for name in losses[0]:
        assert (losses[0][name] == losses[1][name]) == (name != "roi_msk_loss"), name
    assert losses[1]["roi_msk_loss"] > losses[0]["roi_msk_loss"]
    net = module.net.eval()
    (found,) = net.predict(PackedSequence([batch.images[0]]))
    assert found.mask_logits.shape == (len(found.classes), 64, 64)
    net.roi_head.refinement.subdivisions = 0
    (coarse,) = net.predict(PackedSequence([batch.images[0]]))
    assert coarse.mask_logits.shape == (len(found.classes), 16, 16)
    assert len(found.classes) > 0
    assert torch.equal(coarse.boxes, found.boxes)


@pytest.mark.parametrize(
    ("mode", "overrides"),
    [("bn", ()), ("bn", (*RECIPES, "roi.fixed_samples=yes")), ("syncbn+gn", (*RECIPES, "roi.fixed_samples=no"))],
)
def test_crowds_several_sizes_and_optional_losses_train(mode, overrides):
    module = narrow_module(*overrides, mode=mode)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)
    batch = toy_batch((64, 96), (80, 64), (48, 48), empty=(2,), crowd=(0,))
    batch = replace(batch, cut=borders(batch, (False, True, True, False), (True,) * 4, (True,) * 4))
    totals = []
    for _ in range(8):
        total = sum(module(batch).means.values())
        optimizer.zero_grad()
        total.backward()
        assert all(p.grad is not None for p in module.parameters())
        optimizer.step()
        totals.append(total.item())
    assert totals[-1] < totals[0]


@pytest.mark.parametrize("fixed", ["yes", "no"])
def test_same_seed_same_bits(fixed):
    results = []
    for _ in range(2):
        module = narrow_module(f"roi.fixed_samples={fixed}")
        losses = module(toy_batch((64, 96), (80, 64), crowd=(0,))).means
        sum(losses.values()).backward()
        results.append([*losses.values(), *[p.grad for p in module.parameters()]])
    assert all(torch.equal(a, b) for a, b in zip(*results))


POSITIVES = "roi.mask_positives_only=yes"


@pytest.mark.parametrize("fixed", ["yes", "no"])
@pytest.mark.parametrize("kind", ["panoptic", "instance_seg"])
def test_masks_of_positives_only(kind, fixed):
    """With a norm of single regions nothing changes but the order of sums; the mask branch runs on fewer rows."""
    batch = toy_batch((64, 96), (80, 64), (48, 48), empty=(2,))
    common = (f"roi.fixed_samples={fixed}", "roi.sample_empty_images=yes", *RECIPES[1:3])
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


@pytest.mark.parametrize("mode", ["bn", "syncbn+gn"])
def test_masks_of_positives_without_a_positive(mode):
    """Its norms keep their statistics, and every parameter gets a gradient, of 0 in the mask branch."""
    module = narrow_module(POSITIVES, "roi.sample_empty_images=yes", *RECIPES[1:3], mode=mode)
    before = {name: value.clone() for name, value in module.net.roi_head.conv.named_buffers()}
    losses = module(toy_batch((64, 64), empty=(0,))).means
    assert losses["roi_cls_loss"] > losses["roi_msk_loss"] == 0
    sum(losses.values()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.net.parameters())
    assert not any(p.grad.any() for p in module.net.roi_head.conv.parameters())
    assert all(torch.equal(before[name], value) for name, value in module.net.roi_head.conv.named_buffers())
