"""A head: its loss is trained, its map is predicted and written by `predict --format edge`."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from seamseg.components import Head, Map, head, key


@dataclass(frozen=True)
class EdgeKeys:
    """Keys of the section [head edge]."""

    weight: float = key("weight of edge_loss in the total", 0.5, minimum=0)
    channels: int = key("channels of the hidden layer", 64, minimum=1)


@head("edge", keys=EdgeKeys)
class Edge(Head):
    """Pixels on the border between two segments."""

    losses = {"edge_loss": "weight"}  # name of the loss: key of its weight, or a number
    outputs = {"edge": Map()}  # name of the map, and of its format in predict

    def __init__(self, keys, context):
        super().__init__(keys, context)
        self.hidden = nn.Conv2d(context.width, keys.channels, 3, padding=1, bias=False)
        self.norm = context.norm(keys.channels)
        self.output = nn.Conv2d(keys.channels, 1, 1)

    def forward(self, features):
        """Return logits N x 1 x h x w at the finest level of the pyramid."""
        return {"edge": self.output(self.norm(self.hidden(features.levels[0])))}

    def targets(self, batch):
        """Return N x 1 x H x W: 1 for pixels of the border, 0 for others, -1 for padding."""
        found = []
        for masks in batch.masks:  # L x H x W ids of an image, after scale, crop and flip
            ids = masks[0]
            border = torch.zeros_like(ids, dtype=torch.float32)
            border[:, 1:] += (ids[:, 1:] != ids[:, :-1]).float()
            border[1:] += (ids[1:] != ids[:-1]).float()
            found.append(border.clamp(max=1))
        height, width = (max(x.shape[d] for x in found) for d in (0, 1))
        padded = [functional.pad(x, (0, width - x.shape[1], 0, height - x.shape[0]), value=-1) for x in found]
        return torch.stack(padded)[:, None]

    def loss(self, outputs, targets):
        """Return the mean of the loss, and the number of pixels that it averages."""
        logits = functional.interpolate(outputs["edge"].float(), targets.shape[-2:], mode="bilinear")
        valid = targets >= 0
        mean = functional.binary_cross_entropy_with_logits(logits[valid], targets[valid])
        return {"edge_loss": (mean, valid.sum())}

    def predict(self, outputs):
        """Return probabilities."""
        return {"edge": outputs["edge"].sigmoid()}
