"""The network with its training: outputs for the losses, and the ground truth of things."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from seamseg.models.heads.custom import HeadOutputs, run_heads
from seamseg.models.heads.roi_targets import ROISample, leading_rows
from seamseg.models.heads.select import upload
from seamseg.models.panoptic_inference import Features, PanopticInference
from seamseg.panoptic_map import VOID
from seamseg.structures import Batch, PackedSequence, TargetInfo


@dataclass(frozen=True)
class ROIOutputs:
    """The ROI head on the sampled proposals.

    samples: samples of each image, None for an image without any; M in all images, P of them leading, 0 if no image has
    any. cls_logits `M x (things + 1)`, bbx_logits `M x things x 4`, msk_logits `P x things x 28 x 28` of the leading
    ones, None without a mask branch.
    """

    samples: list[ROISample | None]
    cls_logits: Tensor
    bbx_logits: Tensor
    msk_logits: Tensor | None


@dataclass(frozen=True)
class TrainingOutputs:
    """Outputs of the network that the losses are computed from.

    anchors `A x 4`, obj_logits `N x A`, bbx_logits `N x A x 4`, things and proposals of each image (with rows of NaN
    after the last, if samples are fixed), semantic_logits `N x classes x h x w` or None without a semantic head, and
    the outputs of custom heads.
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
    heads: list[HeadOutputs] = field(default_factory=list)


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


class PanopticNet(PanopticInference):
    """Seamless Scene Segmentation (Porzi et al. 2019; docs/contract.md, sections 3 and 4).

    The parts, which are the parameters, and prediction are those of the base class,
    :class:`seamseg.models.panoptic_inference.PanopticInference`. This class adds the forward pass of training, which
    samples proposals and returns what the losses need.
    """

    @property
    def fixed(self) -> bool:
        """Whether every image gives the ROI head the same number of samples, see `[roi] fixed_samples`."""
        return self.options.matcher.config.fixed_samples

    def forward(self, images: PackedSequence, targets: Batch) -> TrainingOutputs:
        """Compute the outputs that the criterion needs.

        Parameters
        ----------
        images : `3 x H x W` each
        targets : ground truth, with which the proposals for the ROI head are sampled

        Notes
        -----
        With synchronised norms under torch.distributed all ranks must call this together. A rank without anything to
        sample runs the ROI head on zero rows: it takes part in every collective, forwards and backwards, with a weight
        of 0, and every parameter gets a gradient, there of 0.
        """
        features = self.encode(images)
        anchors, obj_logits, bbx_logits = self.score_anchors(features)
        scored = (obj_logits, bbx_logits, anchors, features.valid_sizes, self.training)
        make = self.options.proposals
        proposals = PackedSequence(list(make.padded(*scored)[0])) if self.fixed else make(*scored)
        things = Things.of(targets, self.options.num_stuff, self.options.crowd_boxes)
        return TrainingOutputs(
            features.padded_size,
            features.valid_sizes,
            anchors,
            obj_logits,
            bbx_logits,
            things,
            proposals,
            self._roi_outputs(features, proposals, things),
            self.classify(features),
            run_heads(self.custom_heads, features),
        )

    def _roi_outputs(self, features: Features, proposals: PackedSequence, things: list[Things]) -> ROIOutputs:
        sampled = self.options.matcher.batch(list(proposals), [t.boxes for t in things], [t.crowd for t in things])
        boxes, index = features.rows(PackedSequence([None if s is None else s.boxes for s in sampled]))
        x = self.options.rois(features.levels, boxes, index, features.padded_size)
        rows = leading_rows(sampled, boxes.device)
        rows_only = self.roi_head.with_masks and self.options.matcher.config.mask_positives_only
        cls_logits, bbx_logits, msk_logits = self.roi_head(x, rows, **({"rows_only": True} if rows_only else {}))
        return ROIOutputs(sampled, cls_logits, bbx_logits, msk_logits)
