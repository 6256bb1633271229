"""The network of the region proposal head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seamseg.backbones.residual import NormFactory
from seamseg.ops.norm import run_layers


class RPNHead(nn.Module):
    """Objectness and box codes for every anchor, with weights shared by the levels (SPEC section 3 "RPN head").

    Parameters
    ----------
    in_channels : channels of the levels
    num_anchors : anchors of a cell
    hidden_channels : channels of the 3x3 convolution
    norm : factory of norm + activation layers
    stride : of the 3x3 convolution
    """

    def __init__(
        self,
        in_channels: int,
        num_anchors: int,
        hidden_channels: int,
        norm: NormFactory,
        stride: int = 1,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, hidden_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = norm(hidden_channels)
        self.conv_obj = nn.Conv2d(hidden_channels, num_anchors, 1)
        self.conv_bbx = nn.Conv2d(hidden_channels, num_anchors * 4, 1)

    def forward(self, levels: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
        """Score the anchors of all levels.

        Parameters
        ----------
        levels : feature maps `N x C x h x w`, finest first

        Returns
        -------
        obj_logits : `N x A`, ordered by level, row, column, ratio
        bbx_logits : `N x A x 4`
        shapes : `(height, width)` of the grid of cells of each level
        """
        obj_logits, bbx_logits, shapes = [], [], []
        for x in levels:
            hidden = run_layers((self.conv1, self.bn1), x)
            n, _, h, w = hidden.shape
            obj_logits.append(self.conv_obj(hidden).permute(0, 2, 3, 1).reshape(n, -1))
            bbx_logits.append(self.conv_bbx(hidden).permute(0, 2, 3, 1).reshape(n, -1, 4))
            shapes.append((h, w))
        return torch.cat(obj_logits, dim=1), torch.cat(bbx_logits, dim=1), shapes
