"""A callback: it follows a training, called in the main process only."""

from dataclasses import dataclass

from seamseg.components import Callback, callback, key


@dataclass(frozen=True)
class EarlyStopKeys:
    """Keys of the section [callback early_stop]."""

    patience: int = key("number of validations without a better PQ that end the training", 5, minimum=1)


@callback("early_stop", keys=EarlyStopKeys)
class EarlyStop(Callback):
    """End a training whose PQ does not improve any more."""

    best, waited = -1.0, 0

    def validated(self, run, scores):
        """Compare the scores of a validation, fractions by name."""
        score = scores.get("PQ", 0.0)
        self.waited = 0 if score > self.best else self.waited + 1
        self.best = max(self.best, score)
        if self.waited >= self.keys.patience:
            run.stop(f"no better PQ in {self.waited} validations")

    def state_dict(self):
        """Return what a resumed training restores."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state):
        """Restore it."""
        self.best, self.waited = state["best"], state["waited"]
