"""What a refinement of masks is given: regions with their coarse masks, and their ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from seamseg.models.heads.roi_targets import ROISample, mask_targets

if TYPE_CHECKING:
    from seamseg.models.heads.custom import HeadContext


class Regions(NamedTuple):
    """Regions and their coarse masks.

    Attributes
    ----------
    levels : levels of the pyramid, `N x C x h x w`, finest first
    padded_size : `(height, width)` of the padded images that they come from
    boxes : `P x 4`
    image : int64 `P`, the image of each region
    classes : int64 `P`, the thing class of each region
    coarse : mask logits `P x H x W` of those classes, float32
    """

    levels: Sequence[Tensor]
    padded_size: tuple[int, int]
    boxes: Tensor
    image: Tensor
    classes: Tensor
    coarse: Tensor

    def part(self, rows: slice) -> Regions:
        """Return some of the regions."""
        return Regions(self.levels, self.padded_size, *(values[rows] for values in self[2:]))


@dataclass(frozen=True)
class RegionTruth:
    """The ground truth of the regions of a batch in training.

    Attributes
    ----------
    samples : sampled regions of each image, None for one without any; the regions are the leading ones of each image
    ids : ids of the ground-truth boxes of each image, int64 `G`
    masks : id map of each image, `L x H x W`
    void_is_background : whether void pixels are background; they are ignored otherwise
    """

    samples: Sequence[ROISample | None]
    ids: Sequence[Tensor]
    masks: Sequence[Tensor | None]
    void_is_background: bool

    @torch.no_grad()
    def inside(self, boxes: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the masks of the regions inside of boxes, by nearest sampling.

        Parameters
        ----------
        boxes : `P x n x 4`, n boxes for each region; a box without area is a point
        size : `(height, width)` of the result

        Returns
        -------
        float32 `P x n x size`: 1, 0, or -1 for pixels that are ignored
        """
        count = boxes.shape[1]
        parts = iter(torch.split(boxes, [sample.leading for sample in self.samples if sample is not None]))
        wanted = [boxes.new_zeros((0, count, *size), dtype=torch.float32)]
        for sample, ids, id_map in zip(self.samples, self.ids, self.masks, strict=True):
            if sample is not None:
                assert id_map is not None
                match = sample.match[: sample.leading, None].expand(-1, count).reshape(-1)
                found = mask_targets(next(parts).reshape(-1, 4), match, ids, id_map, size, self.void_is_background)
                wanted.append(found.view(sample.leading, count, *size))
        return torch.cat(wanted)


class MaskRefinement(nn.Module):
    """Refines coarse masks; derive from it, and register the class with :data:`seamseg.components.mask_refinement`.

    Parameters
    ----------
    keys : values of the section `[mask_refinement NAME]`
    context : what the network is built for, see :class:`seamseg.models.heads.custom.HeadContext`

    Attributes
    ----------
    class_layers : names of layers with equal numbers of rows for each thing class, whose rows follow the classes when
        another network is the start of a training
    """

    class_layers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, keys: Any, context: HeadContext) -> None:
        super().__init__()
        self.keys = keys
        self.context = context

    def forward(self, regions: Regions) -> Any:
        """Compute what :meth:`loss` compares, in training: of the positive samples of a batch.

        All parameters must take part, also with P = 0.
        """
        raise NotImplementedError

    def loss(self, outputs: Any, truth: RegionTruth) -> Tensor:
        """Return the loss, a scalar that is added to `roi_msk_loss`; 0, with a graph, of P = 0 regions."""
        raise NotImplementedError

    def refine(self, regions: Regions) -> Tensor:
        """Return mask logits `P x h x w` at inference; h and w are the same for all regions."""
        raise NotImplementedError


class Refined(NamedTuple):
    """A refinement and what its `forward` has returned."""

    refinement: MaskRefinement
    outputs: Any
