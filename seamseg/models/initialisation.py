"""Random weights to start from."""

from __future__ import annotations

import torch
from torch import nn

from seamseg.models.panoptic import PanopticNet

_OUTPUT_STD = {
    "rpn_head.conv_obj": 0.01,
    "rpn_head.conv_bbx": 0.01,
    "roi_head.roi_cls": 0.01,
    "roi_head.roi_bbx": 0.001,
}
"""Standard deviation of layers that should first say very little; the usual choice of Faster R-CNN."""


@torch.no_grad()
def initialise(net: PanopticNet, activation: str, slope: float) -> None:
    """Fill the convolutions and linear layers of a network; norms keep weight 1 and bias 0.

    Hidden layers keep the variance of the signal (He et al. 2015); biases are 0; outputs start small.

    Parameters
    ----------
    net : changed in place
    activation, slope : of the layers, which decide the gain
    """
    gain_slope = slope if activation == "leaky_relu" else 0.0
    outputs = {"roi_head.roi_msk", "sem_head.conv_sem", *_OUTPUT_STD}
    for name, module in net.named_modules():
        if not isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
        # drawn in a plain tensor: what a generator gives to a channels-last one lies elsewhere
        weight = torch.empty(module.weight.shape, device=module.weight.device)
        if name in _OUTPUT_STD:
            nn.init.normal_(weight, std=_OUTPUT_STD[name])
        elif name in outputs:
            nn.init.xavier_normal_(weight)
        elif name.startswith("body.backbone."):
            nn.init.kaiming_normal_(weight, a=gain_slope, mode="fan_out")
        else:
            nn.init.kaiming_normal_(weight, a=gain_slope)
        module.weight.copy_(weight)
