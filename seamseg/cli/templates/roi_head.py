"""Layers of regions, `[roi] head = example`: features of regions to classes, boxes and masks."""

from dataclasses import dataclass

from torch import nn

from seamseg.components import RegionHead, key, roi_head


@dataclass(frozen=True)
class ExampleKeys:
    """Keys of the section [roi_head example]."""

    channels: int = key("channels of the hidden layers", 256, minimum=1)


@roi_head("example", keys=ExampleKeys)
class Example(RegionHead):
    """Classes and boxes from the mean of a region, masks from a convolution."""

    def __init__(self, keys, context):
        super().__init__(context.num_thing, context.has_masks, context.config.roi.roi_size)
        self.hidden = nn.Linear(context.width, keys.channels)
        self.classes = nn.Linear(keys.channels, context.num_thing + 1)
        self.codes = nn.Linear(keys.channels, context.num_thing * 4)
        for layer, std in ((self.classes, 0.01), (self.codes, 0.001)):
            nn.init.normal_(layer.weight, std=std)
        if self.with_masks:
            self.mask = nn.Sequential(
                nn.Conv2d(context.width, keys.channels, 3, padding=1, bias=False),
                context.norm(keys.channels),
                nn.ConvTranspose2d(keys.channels, context.num_thing, 2, stride=2),
            )

    def boxes(self, x):
        """Map features K x width x h x w to logits K x (things + 1), 0 for background, and codes K x things x 4."""
        x = self.hidden(x.mean((2, 3))).relu()
        return self.classes(x), self.codes(x).reshape(x.shape[0], self.num_things, 4)

    def masks(self, x, rows=None):
        """Map features K x width x h x w to mask logits K x things x 2h x 2w, of the regions `rows` if given."""
        x = self.mask(x)
        return x if rows is None else x[rows]
