"""An augmentation of the colours of training images."""

from dataclasses import dataclass

import numpy as np

from seamseg.components import augmentation, key


@dataclass(frozen=True)
class ExposureKeys:
    """Keys of the section [augmentation exposure]."""

    strength: float = key("maximum relative change of the brightness", 0.3, minimum=0, maximum=1)


@augmentation("exposure", keys=ExposureKeys)
def exposure(pixels, rng, keys):
    """Change the brightness of uint8 pixels H x W x 3; take random numbers from rng only."""
    factor = 1 + rng.uniform(-keys.strength, keys.strength)
    return np.clip(pixels * factor, 0, 255).astype(np.uint8)
