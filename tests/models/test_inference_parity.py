"""The whole network on pictures, as trained and folded, stage by stage, against the original with the same weights.

Tolerances are about ten times what the original differs from itself between two convolution libraries. Its scores are
up to 1.5e-4 away from a run in float64. In float32 88 to 96 % of our scores are nearer than 1e-4 to the original's, by
the processor; so the average is held to 1e-4, and was at most 4.5e-5.

Between oneDNN's kernels for SSE4.1, AVX2 and AVX-512 and the original a score of the trained network differs by up to
1.9e-4, of the folded one by up to 4.3e-4, and a box by up to 0.031 pixels. Scores of the original are as near as 8e-6,
so such detections may change places. No other choice is that close.
"""

from unittest import mock

import pytest
import torch
from support.golden_files import has, tensor
from support.networks import NUM_STUFF, assert_order, golden_image
from torch.nn import functional

from seamseg.fusion import fuse
from seamseg.maps.panoptic_map import VOID
from seamseg.models.folding import for_inference
from seamseg.ops.fused import WinogradConv2d
from seamseg.structures import PackedSequence

CASES = {"single0": ["flower"], "single1": ["china"], "single2": ["astronaut"], "batch01": ["flower", "china"]}

TIE = 2e-4
"""Scores nearer than this may change places: what a score of the trained network differs by between two processors."""

LEAST_AREA = 4200
"""Of a class. With the original's 4096, two pixels would decide on one of 4094; no class has between 4096 and 4200."""


class Case:
    def __init__(self, name, net, config):
        self.name = name
        self.net = net
        self.images = PackedSequence([golden_image(image, config) for image in CASES[name]])
        with torch.no_grad():
            self.features = net.encode(self.images)
            self.anchors, self.obj_logits, self.bbx_logits = net.score_anchors(self.features)
        self.predictions = self.predict()

    def predict(self, **options):
        """By the network, from the features and anchors above, which take most of the time."""
        scored = self.anchors, self.obj_logits, self.bbx_logits
        with mock.patch.multiple(self.net, encode=lambda _: self.features, score_anchors=lambda _: scored):
            return self.net.predict(self.images, **options)

    def stored(self, name):
        return tensor("infer_cityscapes", f"cityscapes/{self.name}/{name}")

    def has(self, name):
        return has("infer_cityscapes", f"cityscapes/{self.name}/{name}")

    def __len__(self):
        return len(self.images)


# predictions are those of the folded network
@pytest.fixture(scope="module", params=[pytest.param("trained", marks=pytest.mark.slow), "folded"])
def net(request, golden_net):
    if request.param == "trained":
        return golden_net
    folded = for_inference(golden_net, torch.device("cpu"))
    assert sum(isinstance(layer, WinogradConv2d) for layer in folded.modules()) == 30
    return folded


# the images of `single0` and `single1` are in `batch01`, too
@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) if name in ("single0", "single1") else name for name in CASES],
)
def case(request, net, cityscapes):
    return Case(request.param, net, cityscapes)


def error(found, wanted):
    assert found.shape == wanted.shape
    return float((found.double() - wanted.double()).abs().max())


def test_features(case):
    assert list(case.features.padded_size) == case.stored("padded_size").tolist()
    assert [list(size) for size in case.features.valid_sizes] == case.stored("valid_size").tolist()
    assert [list(x.shape) for x in case.features.levels] == case.stored("fpn_shapes").tolist()
    for i, x in enumerate(case.features.levels):
        flat = x.contiguous().flatten()
        assert error(flat[case.stored(f"fpn{i}_idx")], case.stored(f"fpn{i}_val")) < 2e-4
        stats = torch.stack([flat.double().mean(), flat.double().std(correction=0), flat.double().abs().max()])
        assert error(stats, case.stored(f"fpn{i}_stats")) < 5e-4


def test_anchors_and_their_logits(case):
    index = case.stored("rpn_idx")
    assert case.anchors.shape[0] == int(case.stored("rpn_num_anchors"))
    assert error(case.anchors[index], case.stored("rpn_anchors")) == 0
    assert error(case.obj_logits[:, index], case.stored("rpn_obj_logits")) < 1e-3
    assert error(case.bbx_logits[:, index], case.stored("rpn_bbx_logits")) < 2e-4


def test_proposals(case):
    proposals = case.net.options.proposals(
        case.obj_logits, case.bbx_logits, case.anchors, case.features.valid_sizes, training=False
    )
    for i, found in enumerate(proposals):
        wanted = case.stored(f"proposals_{i}")
        distance = (found[:, None] - wanted[None]).abs().amax(dim=-1)
        assert found.shape == wanted.shape
        assert (distance.amin(dim=0) < 0.01).float().mean() >= 0.999, "the same boxes"
        assert (distance.diagonal() < 0.01).float().mean() > 0.97, "in the same order but for near ties"


