"""What the network passes to the criterion, and the ground truth of things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from seamseg.models.heads.points import PointOutputs
from seamseg.models.heads.select import upload
from seamseg.panoptic_map import VOID
from seamseg.structures import Batch, PackedSequence, TargetInfo


@dataclass(frozen=True)
class Features:
    """A batch after the body.

    levels `N x C x h x w` from fine to coarse; `padded_size` the `(height, width)` of the padded batch, `valid_sizes`
    those of each image without its padding; `semantic_logits` `N x classes x h x w` if they were computed together with
    the body.
    """

    levels: list[Tensor]
    padded_size: tuple[int, int]
    valid_sizes: list[tuple[int, int]]
    semantic_logits: Tensor | None = None


@dataclass(frozen=True)
class ROIOutputs:
    """The ROI head on the sampled proposals.

    samples: boxes `M_i x 4` of each image (or None), matches: int64 `M_i`, index of the matched thing of the image or
    -1, weights: float32 `M_i`, 0 for samples that count in no loss; all entries None if all count. The matched ones of
    an image are among its first `leading` samples, 0 for an image without samples. Over all images, M samples of which
    P are leading: cls_logits `M x (things + 1)`, bbx_logits `M x things x 4`, msk_logits `P x things x 28 x 28` of the
    leading ones, None without a mask branch; points: of the leading ones, too, None without their refinement. Without
    samples in any image M and P are 0.
    """

    samples: PackedSequence
    matches: PackedSequence
    weights: PackedSequence
    leading: tuple[int, ...]
    cls_logits: Tensor
    bbx_logits: Tensor
    msk_logits: Tensor | None
    points: PointOutputs | None = None


@dataclass(frozen=True)
class TrainingOutputs:
    """Outputs of the network that the losses are computed from.

    anchors `A x 4`, obj_logits `N x A`, bbx_logits `N x A x 4`, things and proposals of each image (with rows of NaN
    after the last, if samples are fixed), semantic_logits `N x classes x h x w` or None without a semantic head.
    """

    padded_size: tuple[int, int]
    valid_sizes: list[tuple[int, int]]
    anchors: Tensor
    obj_logits: Tensor
    bbx_logits: Tensor
    things: list[Things]
    proposals: PackedSequence
    rois: ROIOutputs
    semantic_logits: Tensor | None


@dataclass(frozen=True)
class Things:
    """The things of one image that the network is trained on.

    boxes `G x 4`, classes int64 `G` (0 = first thing), ids int64 `G`. Crowds, and ids that do not occur in the mask,
    are left out. `crowd` is a bool `H x W`, True on pixels of crowds, or for detection the boxes `C x 4` of the crowds
    of things; None if there is no crowd.
    """

    boxes: Tensor
    classes: Tensor
    ids: Tensor
    crowd: Tensor | None

    @staticmethod
    def of(batch: Batch, num_stuff: int, crowd_boxes: bool = False) -> list[Things]:
        """Return the things of each image of a batch; `num_stuff` is the class of the first thing.

        With `crowd_boxes` crowds are boxes, and the batch needs no masks. With a batch on a GPU that has no
        `target_info` the host waits for the GPU.
        """
        target_info = batch.with_target_info().target_info
        assert target_info is not None
        chosen = [_things(info, num_stuff, crowd=False) for info in target_info]
        device = batch.boxes.device
        assert device is not None
        # ids and classes of all images in one copy
        ids_of_all = [i for ids in chosen for i in ids]
        classes_of_all = [info.categories[i] for info, ids in zip(target_info, chosen) for i in ids]
        numbers = upload(torch.tensor([ids_of_all, classes_of_all], dtype=torch.long), device)
        parts = torch.split(numbers, [len(ids) for ids in chosen], dim=1)
        things = []
        images = zip(batch.masks, batch.iscrowd, batch.boxes, target_info, parts)
        for masks, iscrowd, boxes, info, (ids, classes) in images:
            assert iscrowd is not None
            assert boxes is not None
            crowd = None
            if crowd_boxes and (crowds := _things(info, num_stuff, crowd=True)):
                crowd = boxes[upload(torch.tensor(crowds), device)]
            elif not crowd_boxes and any(info.iscrowd):
                assert masks is not None
                crowd = iscrowd.bool()[masks].any(dim=0)
            things.append(Things(boxes[ids], classes - num_stuff, ids, crowd))
        return things


def _things(info: TargetInfo, num_stuff: int, crowd: bool) -> list[int]:
    """Return the ids of things that have a box and are a crowd, or are not."""
    return [
        i
        for i, (category, is_crowd, has_box) in enumerate(zip(*info, strict=True))
        if category >= num_stuff and category != VOID and is_crowd == crowd and has_box
    ]


class SemanticLogits(NamedTuple):
    """Class logits `N x classes x h x w` of a padded batch, its `(height, width)`, and those of each image in it."""

    logits: Tensor
    padded_size: tuple[int, int]
    valid_sizes: list[tuple[int, int]]
