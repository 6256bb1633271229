"""The outputs of a network for one image; no torch. `seamseg.structures` exports them, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Prediction:
    """Outputs of the network for one image, in pixels of its input (the valid, unpadded part).

    boxes `K x 4`, classes `K` (int64, 0 = first thing), scores `K`, mask_logits `K x 28 x 28`, in the order of
    docs/contract.md, section 4 "Detections"; `semantic` `H x W` class map, int64 from the network, uint8 from a
    predictor; `probability` `H x W`, that of the class of each pixel, float from the network, from a predictor uint8,
    255 times the probability rounded down. `logits` `classes` of a classifier. Outputs that a network does not have, or
    that were not requested, are None.

    Networks return tensors on their device. A predictor returns arrays, see :meth:`on_cpu`, and so do all steps after
    the network take them.
    """

    boxes: Any
    classes: Any
    scores: Any
    mask_logits: Any
    semantic: Any
    size: tuple[int, int]
    probability: Any = None
    logits: Any = None

    def on_cpu(self) -> Prediction:
        """Return the outputs as numpy arrays with uint8 maps; floats are float32. Arrays are returned as they are."""
        if isinstance(self.scores, np.ndarray):
            return self
        return Prediction(
            self.boxes.detach().float().cpu().numpy(),
            self.classes.long().cpu().numpy(),
            self.scores.detach().float().cpu().numpy(),
            None if self.mask_logits is None else self.mask_logits.detach().float().cpu().numpy(),
            None if self.semantic is None else self.semantic.byte().cpu().numpy(),
            self.size,
            None if self.probability is None else _as_byte(self.probability).cpu().numpy(),
            None if self.logits is None else self.logits.detach().float().cpu().numpy(),
        )

    def copy(self) -> Prediction:
        """Return arrays of their own: slices would keep the memory of a whole batch alive."""
        p = self.on_cpu()
        masks, semantic, probability, logits = (
            None if a is None else a.copy() for a in (p.mask_logits, p.semantic, p.probability, p.logits)
        )
        parts = (p.boxes.copy(), p.classes.copy(), p.scores.copy(), masks, semantic)
        return Prediction(*parts, p.size, probability, logits)


def _as_byte(probability: Any) -> Any:
    return (probability * 255).byte() if probability.is_floating_point() else probability