@torch.no_grad()
def test_region_logits_of_the_original_proposals(case):
    boxes, index = PackedSequence([case.stored(f"proposals_{i}") for i in range(len(case))]).concatenated()
    assert torch.equal(case.net.options.rois.level_of(boxes), case.stored("roi_target_level").long())
    rows = case.stored("roi_idx")
    rois = case.net.options.rois(case.features.levels, boxes[rows], index[rows], case.features.padded_size)
    cls, bbx = case.net.roi_head.boxes(rois)
    assert error(cls, case.stored("roi_cls_logits")) < 8e-4
    assert error(bbx, case.stored("roi_bbx_logits")) < 4e-4


@torch.no_grad()
def test_region_logits_of_fixed_boxes_on_all_levels(case):
    boxes, index = case.stored("fixed_bbx"), case.stored("fixed_img")
    assert torch.equal(case.net.options.rois.level_of(boxes).float(), case.stored("fixed_level"))
    rois = case.net.options.rois(case.features.levels, boxes, index, case.features.padded_size)
    cls, bbx = case.net.roi_head.boxes(rois)
    assert error(cls, case.stored("fixed_cls_logits")) < 8e-4
    assert error(bbx[:, :4], case.stored("fixed_bbx_logits")) < 4e-4
    masks = case.net.roi_head.masks(rois)
    assert error(masks.flatten(1)[:, case.stored("fixed_msk_idx")], case.stored("fixed_msk_logits")) < 1.7e-3


def check_detections(case, i, found):
    """The same set of (class, box, score, mask), and the same order but for near ties."""
    boxes, classes, scores = (case.stored(f"{name}_pred_{i}") for name in ("bbx", "cls", "obj"))
    assert len(found.boxes) == len(found.classes) == len(found.scores) == len(boxes)
    # number of our detection that each stored one is: the nearest of its class, each once
    distance = (found.boxes[None] - boxes[:, None]).abs().amax(dim=-1)
    order = torch.where(found.classes[None] == classes[:, None], distance, torch.inf).argmin(dim=1)
    assert_order(order, scores, TIE)
    assert found.classes[order].tolist() == classes.tolist()
    moved = (found.boxes[order] - boxes).abs().amax(dim=1)
    assert moved.mean() < 0.005
    assert moved.max() < 0.05
    differs = (found.scores[order] - scores).abs()
    assert differs.mean() < 1e-4
    assert differs.max() < 7e-4
    at = case.stored("msk_idx" if case.has("msk_idx") else f"msk_idx_{i}")
    wanted = case.stored(f"msk_val_{i}")
    logits = (found.mask_logits.flatten(1)[order][:, at] - wanted).abs()
    assert logits.mean() < 2e-4 * float(wanted.abs().max())
    assert logits.max() < 1e-2 * float(wanted.abs().max())
    assert list(found.mask_logits.shape) == case.stored(f"msk_shape_{i}").tolist()


def test_detections(case):
    for i, found in enumerate(case.predictions):
        check_detections(case, i, found)


@torch.no_grad()
def test_semantic_logits(case):
    logits = case.net.sem_head(case.features.levels)
    logits = functional.interpolate(logits, size=case.features.padded_size, mode="bilinear", align_corners=False)
    for i, x in enumerate(logits):
        found = x[:, case.stored(f"sem_y_{i}"), case.stored(f"sem_x_{i}")].t()
        assert error(found, case.stored(f"sem_logits_{i}")) < 2.5e-3


def test_semantic_map(case):
    for i, found in enumerate(case.predictions):
        agree = (found.semantic == case.stored(f"sem_pred_{i}")).double().mean()
        assert agree > 0.9998


def check_panoptic_map(case, i, fused):
    """The same segments, numbered by falling score but for near ties, and the same pixels."""
    ids, categories, scores, iscrowd = (case.stored(f"pan_{name}_{i}") for name in ("msk", "cat", "obj", "iscrowd"))
    fused_ids = torch.from_numpy(fused.ids)
    count = len(categories)
    assert len(fused.categories) == len(fused.scores) == len(fused.iscrowd) == count
    shared = torch.bincount((ids.long() * count + fused_ids).flatten(), minlength=count**2).view(count, count)
    order = shared.argmax(dim=1)
    # only instances have scores that can tie; stuff and crowds follow by class
    is_instance = categories.ge(NUM_STUFF) & categories.ne(VOID) & ~iscrowd.bool()
    assert_order(order, torch.where(is_instance, scores, -torch.arange(count)), TIE)
    assert torch.tensor(fused.categories)[order].tolist() == categories.tolist()
    assert torch.tensor(fused.iscrowd)[order].tolist() == iscrowd.bool().tolist()
    assert (torch.tensor(fused.scores)[order] - scores).abs().max() < 5e-4
    assert (fused_ids == order[ids.long()]).double().mean() > 0.9995


def test_panoptic_map(case):
    # none of the golden pictures has a kept detection with an empty mask
    for i, prediction in enumerate(case.predictions):
        check_panoptic_map(case, i, fuse(prediction, NUM_STUFF, 0.5, 0.5, LEAST_AREA))
