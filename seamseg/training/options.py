"""The arguments of a training, and the options of the trainer, which are the same for every kind of network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seamseg.config import Config
from seamseg.utils.options import option, override_texts, several

if TYPE_CHECKING:
    from seamseg.training.callbacks import Callback

# `seamseg train --help` shows these options: no torch


@dataclass(frozen=True)
class TrainingOptions:
    """Options of :func:`seamseg.train`."""

    config: str | Path = option("INI file, or a packaged experiment such as vistas_r50")
    data: str | Path = option("dataset folder")
    log_dir: str | Path | None = option("run folder (default: runs/NAME for NAME.ini)", None, "RUN")
    device: str = option("auto, cpu, cuda or cuda:N (default: auto)", "auto")
    _: KW_ONLY
    resume: str | Path | None = option(
        "resume from this snapshot, also from one of the original, or from the newest undamaged one of a run folder; "
        "auto: from that of `log_dir`, if there is one (`pretrain` is then ignored)",
        None,
        "F",
    )
    restart: bool = option("overwrite another training in `log_dir`", False)
    pretrain: str | Sequence[str] = option(
        "initialise from a snapshot, a folder with a model, safetensors or hf://user/repo, or one part from its "
        "weights: body, rpn_head, roi_head, sem_head, head, cls; tensors that do not fit are skipped and listed; "
        "repeatable, later ones override earlier ones",
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

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path("runs") / Path(self.config).stem if self.log_dir is None else Path(self.log_dir)


def _of_components(config: Config) -> dict[str, float]:
    """Return the weights of the losses of custom heads, and of a network with losses of its own."""
    from seamseg.models.heads.custom import loss_weight

    heads = [(component.make, keys) for kind in ("head", "network") for component, keys in config.components(kind)]
    # an unknown key is reported when the head is built
    return {loss: float(loss_weight(keys, weight) or 0) for head, keys in heads for loss, weight in head.losses.items()}  # type: ignore[attr-defined]


@dataclass(frozen=True)
class TrainerOptions:
    """Options of a trainer.

    Attributes
    ----------
    epochs : length of the training
    loss_weights : weight of each loss in the total that is minimised, by name
    loss_average : process or step, see :mod:`seamseg.training.step`
    seed : seed of weights, order and augmentation
    accumulate : number of batches of a step
    precision : fp32, bf16, fp16 or auto, see :func:`seamseg.ops.fused.compute_dtype`
    loss_limit : a total loss above it stops the training; 0 for no limit
    clip_norm : maximum norm of the gradient; 0 for no limit
    ema : decay per step of the moving average of the weights; 0 for none
    unused_parameters : find or fake, see :mod:`seamseg.training.ddp`
    log_interval, snapshot_interval : number of steps between log lines, and between snapshots (0: at epochs only)
    val_interval : number of epochs between validations
    snapshot_keep : number of newest snapshots to keep
    broken_limit : fraction of the images of an epoch that may be unreadable
    cudnn_benchmark : have cuDNN benchmark its algorithms for each input size
    compile : compile the network with torch.compile
    rate_names : names of the learning rates of the first and the last group of parameters, in `metrics.jsonl`
    histograms : parts of the names of parameters whose distribution is reported every 10 steps
    key_names : names for messages of those keys of an INI file whose names differ in the configuration; empty for none
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
    broken_limit: float = 0.0
    cudnn_benchmark: bool = True
    compile: bool = False
    rate_names: tuple[str, str] = ("lr_norm", "lr_other")
    histograms: tuple[str, ...] = ()
    key_names: Mapping[str, str] = field(default_factory=dict)

    def key(self, *names: str, joined: str = ", ") -> str:
        """Return the names of keys of an INI file as the configuration has them, for messages."""
        return joined.join(filter(None, (self.key_names.get(name, name) for name in names)))

    @property
    def smaller_rate(self) -> str:
        """The advice after a loss that is not finite."""
        return f"lower {self.key('optimizer.lr')}, or begin with a smaller one ({self.key('scheduler.burn_in_steps')})"

    @classmethod
    def from_config(cls, config: Config) -> TrainerOptions:
        """Return the options of a configuration."""
        general, optimizer = config.general, config.optimizer
        return cls(
            epochs=config.scheduler.epochs,
            # `train --eval` needs no weights, so their number is checked with the training
            loss_weights=dict(zip(config.parts_of_kind.losses, optimizer.loss_weights)) | _of_components(config),
            loss_average=optimizer.loss_average,
            seed=general.seed,
            accumulate=optimizer.accumulate,
            precision=general.precision,
            loss_limit=general.loss_limit,
            clip_norm=optimizer.clip_norm,
            ema=optimizer.ema,
            unused_parameters=general.unused_parameters,
            log_interval=general.log_interval,
            val_interval=general.val_interval,
            snapshot_interval=general.snapshot_interval,
            snapshot_keep=general.snapshot_keep,
            broken_limit=config.dataloader.broken_limit,
            cudnn_benchmark=general.cudnn_benchmark,
            compile=general.compile,
        )
