"""A loss of the semantic head, `[sem] loss = focal`: it replaces the cross-entropy of the hardest pixels."""

from dataclasses import dataclass

from seamseg.components import key, loss


@dataclass(frozen=True)
class FocalKeys:
    """Keys of the section [loss focal]."""

    gamma: float = key("exponent; 0 is the mean cross-entropy", 2.0, minimum=0, maximum=10)


@loss("focal", keys=FocalKeys)
def focal(image, keys):
    """Return the loss of an image (arXiv 1708.02002), a scalar."""
    entropy = image.cross_entropy  # H x W; void pixels do not count
    valid = image.target != 255
    losses = (1 - (-entropy).exp()) ** keys.gamma * entropy
    return (losses * valid).sum() / valid.sum().clamp(min=1)
