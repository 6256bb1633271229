"""The JSON configuration of a classifier: keys and defaults of the original, and a section `training` of our own.

`docs/how-to/classify.md` describes the keys. The sections of the original are `network`, `optimizer` (with `schedule`)
and `input`.
"""

from __future__ import annotations

import ast
import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from seamseg.config import sections
from seamseg.config.experiments import CLASSIFIERS, near_files, packaged_classifier
from seamseg.config.values import ValueProblem, expected, format_value, parse_value
from seamseg.utils.errors import InputError, did_you_mean
from seamseg.utils.files import read_text
from seamseg.utils.limits import CONFIG_BYTES, parse_json
from seamseg.utils.output import warn

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

MAX_SIDE = 16_384
"""Largest side of an image or crop in pixels."""

_MOST_WARNINGS = 20
_OLD_NAMES = {"leaky_relu_slope": "activation_param"}
_OLD_ACTIVATIONS = {"none": "identity"}


def _key(default: Any, doc: str, **limits: Any) -> Any:
    """Declare a key with its default; documentation and limits as for :func:`seamseg.config.sections.key`."""
    metadata = sections.key(doc, **limits).metadata
    if isinstance(default, (dict, list)):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class NetworkConfig:
    """The network and the initialisation of its weights."""

    arch: str = _key("resnet101", "architecture: resnet50, resnext101, wider_resnet38, densenet264 ...")
    activation: str = _key("relu", "activation after each norm; relu only with bn_mode standard", choices=ACTIVATIONS)
    activation_param: float = _key(0.01, "negative slope of leaky_relu, alpha of elu", minimum=0)
    input_3x3: bool = _key(False, "three 3x3 convolutions instead of one 7x7 (ResNeXt, DenseNet)")
    bn_mode: str = _key("standard", "batch norm: standard, in-place, or in-place and synchronised", choices=BN_MODES)
    classes: int = _key(1000, "number of classes", minimum=1, maximum=1_000_000)
    dilation: Any = _key(
        1, "dilation: one number for all blocks, or four values, each a number or a list of one per block"
    )
    weight_gain_multiplier: float = _key(1.0, "factor of the initial weights; no effect on kaiming_*", above=0)
    weight_init: str = _key("xavier_normal", "initialisation of the convolutions", choices=INITIALISERS)
    params: dict[str, Any] = _key({}, 'further arguments of the architecture, for example {"blocks": [1, 1, 1, 1]}')


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over time."""

    type: str = _key("constant", "curve of the learning rate", choices=tuple(SCHEDULES))
    mode: str = _key("epoch", "the curve is a function of the epoch, or of the step", choices=("epoch", "step"))
    epochs: int = _key(10, "epochs to train", minimum=1)
    params: dict[str, Any] = _key(
        {},
        "step {step_size, gamma}, multistep {milestones, gamma}, exponential {gamma}, linear {alpha, beta}: "
        "factor alpha * t + beta, at least 0",
    )


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer."""

    batch_size: int = _key(256, "images per step over all processes", minimum=1, maximum=1_048_576)
    type: str = _key("SGD", "SGD or Adam", choices=("SGD", "Adam"))
    momentum: float = _key(0.9, "momentum of SGD", minimum=0, maximum=1)
    weight_decay: float = _key(1e-4, "weight decay of all parameters, norms included", minimum=0)
    clip: float = _key(1.0, "largest norm of the gradient, which is scaled down to it; 0 for no limit", minimum=0)
    learning_rate: float = _key(0.1, "base learning rate", minimum=0)
    classifier_lr: float = _key(-1.0, "base learning rate of the classifier; -1 for learning_rate")
    nesterov: bool = _key(False, "Nesterov momentum")
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)


