"""A head: its loss is trained, its map is predicted and written by `predict --format example`."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from seamseg.components import Head, Map, head, key


@dataclass(frozen=True)
class ExampleKeys:
    """Keys of the section [head example]."""

    weight: float = key("weight of example_loss in the total", 0.5, minimum=0)
    channels: int = key("channels of the hidden layer", 32, minimum=1)


@head("example", keys=ExampleKeys)
class Example(Head):
    """Pixels that belong to any segment, in contrast to void."""

    losses = {"example_loss": "weight"}  # name of the loss: key of its weight
    outputs = {"example": Map()}  # name of the map, and of its format in predict

    def __init__(self, keys, context):
        super().__init__(keys, context)
        self.hidden = nn.Conv2d(context.width, keys.channels, 3, padding=1, bias=False)
        self.norm = context.norm(keys.channels)
        self.output = nn.Conv2d(keys.channels, 1, 1)

    def forward(self, features):
        """Return logits N x 1 x h x w at the finest level of the pyramid."""
        return {"example": self.output(self.norm(self.hidden(features.levels[0])))}

    def targets(self, batch):
        """Return N x 1 x H x W: 1 for pixels of segments, 0 for void, -1 for padding."""
        found = [(masks[0] != 0).float() for masks in batch.masks]
        height, width = (max(x.shape[d] for x in found) for d in (0, 1))
        padded = [functional.pad(x, (0, width - x.shape[1], 0, height - x.shape[0]), value=-1) for x in found]
        return torch.stack(padded)[:, None]

    def loss(self, outputs, targets):
        """Return the mean of the loss, and the number of pixels that it averages."""
        logits = functional.interpolate(outputs["example"].float(), targets.shape[-2:], mode="bilinear")
        valid = targets >= 0
        mean = functional.binary_cross_entropy_with_logits(logits[valid], targets[valid])
        return {"example_loss": (mean, valid.sum())}

    def predict(self, outputs):
        """Return probabilities."""
        return {"example": outputs["example"].sigmoid()}
