"""Training on samples of fixed numbers: the losses and gradients of exact samples, where both take all candidates."""

import pytest
import torch
from support.networks import narrow_module, toy_batch
from torch.testing import assert_close

ALL = ("roi.num_samples=300", "roi.pos_ratio=0.5", "rpn.num_samples=100000")
"""Room for every candidate: the two ways then differ in the rows that fill up only."""


def trained(batch, *overrides, mode="gn"):
    """Losses, counts and gradients."""
    module = narrow_module(*overrides, mode=mode)
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


def test_equal_statistics_where_nothing_fills_up():
    """With as many rows as candidates the batch of the norms is the same, in another order."""
    batch = toy_batch((64, 96))
    module = narrow_module(*ALL, mode="bn")
    count = module.net(batch.images, batch).rois.samples[0].boxes.shape[0]
    common = (*ALL, f"roi.num_samples={count}", "roi.pos_ratio=1")
    exact = trained(batch, *common, mode="bn")
    fixed = trained(batch, *common, "roi.fixed_samples=yes", mode="bn")
    assert exact[1]["roi_cls_loss"] == fixed[1]["roi_cls_loss"] == count
    assert_close(fixed[0], exact[0], rtol=1e-5, atol=1e-6)
    for name, wanted in exact[2].items():
        assert (fixed[2][name] - wanted).norm() <= 2e-3 * wanted.norm() + 1e-5, name


def test_every_image_gives_the_same_number_of_rows():
    module = narrow_module("roi.fixed_samples=yes", mode="bn")
    for batch in (toy_batch((64, 96), (48, 48), empty=(1,)), toy_batch((64, 64), (64, 64), empty=(0, 1))):
        rois = module.net(batch.images, batch).rois
        assert [s.boxes.shape for s in rois.samples] == [(24, 4)] * 2
        assert rois.cls_logits.shape == (48, 4)
        assert rois.msk_logits.shape[0] == 12 == sum(s.leading for s in rois.samples)


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
