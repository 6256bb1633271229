"""The network and its losses as one module, which is what DistributedDataParallel wraps."""

from __future__ import annotations

from torch import nn

from seamseg.models.criterion import Criterion, Losses
from seamseg.models.panoptic import PanopticNet
from seamseg.structures import Batch


class TrainingModule(nn.Module):
    """A batch to losses.

    Every parameter gets a gradient in every step, so that under DistributedDataParallel `find_unused_parameters` is not
    needed: a rank whose images have nothing for the ROI head runs it on zero rows, with losses and gradients of 0.

    Parameters
    ----------
    net : the network
    criterion : its losses
    """

    def __init__(self, net: PanopticNet, criterion: Criterion) -> None:
        super().__init__()
        self.net = net
        self.criterion = criterion

    def forward(self, batch: Batch) -> Losses:
        """The losses, not weighted."""
        return self.criterion(self.net(batch.images, batch), batch)