@dataclass(frozen=True)
class InputConfig:
    """Sizes, augmentation and normalisation of the images."""

    scale_train: int = _key(-1, "shorter side that training images are resized to before the crop; -1 for none")
    crop_train: int = _key(224, "side of the random crop", minimum=1, maximum=MAX_SIDE)
    color_jitter_train: bool = _key(False, "random saturation, brightness and contrast")
    lighting_train: bool = _key(False, "random shift along the principal components of the colours")
    scale_val: int = _key(256, "shorter side that validation images are resized to before the crop; -1 for none")
    crop_val: int = _key(224, "side of the centre crop", minimum=1, maximum=MAX_SIDE)
    mean: tuple[float, float, float] = _key((0.485, 0.456, 0.406), "mean of each channel, for values in 0..1")
    std: tuple[float, float, float] = _key((0.229, 0.224, 0.225), "standard deviation of each channel", above=0)


@dataclass(frozen=True)
class TrainingConfig:
    """Options that the original does not have; all keys are ours."""

    seed: int = _key(0, "random seed of weights, order and augmentation", minimum=0, maximum=2**32 - 1)
    precision: str = _key(
        "fp32",
        "fp32, bf16 or fp16 (mixed), or auto: bf16 where it is faster than fp32",
        choices=("fp32", "bf16", "fp16", "auto"),
    )
    min_crop_area: float = _key(
        0.08, "smallest area of the random crop, as a fraction of the image", above=0, maximum=1
    )
    upright: bool = _key(False, "apply the EXIF orientation of images, which `seamseg predict` always does")
    channels_last: bool = _key(False, "run the network in channels-last memory format")
    accumulate: int = _key(1, "batches whose gradients are accumulated for one step", minimum=1, maximum=10**6)
    ema: float = _key(
        0.0, "decay per step of a moving average of the weights, which is then validated", minimum=0, maximum=1
    )
    num_workers: int = _key(2, "processes that load images; 0 for none", minimum=0, maximum=1024)
    prefetch: int = _key(2, "batches that each worker loads in advance", minimum=1, maximum=1024)
    persistent_workers: bool = _key(False, "keep the workers between epochs")
    drop_last: bool = _key(False, "drop the last, smaller batch of an epoch")
    log_interval: int = _key(10, "steps between log lines", minimum=1)
    log_hist: bool = _key(False, "histograms of fc and bn_out in TensorBoard")
    val_interval: int = _key(1, "epochs between validations", minimum=1)
    snapshot_interval: int = _key(0, "steps between checkpoints within an epoch; 0 for none", minimum=0)
    snapshot_keep: int = _key(1, "number of newest checkpoints to keep", minimum=1)
    loss_limit: float = _key(0.0, "training stops if the loss exceeds it; 0 for no limit", minimum=0)


