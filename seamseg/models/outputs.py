"""What the network hands to the criterion, and which ground truth the parts look at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seamseg.structures import VOID, Batch, PackedSequence


@dataclass(frozen=True)
class Features:
    """A batch after the body.

    levels `N x C x h x w` from fine to coarse; `padded_size` the `(height, width)` of the padded batch, `valid_sizes`
    those of each image without its padding.
    """

    levels: list[Tensor]
    padded_size: tuple[int, int]
    valid_sizes: list[tuple[int, int]]


@dataclass(frozen=True)
class ROIOutputs:
    """The ROI head on the sampled proposals.

    samples: boxes `M_i x 4` of each image (or None), matches: int64 `M_i`, the thing of the image each stands for or
    -1. Over all images, M samples of which P are matched: cls_logits `M x (things + 1)`, bbx_logits `M x things x 4`,
    msk_logits `P x things x 28 x 28` of the matched ones, None without a mask branch. With no samples in any image the
    logits are those of one fake region, and say nothing.
    """

    samples: PackedSequence
    matches: PackedSequence
    cls_logits: Tensor
    bbx_logits: Tensor
    msk_logits: Tensor | None


@dataclass(frozen=True)
class TrainingOutputs:
    """Everything the losses need of the network.

    anchors `A x 4`, obj_logits `N x A`, bbx_logits `N x A x 4`, proposals of each image, rois None if no image had
    proposals to learn from, semantic_logits `N x classes x h x w` or None without a semantic head.
    """

    padded_size: tuple[int, int]
    valid_sizes: list[tuple[int, int]]
    anchors: Tensor
    obj_logits: Tensor
    bbx_logits: Tensor
    proposals: PackedSequence
    rois: ROIOutputs | None
    semantic_logits: Tensor | None


@dataclass(frozen=True)
class Things:
    """The things of one image that can be learnt: boxes `G x 4`, classes int64 `G` (0 = first thing), ids int64 `G`.

    Crowds, and ids that do not occur in the mask, are not among them. `crowd_mask` is a bool `H x W`, True on pixels of
    crowds, or None if there is no crowd.
    """

    boxes: Tensor
    classes: Tensor
    ids: Tensor
    crowd_mask: Tensor | None

    @staticmethod
    def of(batch: Batch, num_stuff: int) -> list[Things]:
        """The things of each image of a batch; `num_stuff` is the class of the first thing."""
        things = []
        for masks, categories, iscrowd, boxes in zip(batch.masks, batch.categories, batch.iscrowd, batch.boxes):
            assert masks is not None and categories is not None and iscrowd is not None and boxes is not None
            is_crowd = iscrowd.bool()
            present = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
            ids = torch.nonzero((categories >= num_stuff) & (categories != VOID) & ~is_crowd & present).flatten()
            crowd_mask = is_crowd[masks].any(dim=0) if bool(is_crowd.any()) else None
            things.append(Things(boxes[ids], categories[ids] - num_stuff, ids, crowd_mask))
        return things
