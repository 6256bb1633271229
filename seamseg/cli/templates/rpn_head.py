"""Layers of the region proposal network, `[rpn] head = example`: levels of the pyramid to scores and codes."""

from dataclasses import dataclass

import torch
from torch import nn

from seamseg.components import key, rpn_head


@dataclass(frozen=True)
class ExampleKeys:
    """Keys of the section [rpn_head example]."""

    channels: int = key("channels of the hidden layers", 256, minimum=1)


@rpn_head("example", keys=ExampleKeys)
class Example(nn.Module):
    """Two convolutions, shared by the levels."""

    def __init__(self, keys, context):
        super().__init__()
        width, channels, anchors = context.width, keys.channels, len(context.config.rpn.anchor_ratios)
        self.hidden = nn.Sequential(
            nn.Conv2d(width, channels, 3, padding=1, bias=False),
            context.norm(channels),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            context.norm(channels),
        )
        self.objectness = nn.Conv2d(channels, anchors, 1)
        self.codes = nn.Conv2d(channels, anchors * 4, 1)
        for layer in (self.objectness, self.codes):
            nn.init.normal_(layer.weight, std=0.01)

    def forward(self, levels):
        """Return objectness logits N x A, box codes N x A x 4, and height and width of the cells of each level.

        A counts levels, rows, columns and ratios, in this order. A cell has the stride of its level times [rpn] stride.
        """
        objectness, codes, shapes = [], [], []
        for x in levels:
            x = self.hidden(x)
            objectness.append(self.objectness(x).permute(0, 2, 3, 1).flatten(1))
            codes.append(self.codes(x).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 4))
            shapes.append((x.shape[2], x.shape[3]))
        return torch.cat(objectness, dim=1), torch.cat(codes, dim=1), shapes
