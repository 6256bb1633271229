"""Every key has an effect on the kinds of networks that use it, and the others refuse or reset it."""

from __future__ import annotations

import functools
import sys
import types
import typing
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import Field, fields
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from support.classes import make_class_folders, write_config
from support.micro import CONFIG

from seamseg.classification import config as classifier
from seamseg.classification.train import train_classifier
from seamseg.config import KINDS, Config, config_from_string
from seamseg.config.sections import SECTIONS
from seamseg.config.values import format_value, split_optional
from seamseg.inference.options import InferenceOptions
from seamseg.models.build import build_training_module
from seamseg.training.optim.optimizer import build_optimizer
from seamseg.training.options import TrainerOptions
from seamseg.training.run import TrainingOptions, run_training
from seamseg.training.task import SegmentationTask
from seamseg.utils.distributed import World
from seamseg.utils.errors import InputError

MICRO = CONFIG.format(norm="bn")
KEYS = {f"{section}.{spec.name}": spec for section, cls in SECTIONS.items() for spec in fields(cls)}
SKIPPED = {
    "general.kind",  # selects the kind
    "dataloader.reader",  # chosen by name: tests/components/test_reader.py
    "general.unused_parameters",  # read with several processes: tests/training/test_unused_parameters.py
}
TRAINER = "trainer"
OTHERS = {
    "body.gn_groups": "8",
    "body.body_params": '{"dilation": [1, 1, 1, 2]}',
    "body.out_channels": '{"mod1": 1, "mod2": 1, "mod3": 1, "mod4": 1, "mod5": 1}',
    "body.out_strides": '{"mod1": 1, "mod2": 1, "mod3": 1, "mod4": 1, "mod5": 1}',
    "fpn.inputs": '["mod2", "mod3", "mod5"]',
    "fpn.out_strides": "(4, 8, 16, 64)",
    **dict.fromkeys(("rpn.fpn_levels", "roi.fpn_levels", "sem.fpn_levels"), "3"),
    "dataloader.color_jitter": "(0.1, 0.1, 0.1, 0.1)",
    "dataloader.crop": "instance_scale",
    "dataloader.random_scale": "(0.5, 2)",
    "scheduler.params": '{"gamma": 0.5}',
}
"""Values of keys whose other value does not follow from their type."""
CROPS = ("dataloader.crop_size=(48, 48)", "dataloader.random_scale=(0.5, 2)")
NEEDS = {
    "body.gn_groups": ("body.normalization_mode=gn", "body.gn_groups=4"),
    **{f"{head}.fpn_min_level": (f"{head}.fpn_levels=3",) for head in ("rpn", "roi", "sem")},
    "roi.box_loss": CROPS,
    "roi.conv_channels": ("roi.box_convs=1",),
    "optimizer.beta2": ("optimizer.type=adamw",),
    "scheduler.params": ("scheduler.burn_in_steps=0",),
    "dataloader.crop": CROPS,
    "dataloader.persistent_workers": ("dataloader.num_workers=1",),
    "dataloader.prefetch": ("dataloader.num_workers=1",),
}
"""Other keys without which one has no effect."""

pytestmark = pytest.mark.usefixtures("narrow")


def config_of(kind: str, *overrides: str) -> Config:
    return config_from_string(MICRO, overrides=(f"general.kind={kind}", *overrides))


def other(name: str, config: Config) -> str:
    """Another valid value of a key, as text."""
    section, _, key = name.partition(".")
    spec, value = KEYS[name], getattr(getattr(config, section), key)
    kind = split_optional(typing.get_type_hints(SECTIONS[section])[key])[0]
    if name in OTHERS:
        return OTHERS[name]
    if spec.metadata["choices"]:
        return next((choice for choice in spec.metadata["choices"] if choice != value), "transformers")
    if kind is str:
        return "other"
    if typing.get_origin(kind) is tuple:
        items = [*(value or [48] * len(typing.get_args(kind)))]
        return repr((*items[:-1], items[-1] + 1))
    return format_value(not value if kind is bool else number(kind, spec, value or 0))


def number(kind: type, spec: Field[Any], value: float) -> float:
    high = spec.metadata["maximum"]
    if high is None or value + 1 < high:
        return kind(value + 1)
    return kind(high / 2 if value != high / 2 else high / 4)


# --- what is built


def is_empty(name: Any, value: Any) -> bool:
    return isinstance(value, (dict, set)) and not value and str(name).startswith("_")


