"""A backbone, `[body] body = plain`: maps of images at several strides, which the pyramid takes."""

from dataclasses import dataclass

from torch import nn

from seamseg.components import Body, body, key


@dataclass(frozen=True)
class PlainKeys:
    """Keys of the section [body plain]."""

    channels: int = key("channels of the finest map; each other has twice those of the one before", 32, minimum=1)


@body("plain", keys=PlainKeys)
class Plain(Body):
    """Two convolutions a stage."""

    strides = {"c2": 4, "c3": 8, "c4": 16, "c5": 32}  # name of each map: its stride, finest first

    def __init__(self, keys, context):
        super().__init__(keys, context)
        width, channels = 3, keys.channels
        for name, step in zip(self.strides, (4, 2, 2, 2)):
            stage = nn.Sequential(
                nn.Conv2d(width, channels, 3, stride=step, padding=1, bias=False),
                context.norm(channels),
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                context.norm(channels),
            )
            self.add_module(name, stage)
            self.out_channels[name] = width = channels
            channels *= 2

    def forward(self, x):
        """Map images N x 3 x H x W to N x channels x ceil(H / stride) x ceil(W / stride) by name."""
        maps = {}
        for name in self.strides:
            maps[name] = x = self.get_submodule(name)(x)
        return maps
