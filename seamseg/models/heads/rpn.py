"""The RPN head: anchors, region proposals, and the targets and losses of both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.config.sections import Rpn
from seamseg.models.backbones.base import NormFactory
from seamseg.models.network import Terms
from seamseg.ops.boxes import clip_boxes, crowd_fraction, decode_boxes, encode_boxes, match_boxes, smooth_l1
from seamseg.ops.nms import best_scores, first_true, nms_fixed, nth_true, rank_samples
from seamseg.ops.norm import run_layers
from seamseg.structures import PackedSequence, Things, upload

Sizes: TypeAlias = Sequence["tuple[int, int] | Tensor"]
"""`(height, width)` of each image without its padding, or tensors, see :func:`seamseg.ops.boxes.clip_boxes`."""


@dataclass(frozen=True)
class AnchorGenerator:
    """All anchors of levels of the pyramid (docs/contract.md, section 4 "Anchors").

    `strides` are the distances of the anchors of each level in pixels.
    """

    config: Rpn
    strides: tuple[int, ...]

    @lru_cache(maxsize=16)  # noqa: B019 (generators are few, and equal ones share their anchors)
    def __call__(self, shapes: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
        """Return the anchors `A x 4` of levels of the given `(height, width)`, by level, row, column and ratio."""
        # cached for later calls, which may be outside of inference mode
        with torch.inference_mode(False):
            levels = []
            for stride, shape in zip(self.strides, shapes, strict=True):
                rows, centre = [], stride / 2
                for ratio in self.config.anchor_ratios:
                    height = stride * self.config.anchor_scale * math.sqrt(ratio)
                    width = stride * self.config.anchor_scale * math.sqrt(1 / ratio)
                    rows.append([centre - height / 2, centre - width / 2, centre + height / 2, centre + width / 2])
                # rounded to float32 before they are shifted
                cell = upload(torch.tensor(rows, dtype=torch.float64).float(), device)
                levels.append(self.level_anchors(stride, shape, cell))
            return torch.cat(levels)

    def level_anchors(self, stride: int, shape: tuple[int, int], cell: Tensor) -> Tensor:
        """Return the anchors of a level, `A x 4`, by those of its first cell, `ratios x 4`; sizes may be symbolic."""
        y = torch.arange(shape[0], dtype=torch.float32, device=cell.device) * stride
        x = torch.arange(shape[1], dtype=torch.float32, device=cell.device) * stride
        shift = torch.stack(torch.meshgrid(y, x, indexing="ij"), dim=-1).repeat(1, 1, 2)
        return (shift[:, :, None, :] + cell).reshape(-1, 4)


class RPNHead(nn.Module):
    """Objectness and box codes of every anchor, weights shared by the levels (docs/contract.md, section 3 "RPN head").

    Parameters
    ----------
    config : the section `[rpn]`
    in_channels : channels of the levels
    norm : factory of norm + activation layers
    """

    def __init__(self, config: Rpn, in_channels: int, norm: NormFactory) -> None:
        super().__init__()
        self.used = slice(config.fpn_min_level, config.fpn_min_level + config.fpn_levels)
        hidden_channels, num_anchors = config.hidden_channels, len(config.anchor_ratios)
        self.conv1 = nn.Conv2d(in_channels, hidden_channels, 3, stride=config.stride, padding=1, bias=False)
        self.bn1 = norm(hidden_channels)
        self.conv_obj = nn.Conv2d(hidden_channels, num_anchors, 1)
        self.conv_bbx = nn.Conv2d(hidden_channels, num_anchors * 4, 1)

    def forward(self, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
        """Score the anchors of the pyramid `N x C x h x w`, finest level first, of which it uses some.

        Return objectness logits `N x A`, ordered by level, row, column, ratio, box codes `N x A x 4`, and the `(height,
        width)` of the grid of cells of each level in use.
        """
        obj_logits, bbx_logits, shapes = [], [], []
        for x in levels[self.used]:
            hidden = run_layers((self.conv1, self.bn1), x)
            n, _, h, w = hidden.shape
            obj_logits.append(self.conv_obj(hidden).permute(0, 2, 3, 1).reshape(n, -1))
            bbx_logits.append(self.conv_bbx(hidden).permute(0, 2, 3, 1).reshape(n, -1, 4))
            shapes.append((h, w))
        return torch.cat(obj_logits, dim=1), torch.cat(bbx_logits, dim=1), shapes


class RPNOutputs(NamedTuple):
    """The anchors of a batch, `A x 4`, their objectness logits `N x A` and their box codes `N x A x 4`."""

    anchors: Tensor
    obj_logits: Tensor
    bbx_logits: Tensor


BACKGROUND = -1
"""Match of an anchor or a proposal that is background."""
IGNORED = -2
"""Match of an anchor that is excluded from the losses."""


@dataclass(frozen=True)
class AnchorMatcher:
    """Match anchors with ground-truth boxes and sample some of them (docs/contract.md, section 4 "RPN targets").

    If `fixed`, the device samples with its generator, and the host does not wait for a count; otherwise the host, with
    torch's global generator, as the original does.
    """

    config: Rpn
    fixed: bool = False

    @torch.no_grad()
    def sample(self, anchors: Tensor, things: Sequence[Things], valid_sizes: Sequence[tuple[int, int]]) -> Tensor:
        """Return what anchors `A x 4` match, int64 `N x A`: a thing, :data:`BACKGROUND` or :data:`IGNORED`."""
        matches = torch.stack([self._match(anchors, *image) for image in zip(things, valid_sizes, strict=True)])
        if not self.fixed:
            return self._sample_on_host(matches)
        most, number = self.config.most_positive, self.config.num_samples
        _, order, found = rank_samples(matches >= 0, matches == BACKGROUND, most, number)
        kept = torch.zeros_like(matches, dtype=torch.bool).scatter(1, order, found)
        return torch.where(kept, matches, IGNORED)

    def _match(self, anchors: Tensor, things: Things, valid_size: tuple[int, int]) -> Tensor:
        (height, width), boxes = valid_size, things.boxes
        usable = (anchors[:, :2] >= 0).all(dim=1) & (anchors[:, 2] <= height) & (anchors[:, 3] <= width)
        # an unused anchor becomes an empty box, which overlaps nothing
        anchors = torch.where(usable[:, None], anchors, 0.0)
        if self.config.void_threshold > 0 and things.crowd is not None:
            usable = usable & (crowd_fraction(anchors, things.crowd) < self.config.void_threshold)
            anchors = torch.where(usable[:, None], anchors, 0.0)
        match = torch.where(usable, BACKGROUND, IGNORED)
        if boxes.shape[0] == 0:
            return match
        highest, nearest, best_iou, best_anchor = match_boxes(anchors, boxes)
        match = torch.where(highest < self.config.neg_threshold, match, IGNORED)
        match = torch.where(highest >= self.config.pos_threshold, nearest, match)

        # an anchor is matched with the box that it is the best anchor of, even if another box overlaps it more;
        # the last of several such boxes counts
        candidates = torch.where(best_iou > 0, torch.arange(boxes.shape[0], device=boxes.device), IGNORED)
        forced = torch.full_like(match, IGNORED).scatter_reduce(0, best_anchor, candidates, "amax")
        return torch.where(usable, torch.where(forced >= 0, forced, match), IGNORED)

    def _sample_on_host(self, matches: Tensor) -> Tensor:
        positive, negative = matches >= 0, matches == BACKGROUND
        counts = torch.stack((positive.sum(1), negative.sum(1)), dim=1).tolist()
        rows = list(matches)
        for i, (num_positive, num_negative) in enumerate(counts):
            wanted = min(self.config.most_positive, num_positive)
            limits = (positive[i], num_positive, wanted), (negative[i], num_negative, self.config.num_samples - wanted)
            for mask, count, limit in limits:
                if limit < count:
                    ranks = upload(torch.randperm(count)[:limit], mask.device)
                    kept = torch.zeros_like(mask).index_fill(0, nth_true(mask, ranks), True)
                    rows[i] = torch.where(mask & ~kept, IGNORED, rows[i])
        return torch.stack(rows)


@dataclass(frozen=True)
class ProposalGenerator:
    """Proposals: the best boxes of an image that do not overlap much (docs/contract.md, section 4 "Proposals")."""

    config: Rpn

    @torch.no_grad()
    def __call__(
        self, obj_logits: Tensor, bbx_logits: Tensor, anchors: Tensor, valid_sizes: Sizes, training: bool
    ) -> PackedSequence:
        """Return the proposals `K x 4` of each image by decreasing score, or None; the host waits for their numbers."""
        boxes, counts = self.padded(obj_logits, bbx_logits, anchors, valid_sizes, training)
        return PackedSequence([rows[:count] if count > 0 else None for rows, count in zip(boxes, counts.tolist())])

    @torch.no_grad()
    def padded(
        self, obj_logits: Tensor, bbx_logits: Tensor, anchors: Tensor, valid_sizes: Sizes, training: bool
    ) -> tuple[Tensor, Tensor]:
        """Choose the proposals of each image, in tensors whose shapes do not depend on their number.

        From logits `N x A`, box codes `N x A x 4` and anchors `A x 4` to boxes `N x K x 4`, by decreasing score, then
        NaN, K the largest possible number, and the number of proposals of each image, int64 `N`.
        """
        count = self.config.num_pre_nms_train if training else self.config.num_pre_nms_val
        candidates = [
            self.candidates(scores, codes, anchors, size, count)
            for scores, codes, size in zip(obj_logits.float(), bbx_logits.float(), valid_sizes)
        ]
        # NMS for all images at once
        boxes, scores, large = (torch.cat(parts) for parts in zip(*candidates))
        images, most = len(candidates), max(part.shape[0] for part, _, _ in candidates)
        image = torch.cat([torch.full_like(part, i, dtype=torch.long) for i, (_, part, _) in enumerate(candidates)])
        # small boxes form a group of their own, in which all but one are suppressed
        image = torch.where(large, image, images)
        unit_box = torch.cat((torch.zeros_like(boxes[:1, :2]), torch.ones_like(boxes[:1, :2])), dim=1)
        num_post = self.config.num_post_nms_train if training else self.config.num_post_nms_val
        boxes = torch.where(large[:, None], boxes, unit_box) if self.config.min_size > 0 else boxes
        kept, _ = nms_fixed(boxes, scores, self.config.nms_threshold, num_post, image)

        image = torch.where(kept >= 0, image[kept], images)
        # the rows of each image, in their order
        order = torch.argsort(image, stable=True)
        stops = torch.searchsorted(image[order], torch.arange(images, device=image.device), right=True)
        starts = torch.cat((stops.new_zeros(1), stops[:-1]))
        row = starts[:, None] + torch.arange(min(num_post, most) if num_post > 0 else most, device=image.device)
        exists = row < stops[:, None]
        kept = kept[order[torch.where(exists, row, 0)]]
        return torch.where(exists[:, :, None], boxes[kept], torch.nan), stops - starts

    def candidates(
        self,
        scores: Tensor,
        codes: Tensor,
        anchors: Tensor,
        size: tuple[int, int] | Tensor,
        count: int,
        best: Callable[[Tensor, int], Tensor] = best_scores,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what NMS chooses from in an image: boxes and scores, by decreasing score, and which are large enough.

        All anchors are candidates if `count` is not positive. The boxes are clipped to an image of `size`.
        """
        if self.config.min_size <= 0:
            # nothing is dropped for its size, so only the best need decoding
            chosen = best(scores, count)
            anchors, codes, scores = anchors[chosen], codes[chosen], scores[chosen]
            return clip_boxes(decode_boxes(anchors, codes), size), scores, torch.ones_like(scores, dtype=torch.bool)
        boxes = clip_boxes(decode_boxes(anchors, codes), size)
        large = ((boxes[:, 2:] - boxes[:, :2]) >= self.config.min_size).all(dim=1)
        scores = torch.where(large, scores, -torch.inf)
        chosen = best(scores, count)
        return boxes[chosen], scores[chosen], large[chosen]