@dataclass(frozen=True)
class ClassifierConfig:
    """A whole configuration; `source` is its name in errors."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    input: InputConfig = field(default_factory=InputConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    source: str = field(default="config", compare=False)

    def to_json(self, ours: bool = True) -> dict[str, Any]:
        """Return the sections as plain data; without `ours`, as the original completes a file."""
        content = {f.name: asdict(getattr(self, f.name)) for f in fields(self) if f.name != "source"}
        content["input"] |= {"mean": list(self.input.mean), "std": list(self.input.std)}
        if not ours:
            del content["training"], content["network"]["params"]
        return content

    def batch_per_process(self, world_size: int) -> int:
        """Return the images of a batch of each process.

        Raises
        ------
        InputError
            if there are more processes than images in a batch
        """
        size = self.optimizer.batch_size // world_size
        if size < 1:
            raise InputError(
                f"{self.source}: optimizer.batch_size = {self.optimizer.batch_size} is less than one image for each of "
                f"{world_size} processes"
            )
        return size


def _keys(section: Any, prefix: str = "") -> Iterator[str]:
    for name, hint in typing.get_type_hints(section).items():
        if is_dataclass(hint):
            yield from _keys(hint, f"{prefix}{name}.")
        elif prefix:
            yield prefix + name


KEYS = tuple(_keys(ClassifierConfig))
"""All keys, as `section.key`."""


def load_classifier_config(path: str | Path, overrides: Sequence[str] = ()) -> ClassifierConfig:
    """Read a JSON configuration.

    Parameters
    ----------
    path : the file, or the bare name of a packaged one such as `resnext101_ipabn_lr_512`
    overrides : `section.key=value` each

    Raises
    ------
    InputError
        if the file is missing or no JSON, or a value is wrong; unknown keys of the file are only warned of
    """
    path = Path(path)
    if not path.exists():
        path = packaged_classifier(str(path)) or path
    if path.is_dir():
        raise InputError(f"{path}: is a folder, not a config file")
    if not path.exists():
        raise InputError(f"{path}: no such config file{near_files(path, CLASSIFIERS)}")
    try:
        content = parse_json(read_text(path, "config file", CONFIG_BYTES))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: line {error.lineno}: not JSON: {error.msg}") from None
    except ValueError as error:
        raise InputError(f"{path}: not a JSON config file: {error}") from None
    return parse_classifier_config(content, str(path), overrides)


def parse_classifier_config(content: Any, source: str = "config", overrides: Sequence[str] = ()) -> ClassifierConfig:
    """Complete and check the content of a JSON configuration; `source` is its name in errors.

    Other arguments and errors as :func:`load_classifier_config`.
    """
    if not isinstance(content, Mapping):
        raise InputError(f"{source}: not a config file: the content must be an object with sections")
    texts = dict(map(_split_override, overrides))
    config: ClassifierConfig = _section(ClassifierConfig, _renamed(content), source, "", texts, source=source)
    _check(config)
    return config


def _renamed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the names of keys and activations from before release 1.0 of the original."""
    network = content.get("network")
    if not isinstance(network, Mapping):
        return dict(content)
    new = {key: value for key, value in network.items() if key not in _OLD_NAMES}
    for old, name in _OLD_NAMES.items():
        if old in network:
            new.setdefault(name, network[old])
    if isinstance(new.get("activation"), str):
        new["activation"] = _OLD_ACTIVATIONS.get(new["activation"], new["activation"])
    return {**content, "network": new}


def _section(cls: type, content: Any, origin: str, name: str, texts: Mapping[str, str], **values: Any) -> Any:
    """Build a section from JSON over its defaults, and texts of overrides over both."""
    if not isinstance(content, Mapping):
        raise InputError(f"{origin}: {name} must be an object with keys, not {_shown(content)}")
    hints = typing.get_type_hints(cls)
    known = [spec.name for spec in fields(cls) if spec.name not in values]
    unknown = [key for key in content if key not in known]
    for key in unknown[:_MOST_WARNINGS]:
        meant = did_you_mean(str(key), known)
        warn(f"{origin}: unknown key {_joined(name, key)} is ignored{meant}", stacklevel=2)
    if len(unknown) > _MOST_WARNINGS:
        warn(f"{origin}: {len(unknown) - _MOST_WARNINGS} more unknown keys are ignored", stacklevel=2)
    for spec in fields(cls):
        if spec.name not in known:
            continue
        hint, full = hints[spec.name], _joined(name, spec.name)
        if is_dataclass(hint):
            values[spec.name] = _section(hint, content.get(spec.name, {}), origin, full, texts)  # type: ignore[arg-type]
        elif full in texts:
            text = texts[full]
            values[spec.name] = _parsed(text, hint, spec.metadata, f"`overrides={full}={text}`")
        elif spec.name in content:
            value = content[spec.name]
            where = f"{origin}: {full} = {_shown(value)}"
            values[spec.name] = _parsed(_as_text(value, hint, where), hint, spec.metadata, where)
    return cls(**values)


def _as_text(value: Any, hint: Any, where: str) -> str:
    """Return a JSON value as the text that :func:`parse_value` reads; refuse values of another type."""
    container = typing.get_origin(hint)
    wanted: tuple[type, ...] = {bool: (bool,), str: (str,), int: (int,), float: (int, float)}.get(hint, (object,))
    if container is not None:
        wanted = (dict,) if container is dict else (list,)
    if not isinstance(value, wanted) or (wanted != (bool,) and hint is not Any and isinstance(value, bool)):
        kind = "true or false" if hint is bool else expected(hint)
        raise InputError(f"{where}: expected {kind}")
    return format_value(value)


