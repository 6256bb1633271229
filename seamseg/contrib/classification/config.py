"""The JSON configuration of a classifier: keys and defaults of the original, and a section `training` of our own.

`docs/how-to/classify.md` describes the keys. The sections of the original are `network`, `optimizer` (with `schedule`)
and `input`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from seamseg.config.experiments import experiments, near_files
from seamseg.config.sections import key
from seamseg.config.values import ValueProblem, format_value, hints_of, parse_value
from seamseg.utils.errors import InputError, did_you_mean
from seamseg.utils.files import read_json
from seamseg.utils.limits import CONFIG_BYTES
from seamseg.utils.output import warn

CLASSIFIERS = "imagenet/*.json"
"""Pattern of the packaged configurations, see :func:`seamseg.config.experiments.experiments`."""
BN_MODES = ("standard", "inplace", "sync")
ACTIVATIONS = ("relu", "leaky_relu", "elu", "identity")
INITIALISERS = ("xavier_normal", "xavier_uniform", "kaiming_normal", "kaiming_uniform", "orthogonal")
SCHEDULES = {
    "constant": (),
    "step": ("step_size",),
    "multistep": ("milestones",),
    "exponential": ("gamma",),
    "linear": ("alpha", "beta"),
}
"""Required parameters of each schedule; step and multistep also have `gamma`, 0.1 by default."""
PARAMS: dict[str, tuple[tuple[Any, bool], dict[str, float]]] = {
    "step_size": ((int, False), {"minimum": 1}),
    "milestones": ((list[int], False), {"minimum": 1}),
    **dict.fromkeys(("gamma", "alpha", "beta"), ((float, False), {})),
}
"""Types, none optional, and limits of the parameters of schedules."""

MAX_SIDE = 16_384
"""Largest side of an image or crop in pixels."""


@dataclass(frozen=True)
class NetworkConfig:
    """The network and the initialisation of its weights."""

    arch: str = key("architecture: resnet50, resnext101, wider_resnet38, densenet264 ...", "resnet101")
    activation: str = key("activation after each norm; relu only with bn_mode standard", "relu", choices=ACTIVATIONS)
    activation_param: float = key("negative slope of leaky_relu, alpha of elu", 0.01, minimum=0)
    input_3x3: bool = key("three 3x3 convolutions instead of one 7x7 (ResNeXt, DenseNet)", False)
    bn_mode: str = key("batch norm: standard, in-place, or in-place and synchronised", "standard", choices=BN_MODES)
    classes: int = key("number of classes", 1000, minimum=1, maximum=1_000_000)
    dilation: Any = key(
        "dilation: one number for all blocks, or four values, each a number or a list of one per block", 1
    )
    weight_gain_multiplier: float = key("factor of the initial weights; no effect on kaiming_*", 1.0, above=0)
    weight_init: str = key("initialisation of the convolutions", "xavier_normal", choices=INITIALISERS)
    params: dict[str, Any] = field(
        default_factory=dict,
        metadata=key('further arguments of the architecture, for example {"blocks": [1, 1, 1, 1]}').metadata,
    )


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over time."""

    type: str = key("curve of the learning rate", "constant", choices=tuple(SCHEDULES))
    mode: str = key("the curve is a function of the epoch, or of the step", "epoch", choices=("epoch", "step"))
    epochs: int = key("epochs to train", 10, minimum=1)
    params: dict[str, Any] = field(
        default_factory=dict,
        metadata=key(
            "step {step_size, gamma}, multistep {milestones, gamma}, exponential {gamma}, linear {alpha, beta}: "
            "factor alpha * t + beta, at least 0"
        ).metadata,
    )


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer."""

    batch_size: int = key("images per step over all processes", 256, minimum=1, maximum=1_048_576)
    type: str = key("SGD or Adam", "SGD", choices=("SGD", "Adam"))
    momentum: float = key("momentum of SGD", 0.9, minimum=0, maximum=1)
    weight_decay: float = key("weight decay of all parameters, norms included", 1e-4, minimum=0)
    clip: float = key("largest norm of the gradient, which is scaled down to it; 0 for no limit", 1.0, minimum=0)
    learning_rate: float = key("base learning rate", 0.1, minimum=0)
    classifier_lr: float = key("base learning rate of the classifier; -1 for learning_rate", -1.0, minimum=-1)
    nesterov: bool = key("Nesterov momentum", False)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)


@dataclass(frozen=True)
class InputConfig:
    """Sizes, augmentation and normalisation of the images."""

    scale_train: int = key("shorter side before the crop; -1: as it is", -1, minimum=-1, maximum=MAX_SIDE)
    crop_train: int = key("side of the random crop", 224, minimum=1, maximum=MAX_SIDE)
    color_jitter_train: bool = key("random saturation, brightness and contrast", False)
    lighting_train: bool = key("random shift along the principal components of the colours", False)
    scale_val: int = key("shorter side before the crop; -1: as it is", 256, minimum=-1, maximum=MAX_SIDE)
    crop_val: int = key("side of the centre crop", 224, minimum=1, maximum=MAX_SIDE)
    mean: tuple[float, float, float] = key("mean of each channel, for values in 0..1", (0.485, 0.456, 0.406))
    std: tuple[float, float, float] = key("standard deviation of each channel", (0.229, 0.224, 0.225), above=0)


@dataclass(frozen=True)
class TrainingConfig:
    """Options that the original does not have; all keys are ours."""

    seed: int = key("random seed of weights, order and augmentation", 0, minimum=0, maximum=2**32 - 1)
    precision: str = key(
        "fp32, bf16 or fp16 (mixed), or auto: bf16 where it is faster than fp32",
        "fp32",
        choices=("fp32", "bf16", "fp16", "auto"),
    )
    min_crop_area: float = key("smallest area of the random crop, as a fraction of the image", 0.08, above=0, maximum=1)
    upright: bool = key("apply the EXIF orientation of images, which `seamseg predict` always does", False)
    channels_last: bool = key("run the network in channels-last memory format", False)
    accumulate: int = key("batches whose gradients are accumulated for one step", 1, minimum=1, maximum=10**6)
    ema: float = key(
        "decay per step of a moving average of the weights, which is then validated", 0.0, minimum=0, maximum=1
    )
    num_workers: int = key("processes that load images; 0 for none", 2, minimum=0, maximum=1024)
    prefetch: int = key("batches that each worker loads in advance", 2, minimum=1, maximum=1024)
    persistent_workers: bool = key("keep the workers between epochs", False)
    drop_last: bool = key("drop the last, smaller batch of an epoch", False)
    log_interval: int = key("steps between log lines", 10, minimum=1)
    log_hist: bool = key("histograms of fc and bn_out in TensorBoard", False)
    val_interval: int = key("epochs between validations", 1, minimum=1)
    snapshot_interval: int = key("steps between checkpoints within an epoch; 0 for none", 0, minimum=0)
    snapshot_keep: int = key("number of newest checkpoints to keep", 1, minimum=1)
    loss_limit: float = key("training stops if the loss exceeds it; 0 for no limit", 0.0, minimum=0)


@dataclass(frozen=True)
class ClassifierConfig:
    """A whole configuration; `source` is its name in errors."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    input: InputConfig = field(default_factory=InputConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    source: str = field(default="config", compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the sections as plain data."""
        content = {f.name: asdict(getattr(self, f.name)) for f in fields(self) if f.name != "source"}
        content["input"] |= {"mean": list(self.input.mean), "std": list(self.input.std)}
        return content

    def batch_per_process(self, world_size: int) -> int:
        """Return the images of a batch of each process; InputError if there are fewer images than processes."""
        size = self.optimizer.batch_size // world_size
        if size < 1:
            raise InputError(
                f"{self.source}: optimizer.batch_size = {self.optimizer.batch_size} is less than one image for each of "
                f"{world_size} processes"
            )
        return size