def rpn_losses(outputs: RPNOutputs, matches: Tensor, things: Sequence[Things], config: Rpn) -> Terms:
    """Compute `obj_loss` and `bbx_loss`, sums over the sampled anchors over their number (docs/contract.md, section 4).

    Both are 0, with a graph, when nothing is sampled: all ranks of a training run the same backward pass.
    """
    anchors, obj_logits, bbx_logits = outputs
    rows, counts = first_true(matches != IGNORED, min(config.num_samples, matches.shape[1]))
    image = torch.arange(matches.shape[0], device=matches.device)[:, None]
    match = matches[image, rows]
    positive = counts & (match >= 0)
    count = counts.sum()

    logits = obj_logits[image, rows].float()
    errors = functional.binary_cross_entropy_with_logits(logits, positive.float(), reduction="none")
    obj_loss = torch.where(counts, errors, 0.0).sum()

    images = zip(anchors[rows], things, match, strict=True)
    codes = torch.stack([box_targets(samples, truth.boxes, own) for samples, truth, own in images])
    errors = smooth_l1(bbx_logits[image, rows].float(), codes, config.sigma)
    bbx_loss = torch.where(positive[:, :, None], errors, 0.0).sum()
    samples = count.clamp(min=1)
    return {"obj_loss": (obj_loss / samples, count), "bbx_loss": (bbx_loss / samples, count)}


def box_targets(samples: Tensor, boxes: Tensor, match: Tensor) -> Tensor:
    """Return the box codes `M x 4` of samples, proposals or anchors; arbitrary for one without a match.

    `match` (int64 `M`) are the indices of the ground-truth boxes `G x 4`.
    """
    if boxes.shape[0] == 0:
        return torch.zeros_like(samples)
    return encode_boxes(samples, boxes[match.clamp(min=0)])
