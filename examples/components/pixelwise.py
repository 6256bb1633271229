"""A network as a whole, `[general] network = pixelwise`, instead of body, pyramid and heads."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from seamseg.components import Network, key, network
from seamseg.maps.predictions import Prediction


@dataclass(frozen=True)
class PixelwiseKeys:
    """Keys of the section [network pixelwise]."""

    weight: float = key("weight of pixelwise_loss in the total", 1.0, minimum=0)
    channels: int = key("channels of the hidden layers", 32, minimum=1)


@network("pixelwise", keys=PixelwiseKeys)
class Pixelwise(Network):
    """Classifies each pixel by its neighbourhood; it finds no things."""

    kind = "panoptic"
    losses = {"pixelwise_loss": "weight"}  # name of the loss: key of its weight

    def __init__(self, keys, context):
        super().__init__(keys, context)
        self.layers = nn.Sequential(
            nn.Conv2d(3, keys.channels, 7, padding=3),
            nn.ReLU(),
            nn.Conv2d(keys.channels, keys.channels, 7, padding=3),
            nn.ReLU(),
            nn.Conv2d(keys.channels, context.num_stuff + context.num_thing, 1),
        )

    def loss(self, batch):
        """Return the mean of the loss over all pixels that are not void, and their number."""
        losses, counts = [], []
        for image, masks, categories in zip(batch.images, batch.masks, batch.categories):
            target = categories[masks[0]]  # H x W; 255 is void
            logits = self.layers(image[None]).float()
            losses.append(functional.cross_entropy(logits, target[None], ignore_index=255, reduction="sum"))
            counts.append((target != 255).sum())
        count = torch.stack(counts).sum()
        return {"pixelwise_loss": (torch.stack(losses).sum() / count.clamp(min=1), count)}

    def predict(self, images):
        """Return a class map for each image 3 x H x W; the boxes, classes, scores and masks of things are empty."""
        found = []
        for image in images:
            nothing = torch.zeros(0, device=image.device)
            size = tuple(image.shape[1:])
            classes = self.layers(image[None])[0, : self.context.num_stuff].argmax(0)
            things = nothing.view(0, 4), nothing.long(), nothing, nothing.view(0, 28, 28)
            found.append(Prediction(*things, classes, size))
        return found
