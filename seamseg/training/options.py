"""Arguments and result of a training, and the options of the trainer, which are the same for every kind of network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seamseg.config import Config
from seamseg.utils.errors import InputError, counted
from seamseg.utils.options import option, override_texts, several

if TYPE_CHECKING:
    from seamseg.maps.evaluation.scores import Scores
    from seamseg.training.callbacks import Callback

# `seamseg train --help` shows these options: no torch


@dataclass(frozen=True)
class TrainingOptions:
    """Options of :func:`seamseg.train`."""

    config: str | Path = option("INI file, or a packaged experiment such as vistas_r50")
    data: str | Path = option("dataset folder")
    log_dir: str | Path | None = option("run folder (default: runs/NAME for NAME.ini or NAME.json)", None, "RUN")
    device: str = option("auto, cpu, cuda or cuda:N (default: auto)", "auto")
    _: KW_ONLY
    resume: str | Path | None = option(
        "resume from this snapshot, also from one of the original, or from the newest one of a run folder; "
        "auto: from that of `log_dir`, if there is one (`pretrain` is then ignored)",
        None,
        "F",
    )
    restart: bool = option("overwrite another training in `log_dir`", False)
    pretrain: str | Sequence[str] = option(
        "initialise from a snapshot, a published zip, a folder with a model, safetensors or hf://user/repo, or one "
        "part from its weights: body, rpn_head, roi_head, sem_head, head, cls; tensors that do not fit are skipped and "
        "listed; repeatable, later ones override earlier ones",
        (),
        "[PART:]F",
        flags="--pre-train",
        several="flags",
    )
    pretrain_classes: str | None = option(
        "the weights of `pretrain` were trained on another data set: copy those of its classes to the classes here by "
        "the names of a table: names (equal names), vistas_cityscapes, coco_cityscapes, or an INI file",
        None,
        "TABLE",
        flags="--pre-train-classes",
    )
    evaluate: bool = option("only score the weights of `resume` or `pretrain`", False, flags="--eval")
    legacy: bool = option("as the original, freeze weights that were not loaded, with a warning", False)
    overrides: Sequence[str] | Any = option(
        'configuration keys: "section.key=value", several of these, or {"section.key": value}', (), flags="--set"
    )
    components: InitVar[str | Path | Sequence[str | Path]] = option(
        "files or modules of components, see docs/how-to/extend.md", ()
    )
    callbacks: Sequence[Callback] = option("follow the training, see :class:`seamseg.training.callbacks.Callback`", ())

    def __post_init__(self, components: str | Path | Sequence[str | Path]) -> None:
        object.__setattr__(self, "overrides", override_texts(self.overrides, components))
        object.__setattr__(self, "pretrain", tuple(map(str, several(self.pretrain))))
        if self.restart and self.resume == "auto":
            raise InputError(
                "`restart=True` and `resume=auto` are mutually exclusive: overwrite or continue a training"
            )
        if self.evaluate and self.resume is None and not self.pretrain:
            raise InputError("`evaluate=True` needs existing weights: name them with `resume=F` or `pretrain=F`")
        if self.resume not in (None, "auto") and self.pretrain:
            raise InputError("`resume` and `pretrain` are mutually exclusive: a resumed run has its own weights")
        if self.pretrain_classes is not None and self.resume is None and not self.pretrain:
            given = f"`pretrain_classes={self.pretrain_classes}`"
            raise InputError(f"{given} is for weights of another data set: name them with `pretrain=F`")

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path("runs") / Path(self.config).stem if self.log_dir is None else Path(self.log_dir)


@dataclass(frozen=True)
class TrainerOptions:
    """Options of a trainer, named as the keys of the configuration, of which docs/config.md has the meaning.

    `loss_weights` are by the name of the loss. `clip_norm`, `loss_limit` and `ema` are 0 for none. `rate_names` are the
    names in `metrics.jsonl` of the learning rates of the first and the last group of parameters. `histograms` are parts
    of the names of parameters whose distribution is reported every 10 steps. `key_names` has, for messages, the names
    of the keys of an INI file that differ in the configuration; empty for none.
    """

    epochs: int
    loss_weights: Mapping[str, float]
    loss_average: str = "process"
    seed: int = 0
    accumulate: int = 1
    precision: str = "fp32"
    loss_limit: float = 0.0
    clip_norm: float = 0.0
    ema: float = 0.0
    unused_parameters: str = "fake"
    log_interval: int = 10
    val_interval: int = 1
    snapshot_interval: int = 0
    snapshot_keep: int = 1
    cudnn_benchmark: bool = True
    compile: bool = False
    cuda_graphs: bool = False
    rate_names: tuple[str, str] = ("lr_norm", "lr_other")
    histograms: tuple[str, ...] = ()
    key_names: Mapping[str, str] = field(default_factory=dict)

    def key(self, *names: str, joined: str = ", ") -> str:
        """Return the names of keys of an INI file as the configuration has them, for messages."""
        return joined.join(filter(None, (self.key_names.get(name, name) for name in names)))

    def steps_per_epoch(self, batches: int) -> int:
        """Return the number of steps for so many batches; the last one may have fewer than `accumulate`."""
        return -(-batches // self.accumulate)

    @property
    def smaller_rate(self) -> str:
        """The advice after a loss that is not finite."""
        return f"lower {self.key('optimizer.lr')}, or begin with a smaller one ({self.key('scheduler.burn_in_steps')})"

    @classmethod
    def of(cls, *sections: Any, **others: Any) -> TrainerOptions:
        """Return the options that sections of a configuration have under the same names, and others."""
        found: dict[str, Any] = {}
        for section in sections:
            found |= {spec.name: getattr(section, spec.name) for spec in fields(cls) if hasattr(section, spec.name)}
        return cls(**(found | others))

    @classmethod
    def from_config(cls, config: Config) -> TrainerOptions:
        """Return the options of a configuration."""
        from seamseg.models.custom import loss_weight

        # `train --eval` needs no weights, so their number is checked with the training
        weights = dict(zip(config.parts_of_kind.losses, config.optimizer.loss_weights))
        for component, keys in (pair for kind in ("head", "network") for pair in config.components(kind)):
            for loss, weight in component.make.losses.items():  # type: ignore[attr-defined]
                # an unknown key is reported when the head is built
                weights[loss] = float(loss_weight(keys, weight) or 0)
        sections = (config.general, config.optimizer, config.scheduler, config.dataloader)
        return cls.of(*sections, loss_weights=weights)


_POSITION = ("step", "epoch", "time", "seconds")
"""Numbers of a line of `metrics.jsonl` that are no scores."""


@dataclass(frozen=True, repr=False)
class TrainResult:
    """The end of a training, the same in all of its processes.

    Attributes
    ----------
    run_folder : folder with the snapshots, a model for :func:`seamseg.load`
    steps, epochs : finished ones, those before a resume included
    best : the score that has selected `model_best.pth.tar`: a fraction, or the score of a custom metric as that gives
        it; None without one
    stopped : reason of the callback that ended the training; empty if it is complete
    history : the lines of `metrics.jsonl`, those before a resume included
    validation : the scores of the last validation, also of each class; None if there was none since the resume
    """

    run_folder: Path
    steps: int = 0
    epochs: int = 0
    best: float | None = None
    stopped: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    validation: Scores | None = None

    @property
    def scores(self) -> dict[str, float]:
        """The numbers of the last validation by name: fractions such as `PQ`, and numbers of custom metrics.

        Undefined ones are left out; empty without a validation.
        """
        if self.validation is not None:
            return numbers(self.validation.to_json())
        lines = [line for line in self.history if line.get("kind") == "validation"]
        return {name: value for name, value in numbers(lines[-1]).items() if name not in _POSITION} if lines else {}

    def __repr__(self) -> str:
        end = f"stopped: {self.stopped}" if self.stopped else "done"
        lines = [f"{self.run_folder}: {end} ({counted(self.steps, 'step')}, {counted(self.epochs, 'epoch')})"]
        lines += [] if self.best is None else [f"best score {self.best:.4g}"]
        if self.validation is not None:
            lines.append(self.validation.table())
        elif self.scores:
            lines.append(", ".join(f"{name} {value:.4g}" for name, value in self.scores.items()))
        return "\n".join(lines)


def numbers(content: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of the JSON of scores by name, without texts, tables and what is undefined."""
    return {name: float(value) for name, value in content.items() if type(value) in (int, float)}
