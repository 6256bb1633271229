"""Refinement of masks at points: places and values of samples, uncertain points first, gradients, fixed shapes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.testing import assert_close

from seamseg.config.loader import default_config
from seamseg.models.heads.custom import HeadContext
from seamseg.models.heads.refinement import Regions, RegionTruth
from seamseg.models.heads.roi_targets import IGNORED_PIXEL, ROISample, mask_targets, pixel_loss
from seamseg.ops.norm import InPlaceABN
from seamseg.recipes.mask_points import PointHead, PointKeys, PointOutputs, places_of, sample_coarse, sample_points

PADDED = (64, 96)


def source_of(count=3, images=2, channels=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    fine = torch.randn(images, channels, 16, 24, generator=generator, dtype=dtype)
    corners = torch.rand(count, 2, generator=generator) * 30
    boxes = torch.cat((corners, corners + 10 + torch.rand(count, 2, generator=generator) * 20), dim=1)
    index = torch.arange(count) % images
    coarse = torch.randn(count, 8, 8, generator=generator, dtype=dtype) * 3
    return Regions([fine], PADDED, boxes, index, torch.arange(count) % 3, coarse)


def head_of(points=16, subdivisions=2, channels=6):
    torch.manual_seed(0)
    context = HeadContext(5, (4, 8), 2, 3, InPlaceABN, default_config())
    return PointHead(PointKeys(points, subdivisions, channels), context)


def truth_of(boxes, match, ids, masks, void_is_background=False):
    """Of one image, all samples of which are leading."""
    return RegionTruth([ROISample(boxes, match, None, len(boxes))], [ids], [masks], void_is_background)


def as_boxes(places):
    return torch.cat((places, places), dim=-1)


@settings(max_examples=30)
@given(st.integers(0, 5), st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_samples_of_the_coarse_mask_are_bilinear(count, height, width, seed):
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, height, width, generator=generator)
    points = torch.rand(count, 7, 2, generator=generator)
    grid = (2 * points - 1).flip(-1)[:, None]
    wanted = functional.grid_sample(coarse[:, None], grid, padding_mode="border", align_corners=False)[:, 0, 0]
    assert_close(sample_coarse(coarse, points), wanted, rtol=1e-4, atol=1e-4)


def test_features_are_those_of_the_finest_level_at_the_point():
    """As for the features of regions, cell k of a level is at pixel 4 k of the image, whose centre is 4 k + .5."""
    head, source = head_of(), source_of()
    rows = torch.arange(16.0)[:, None].expand(16, 24) * 4 + 0.5
    columns = torch.arange(24.0).expand(16, 24) * 4 + 0.5
    source = source._replace(levels=[torch.stack((rows, columns)).repeat(2, 3, 1, 1)[:, :5]])
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        for layer in head.layers:
            layer.weight[:2, :2] = torch.eye(2)
        head.output.weight[:, 0], head.output.weight[:, 1] = 1, 100
    points = torch.rand(3, 9, 2) * 0.8 + 0.1
    places = places_of(source, points)
    found = head.logits(source, points) - sample_coarse(source.coarse, points)
    assert_close(found, places[..., 0] + 100 * places[..., 1], rtol=1e-4, atol=1e-2)


def test_most_points_are_where_the_mask_is_uncertain():
    coarse = torch.linspace(-6, 6, 28).expand(4, 28, 28)
    torch.manual_seed(0)
    points = sample_points(coarse, 40)
    assert points.shape == (4, 40, 2)
    assert points.min() >= 0
    assert points.max() <= 1
    near = (points[..., 1] - 0.5).abs() < 0.2
    # of 120 candidates, about 48 lie there, of which the 30 next to the edge are taken
    assert near[:, :30].all()
    assert 0.1 < near[:, 30:].float().mean() < 0.7
    assert torch.equal(sample_points(coarse[:0], 40), torch.zeros(0, 40, 2))


def test_targets_are_those_of_the_mask():
    """At the centres of the cells of a mask target."""
    masks = torch.randint(0, 4, (1, 40, 50), generator=torch.Generator().manual_seed(0))
    boxes = torch.tensor([[3.0, 5, 31, 44], [0, 0, 40, 50], [10, 10, 20, 20]])
    match, ids = torch.tensor([0, 1, -1]), torch.tensor([2, 3])
    centres = (torch.arange(6) + 0.5) / 6
    grid = torch.stack(torch.meshgrid(centres, centres, indexing="ij"), dim=-1).view(1, 36, 2).expand(3, 36, 2)
    places = boxes[:, None, :2] + grid * (boxes[:, None, 2:] - boxes[:, None, :2])
    for void in (True, False):
        wanted = mask_targets(boxes, match, ids, masks, (6, 6), void).flatten(1)
        truth = truth_of(boxes, match, ids, masks, void)
        assert torch.equal(truth.inside(as_boxes(places), (1, 1)).flatten(1), wanted)
        assert torch.equal(truth.inside(boxes[:, None], (6, 6))[:, 0].flatten(1), wanted)
    assert wanted.unique().tolist() == [IGNORED_PIXEL, 0, 1]
    logits = torch.linspace(-3, 3, wanted.numel()).view_as(wanted)
    assert head_of().loss(PointOutputs(places, logits), truth) == pixel_loss(logits, wanted)[0]


def test_points_that_are_ignored_cost_nothing():
    logits = torch.randn(2, 5, requires_grad=True)
    targets = torch.tensor([[1.0, 0, 1, -1, 0], [-1.0] * 5])
    loss, _ = pixel_loss(logits, targets)
    loss.backward()
    kept = targets[0] >= 0
    wanted = functional.binary_cross_entropy_with_logits(logits[0][kept], targets[0][kept])
    assert_close(loss, wanted)
    assert not logits.grad[targets < 0].any()
    assert pixel_loss(logits, torch.full((2, 5), -1.0))[0] == 0


@pytest.mark.parametrize("subdivisions", [0, 1, 2])
def test_only_the_most_uncertain_cells_are_predicted(subdivisions, monkeypatch):
    """In chunks of two regions."""
    monkeypatch.setattr("seamseg.recipes.mask_points._CHUNK", 2)
    head, source = head_of(subdivisions=subdivisions), source_of()
    with torch.no_grad():
        # far from what it would be otherwise
        head.output.bias += 1000
        masks = head.refine(source)
        plain = functional.interpolate(source.coarse[:, None], scale_factor=2.0, mode="bilinear")[:, 0]
    assert masks.shape == (3, 8 << subdivisions, 8 << subdivisions)
    if subdivisions == 0:
        assert torch.equal(masks, source.coarse)
    if subdivisions == 1:
        predicted = masks > 500
        assert predicted.flatten(1).sum(dim=1).tolist() == [64] * 3
        assert torch.equal(masks[~predicted], plain[~predicted])
        for one, chosen in zip(plain.abs(), predicted):
            assert one[chosen].max() <= one[~chosen].min()
    assert head.refine(source.part(slice(0, 0))).shape == (0, 8 << subdivisions, 8 << subdivisions)


def test_gradients():
    head = head_of().double()
    source = source_of(dtype=torch.float64)
    fine = source.levels[0][:, :, :3, :2].clone()
    source = source._replace(coarse=source.coarse[:, :3, :2].clone())
    points = torch.rand(3, 4, 2, dtype=torch.float64)

    def call(fine, coarse):
        return head.logits(source._replace(levels=[fine], coarse=coarse), points)

    leaves = [fine.requires_grad_(), source.coarse.requires_grad_()]
    assert torch.autograd.gradcheck(call, leaves)
    call(*leaves).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in head.parameters())