def _parsed(text: str, hint: Any, limits: Mapping[str, Any], where: str) -> Any:
    try:
        return ast.literal_eval(text) if hint is Any else parse_value(text, hint, limits)
    except ValueProblem as problem:
        raise InputError(f"{where}: {problem}") from None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise InputError(f"{where}: expected a number or a list") from None


def _split_override(override: str) -> tuple[str, str]:
    """Return key and value of `section.key=value`; InputError if it is none, or if there is no such key."""
    name, equals, value = (word.strip() for word in override.partition("="))
    section, dot, key = name.rpartition(".")
    if not equals or not dot:
        example = "`overrides=optimizer.learning_rate=0.05`"
        raise InputError(f"`overrides={override}`: write section.key=value, for example {example}")
    if any(known.startswith(f"{name}.") for known in KEYS):
        raise InputError(f"`overrides`: {name} is a section; write {name}.KEY=VALUE")
    if name not in KEYS:
        others = [known.rpartition(".")[2] for known in KEYS if known.startswith(f"{section}.")]
        raise InputError(f"`overrides`: unknown key {name}{did_you_mean(key, others)}")
    return name, value


def _check(config: ClassifierConfig) -> None:
    """Raise InputError if keys contradict each other."""
    network, schedule, source = config.network, config.optimizer.schedule, config.source
    if network.activation == "relu" and network.bn_mode != "standard":
        raise InputError(
            f"{source}: network.activation = relu cannot be inverted, which bn_mode = {network.bn_mode} needs; use "
            "leaky_relu, or bn_mode = standard"
        )
    if network.input_3x3 and network.arch.startswith("resnet"):
        raise InputError(
            f"{source}: network.input_3x3: {network.arch} has no stem of 3x3 convolutions; only ResNeXt and DenseNet do"
        )
    if own := sorted({"name", "norm", "classes", "keep_outputs"} & set(network.params)):
        raise InputError(
            f"{source}: network.params: {own[0]} cannot be set there; the other keys of network determine it"
        )
    if not _is_dilation(network.dilation):
        raise InputError(
            f"{source}: network.dilation = {_shown(network.dilation)}: expected a number from 1 to 64, or "
            "four values, each such a number or a list of them"
        )
    if config.optimizer.classifier_lr < 0 and config.optimizer.classifier_lr != -1:
        raise InputError(f"{source}: optimizer.classifier_lr = {config.optimizer.classifier_lr}: expected -1 or a rate")
    for name in ("scale_train", "scale_val"):
        if (scale := getattr(config.input, name)) != -1 and not 1 <= scale <= MAX_SIDE:
            raise InputError(f"{source}: input.{name} = {scale}: expected -1, or a side from 1 to {MAX_SIDE} pixels")
    _check_schedule(schedule, source)


def _check_schedule(schedule: ScheduleConfig, source: str) -> None:
    where, params = f"{source}: optimizer.schedule.params", schedule.params
    required = SCHEDULES[schedule.type]
    if missing := [name for name in required if name not in params]:
        raise InputError(f"{where}: a {schedule.type} schedule needs {', '.join(missing)}")
    allowed = {*required, *(("gamma",) if schedule.type in ("step", "multistep") else ())}
    if unknown := sorted(set(params) - allowed):
        raise InputError(
            f"{where}: a {schedule.type} schedule has no {', '.join(unknown)}{did_you_mean(unknown[0], allowed)}"
        )
    for name, value in params.items():
        values = value if name == "milestones" and isinstance(value, list) else [value]
        whole = name in ("milestones", "step_size")
        good = all(_is_number(v) and (not whole or (isinstance(v, int) and v > 0)) for v in values)
        if not good or (name == "milestones" and not isinstance(value, list)):
            kind = {"milestones": "a list of positive whole numbers", "step_size": "a positive whole number"}
            raise InputError(f"{where}: {name} = {_shown(value)}: expected {kind.get(name, 'a number')}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")


def _is_dilation(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        flat = [item for entry in value for item in (entry if isinstance(entry, (list, tuple)) else [entry])]
        return len(value) == 4 and all(_is_dilation(item) and isinstance(item, int) for item in flat)
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 64


def _joined(section: str, key: object) -> str:
    return f"{section}.{key}" if section else str(key)


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
