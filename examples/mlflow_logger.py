"""Log a training to MLflow: scalars, scores, sample images; `pip install mlflow-skinny`.

Name the file when you train:

    seamseg train my.ini DATA --components examples/mlflow_logger.py --set 'callback mlflow.uri=http://localhost:5000'
"""

import math
from dataclasses import dataclass

from mlflow import MlflowClient

from seamseg.components import Callback, callback, key


@dataclass(frozen=True)
class MlflowKeys:
    """Keys of the section [callback mlflow]."""

    experiment: str = key("name of the experiment", "seamseg")
    uri: str = key("tracking server, or folder of the records; empty for the default of MLflow", "")


@callback("mlflow", keys=MlflowKeys)
class MlflowLogger(Callback):
    """Log to MLflow; a resumed training continues its run."""

    id = None

    def begin(self, run):
        """Start the run, or continue that of the snapshot."""
        self.client = MlflowClient(self.keys.uri or None)
        if self.id is None:
            found = self.client.get_experiment_by_name(self.keys.experiment)
            experiment = found.experiment_id if found else self.client.create_experiment(self.keys.experiment)
            self.id = self.client.create_run(experiment, run_name=run.folder.name).info.run_id
            self.client.log_text(self.id, run.config, "config.ini")

    def train(self, run, values):
        """Log losses, learning rates and times."""
        self._log(run, "train", values)

    def validated(self, run, scores):
        """Log the scores."""
        self._log(run, "val", scores)

    def _log(self, run, prefix, values):
        for name, value in values.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                self.client.log_metric(self.id, f"{prefix}/{name}", value, step=run.step)

    def image(self, run, tag, rgb):
        """Log a sample image."""
        self.client.log_image(self.id, rgb, f"{tag}-{run.step}.png")

    def end(self, run, status):
        """Finish the run."""
        self.client.set_tag(self.id, "status", status)
        self.client.set_terminated(self.id, "FINISHED" if status.startswith(("done", "stopped")) else "FAILED")

    def state_dict(self):
        """Return the id of the run."""
        return {"id": self.id}

    def load_state_dict(self, state):
        """Restore the id of the run."""
        self.id = state["id"]
