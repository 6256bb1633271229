"""A loss of the semantic head, `[sem] loss = example`: it replaces the cross-entropy of the hardest pixels."""

from dataclasses import dataclass

from seamseg.components import key, loss


@dataclass(frozen=True)
class ExampleKeys:
    """Keys of the section [loss example]."""

    gamma: float = key("exponent of the focal loss; 0 is the mean cross-entropy", 2.0, minimum=0, maximum=10)


@loss("example", keys=ExampleKeys)
def example(image, keys):
    """Return the focal loss (arXiv 1708.02002) of an image, a scalar."""
    entropy = image.cross_entropy  # H x W; void pixels do not count
    valid = image.target != 255
    losses = (1 - (-entropy).exp()) ** keys.gamma * entropy
    return (losses * valid).sum() / valid.sum().clamp(min=1)
