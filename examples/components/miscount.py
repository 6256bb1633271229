"""A metric of validations and of `evaluate`; `[general] eval_mode = miscount` selects the best snapshot by it."""

from dataclasses import dataclass

import numpy as np

from seamseg.components import Metric, key, metric


@dataclass(frozen=True)
class MiscountKeys:
    """Keys of the section [metric miscount]."""

    score: float = key("minimum score of a detection", 0.5, minimum=0, maximum=1)


@metric("miscount", keys=MiscountKeys)
class Miscount(Metric):
    """Mean difference between the numbers of detected and of true things."""

    higher_is_better = False  # of the first of its scores

    def begin(self, num_stuff, num_thing):
        """Set the counts to zero; stuff classes come first."""
        self.first_thing, self.counts = num_stuff, np.zeros(2)

    def add(self, item, prediction):
        """Add an image; `item.result` is what is scored, after thresholds, at the size of the image."""
        true = sum(self.first_thing <= c != 255 for c in item.cat)
        found = int((prediction.scores > self.keys.score).sum())
        self.counts += abs(found - true), 1

    def state(self):
        """Return counts, which are summed over the processes."""
        return self.counts

    def scores(self, state):
        """Return numbers by name from the sum."""
        return {"miscount_error": state[0] / state[1]}