def _keys(section: Any, prefix: str = "") -> Iterator[str]:
    for name, (hint, _) in hints_of(section).items():
        if is_dataclass(hint):
            yield from _keys(hint, f"{prefix}{name}.")
        elif prefix:
            yield prefix + name


KEYS = tuple(_keys(ClassifierConfig))
"""All keys, as `section.key`."""


def packaged_classifier(name: str) -> Path | None:
    """Return the configuration of a packaged classifier (`resnext101_ipabn_lr_512`), None for an unknown name."""
    return experiments(CLASSIFIERS).get(name.removesuffix(".json"))


def load_classifier_config(path: str | Path, overrides: Sequence[str] = ()) -> ClassifierConfig:
    """Read a JSON file, or a packaged one by its name; `section.key=value` overrides; unknown keys only warn."""
    path = Path(path)
    if not path.exists():
        path = packaged_classifier(str(path)) or path
    if not path.exists():
        raise InputError(f"{path}: no such config file{near_files(path, CLASSIFIERS)}")
    return parse_classifier_config(read_json(path, "config file", CONFIG_BYTES), str(path), overrides)


def parse_classifier_config(content: Any, source: str = "config", overrides: Sequence[str] = ()) -> ClassifierConfig:
    """Complete and check the content of a JSON file, whose name is `source`; see :func:`load_classifier_config`."""
    if not isinstance(content, Mapping):
        raise InputError(f"{source}: not a config file: the content must be an object with sections")
    texts = {}
    for override in overrides:
        name, equals, value = (word.strip() for word in override.partition("="))
        if not equals or name not in KEYS:
            raise InputError(f"`overrides={override}`: unknown key: write section.key=value{did_you_mean(name, KEYS)}")
        texts[name] = value
    network = content.get("network")
    if isinstance(network, Mapping):
        content = {**content, "network": _renamed(network)}
    config: ClassifierConfig = _section(ClassifierConfig, content, source, "", texts, source=source)
    where, schedule = f"{source}: optimizer.schedule.params", config.optimizer.schedule
    required = SCHEDULES[schedule.type]
    if missing := [name for name in required if name not in schedule.params]:
        raise InputError(f"{where}: a {schedule.type} schedule needs {', '.join(missing)}")
    optional = ("gamma",) if schedule.type in ("step", "multistep") else ()
    if unknown := sorted({*schedule.params} - {*required, *optional}):
        raise InputError(f"{where}: a {schedule.type} schedule has no {unknown[0]}{did_you_mean(unknown[0], required)}")
    for name, value in schedule.params.items():
        if value != [] or name != "milestones":  # none: a constant rate
            _parsed(format_value(value), *PARAMS[name], f"{where}: {name} = {_shown(value)}")
    return config


