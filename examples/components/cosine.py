"""A learning rate schedule, `[scheduler] type = cosine`."""

import math
from dataclasses import dataclass

from seamseg.components import key, scheduler


@dataclass(frozen=True)
class CosineKeys:
    """Keys of the section [scheduler cosine]."""

    final: float = key("factor of the learning rate at the end", 0.01, minimum=0, maximum=1)


@scheduler("cosine", keys=CosineKeys)
def cosine(t, total, keys):
    """Half a wave from 1 to the final factor; t is the number of steps (or epochs) done."""
    return keys.final + (1 - keys.final) * (1 + math.cos(math.pi * t / max(1, total))) / 2
