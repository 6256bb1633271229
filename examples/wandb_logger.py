"""Log a training to Weights & Biases: scalars, scores, sample images; `pip install wandb`.

Name the file when you train:

    seamseg train my.ini DATA --components examples/wandb_logger.py --set 'callback wandb.project=street'
"""

from dataclasses import dataclass

import wandb

from seamseg.components import Callback, callback, key


@dataclass(frozen=True)
class WandbKeys:
    """Keys of the section [callback wandb]."""

    project: str = key("name of the project", "seamseg")
    mode: str = key("where the run is logged", "online", choices=("online", "offline", "disabled"))


@callback("wandb", keys=WandbKeys)
class WandbLogger(Callback):
    """Log to Weights & Biases; a resumed training continues its run."""

    id = None

    def begin(self, run):
        """Start the run, or continue that of the snapshot."""
        self.run = wandb.init(
            project=self.keys.project,
            mode=self.keys.mode,
            id=self.id,
            resume="allow",
            name=run.folder.name,
            dir=run.folder,
            config={"ini": run.config, "epochs": run.epochs},
        )
        self.id = self.run.id

    def train(self, run, values):
        """Log losses, learning rates and times."""
        self.run.log({f"train/{name}": value for name, value in values.items()}, step=run.step)

    def validated(self, run, scores):
        """Log the scores."""
        self.run.log({f"val/{name}": value for name, value in scores.items()}, step=run.step)

    def image(self, run, tag, rgb):
        """Log a sample image."""
        self.run.log({tag: wandb.Image(rgb)}, step=run.step)

    def end(self, run, status):
        """Finish the run."""
        self.run.summary["status"] = status
        self.run.finish(exit_code=0 if status.startswith(("done", "stopped")) else 1)

    def state_dict(self):
        """Return the id of the run."""
        return {"id": self.id}

    def load_state_dict(self, state):
        """Restore the id of the run."""
        self.id = state["id"]