def _renamed(network: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the names of keys and activations from before release 1.0 of the original."""
    slope = {"activation_param": network["leaky_relu_slope"]} if "leaky_relu_slope" in network else {}
    renamed = slope | {name: value for name, value in network.items() if name != "leaky_relu_slope"}
    return renamed | ({"activation": "identity"} if network.get("activation") == "none" else {})


def _section(cls: type, content: Any, origin: str, name: str, texts: Mapping[str, str], **values: Any) -> Any:
    """Build a section from JSON over its defaults, and texts of overrides over both; `name` ends with a dot."""
    if not isinstance(content, Mapping):
        raise InputError(f"{origin}: {name.rstrip('.')} must be an object with keys, not {_shown(content)}")
    hints = {spec: hint for spec, hint in hints_of(cls).items() if spec not in values}
    for unknown in [given for given in content if given not in hints][:20]:
        warn(f"{origin}: unknown key {name}{unknown} is ignored{did_you_mean(unknown, hints)}", stacklevel=2)
    for spec in fields(cls):
        if spec.name not in hints:
            continue
        hint, full = hints[spec.name], name + spec.name
        if is_dataclass(hint[0]):
            section = content.get(spec.name, {})
            values[spec.name] = _section(hint[0], section, origin, f"{full}.", texts)  # type: ignore[arg-type]
        elif full in texts:
            values[spec.name] = _parsed(texts[full], hint, spec.metadata, f"`overrides={full}={texts[full]}`")
        elif spec.name in content:
            given = content[spec.name]
            values[spec.name] = _parsed(format_value(given), hint, spec.metadata, f"{origin}: {full} = {_shown(given)}")
    return cls(**values)


def _parsed(text: str, hint: tuple[Any, bool], limits: Mapping[str, Any], where: str) -> Any:
    try:
        return ast.literal_eval(text) if hint[0] is Any else parse_value(text, hint, limits)
    except ValueProblem as problem:
        raise InputError(f"{where}: {problem}") from None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise InputError(f"{where}: expected a number or a list") from None


def _shown(value: Any) -> str:
    return f"{json.dumps(value, default=str):.80}"