def fingerprint(value: Any, seen: dict[int, Any]) -> Any:
    """All that a configuration decides about an object: its types and values, without random weights."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (Config, *SECTIONS.values(), Random)) or id(value) in seen:
        return None
    seen[id(value)] = value
    if isinstance(value, (torch.Tensor, np.ndarray)):
        known = not isinstance(value, torch.nn.Parameter) and np.prod(value.shape) < 20
        return tuple(value.shape), str(value.dtype), getattr(value, "requires_grad", None), known and value.tolist()
    if isinstance(value, dict):
        return [(str(key), fingerprint(item, seen)) for key, item in value.items() if not is_empty(key, item)]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [fingerprint(item, seen) for item in value]
    if isinstance(value, functools.partial):
        return fingerprint([value.func, value.args, value.keywords], seen)
    if isinstance(value, (types.FunctionType, types.MethodType)):
        return value.__qualname__, fingerprint([cell.cell_contents for cell in value.__closure__ or ()], seen)
    if isinstance(value, torch.Generator):
        return value.initial_seed()
    if hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        return type(value).__qualname__, fingerprint(vars(value), seen)
    return repr(value) if type(value).__repr__ is not object.__repr__ else type(value).__qualname__


def built(config: Config, data: Path) -> Iterator[Any]:
    """Yield the fingerprints of the data, the options of inference and the schedule, then of network and optimizer."""
    task = SegmentationTask(config)
    yield fingerprint([task.open_loader(data, World()), task.open_validator(data, World()), task.options], {})
    schedule = task.build_schedule([1.0, 1.0], 10)
    yield fingerprint([InferenceOptions().input_size(config), schedule, schedule.get_lr(3, 1)], {})
    module = build_training_module(config, 2, 1)
    optimizer = build_optimizer(module.net, config)
    yield fingerprint([module, type(optimizer).__name__, optimizer.param_groups], {})


# --- what is read


@contextmanager
def recorded(sections: dict[str, type]) -> Iterator[dict[str, set[str]]]:
    """Record in which lines the package reads each key."""
    reads: dict[str, set[str]] = defaultdict(set)

    def recorder(section: str, names: set[str]) -> Any:
        def get(self: Any, name: str) -> Any:
            if name in names:
                frame = sys._getframe(1)
                caller = frame.f_globals["__name__"]
                check = caller.startswith(("seamseg.config.", "seamseg.training.options"))
                check = check or frame.f_code.co_name.startswith("_check")
                if caller.startswith("seamseg.") and not check:
                    reads[f"{section}.{name}"].add(f"{caller}:{frame.f_lineno}")
            return object.__getattribute__(self, name)

        return get

    with ExitStack() as stack:
        for section, cls in sections.items():
            names = {spec.name for spec in fields(cls)}
            stack.enter_context(mock.patch.object(cls, "__getattribute__", recorder(section, names)))
        yield reads


# those of instance segmentation are among the panoptic ones
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k == "instance_seg")) for k in KINDS])
def test_every_key_has_an_effect_or_is_ignored(kind: str, micro: Path, tmp_path: Path) -> None:
    """A key changes what is built, or is read while the built parts run; the others are never read."""
    config = config_of(kind)
    with recorded(SECTIONS) as of_builders:
        list(built(config, micro))
    with recorded({**SECTIONS, TRAINER: TrainerOptions}) as reads, redirect_stdout(StringIO()):
        task = SegmentationTask(config)
        run_training(TrainingOptions("micro.ini", micro, tmp_path, device="cpu"), task)
    # keys are copied to these options, which are read in turn
    assert all(reads.pop(f"{TRAINER}.{spec.name}", None) for spec in fields(TrainerOptions))
    used = {name for name in KEYS if KINDS[kind].uses(*name.split("."))}
    assert reads.keys() <= used
    effective = {name for name, lines in reads.items() if lines - of_builders[name]}
    plain: dict[tuple[str, ...], list[Any]] = {}
    for name in KEYS.keys() - SKIPPED - effective:
        needs = tuple(need for need in NEEDS.get(name, ()) if KINDS[kind].uses(*need.partition("=")[0].split(".")))
        config = config_of(kind, *needs)
        if needs not in plain:
            plain[needs] = list(built(config, micro))
        if has_effect(name, (f"general.kind={kind}", *needs, f"{name}={other(name, config)}"), plain[needs], micro):
            effective.add(name)
    assert effective == used - SKIPPED


def has_effect(name: str, overrides: Sequence[str], plain: Sequence[Any], data: Path) -> bool:
    """Whether other parts are built with a key, or its value is refused for another reason than that."""
    try:
        parts = built(config_from_string(MICRO, overrides=overrides), data)
        return any(part != known for part, known in zip(parts, plain, strict=True))
    except InputError as error:
        message = str(error)
    return f"`overrides`: [{name.replace('.', '] ')} has no effect on networks of kind" not in message


def test_every_key_of_a_classifier_is_read(tmp_path: Path) -> None:
    data = make_class_folders(tmp_path / "data")
    config = write_config(tmp_path / "c.json", training={"num_workers": 0, "min_crop_area": 0.5})
    classes = {f.name: getattr(classifier, f"{f.name.title()}Config") for f in fields(classifier.ClassifierConfig)[:-1]}
    classes["optimizer.schedule"] = classifier.ScheduleConfig
    with recorded(classes) as reads, redirect_stdout(StringIO()):
        train_classifier(TrainingOptions(config, data, tmp_path / "run", device="cpu"))
    assert reads.keys() == {f"{section}.{spec.name}" for section, cls in classes.items() for spec in fields(cls)}
