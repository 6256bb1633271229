"""A semantic head, `[sem] head = example`: levels of the pyramid to class logits."""

from dataclasses import dataclass

from torch import nn
from torch.nn import functional

from seamseg.components import key, semantic_head


@dataclass(frozen=True)
class ExampleKeys:
    """Keys of the section [semantic_head example]."""

    channels: int = key("channels of the hidden layer", 64, minimum=1)


@semantic_head("example", keys=ExampleKeys)
class Example(nn.Module):
    """Two convolutions of the sum of all levels."""

    def __init__(self, keys, context):
        super().__init__()
        self.hidden = nn.Sequential(
            nn.Conv2d(context.width, keys.channels, 3, padding=1, bias=False), context.norm(keys.channels)
        )
        self.classes = nn.Conv2d(keys.channels, context.num_stuff + context.num_thing, 1)

    def forward(self, levels):
        """Map levels N x width x h x w, finest first, to logits N x classes x h x w of any resolution."""
        total = levels[0]
        for x in levels[1:]:
            total = total + functional.interpolate(x, total.shape[-2:], mode="bilinear", align_corners=False)
        return self.classes(self.hidden(total))
