"""The network and its losses as one module, which is what DistributedDataParallel wraps."""

from __future__ import annotations

from torch import nn

from seamseg.models.criterion import Criterion, Losses
from seamseg.models.panoptic import PanopticNet
from seamseg.structures import Batch


class TrainingModule(nn.Module):
    """A batch to losses.

    A rank whose images have nothing for the ROI head skips it, and gives losses of 0 without a graph for it: under
    DistributedDataParallel use `find_unused_parameters=True`. With `net.fake_rois` it runs the head all the same, and
    `static_graph=True` will do (:mod:`seamseg.engine.train.parallel`).
    With `[roi] fixed_samples` no rank ever skips it.

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
