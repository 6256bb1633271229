"""Networks of a kind read all keys that have an effect on it, and none of those that are refused or reset for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from support.classes import make_class_folders, write_config
from support.micro import CONFIG

from seamseg.config import KINDS, config_from_string
from seamseg.config.sections import SECTIONS
from seamseg.contrib.classification import config as classifier
from seamseg.contrib.classification.train import train_classifier
from seamseg.inference.options import InferenceOptions
from seamseg.training.options import TrainerOptions
from seamseg.training.run import TrainingOptions, run_training
from seamseg.training.setup import segmentation

CHOOSING = {
    *("general.kind", "general.base", "general.components", "general.network", "optimizer.type"),
    *("sem.loss", "dataloader.reader"),
    "optimizer.beta2",  # of Adam, which is not chosen here
}
"""Keys that choose kinds or components by name, read by the configuration itself."""

pytestmark = pytest.mark.usefixtures("narrow")


@contextmanager
def recorded(sections: dict[str, type]) -> Iterator[set[str]]:
    """Record which keys the package reads, apart from checks and copies of the configuration."""
    reads: set[str] = set()

    def recorder(section: str, names: set[str]) -> Any:
        def get(self: Any, name: str) -> Any:
            if name in names:
                frame = sys._getframe(1)
                caller, function = frame.f_globals["__name__"], frame.f_code.co_name
                package = caller.startswith("seamseg.") and not caller.startswith("seamseg.config.")
                if package and not function.startswith("_check"):
                    reads.add(f"{section}.{name}")
            return object.__getattribute__(self, name)

        return get

    with ExitStack() as stack:
        for section, cls in sections.items():
            names = {spec.name for spec in fields(cls)}
            stack.enter_context(mock.patch.object(cls, "__getattribute__", recorder(section, names)))
        yield reads


@pytest.mark.parametrize("kind", KINDS)
def test_all_keys_of_a_kind_are_read_and_no_others(kind: str, micro: Path, tmp_path: Path) -> None:
    config = config_from_string(CONFIG.format(norm="bn"), overrides=[f"general.kind={kind}"])
    with recorded({**SECTIONS, "trainer": TrainerOptions}) as reads, redirect_stdout(StringIO()):
        InferenceOptions().input_size(config)
        run_training(TrainingOptions("micro.ini", micro, tmp_path, device="cpu"), segmentation(config))
    copied = {f"trainer.{spec.name}" for spec in fields(TrainerOptions)}
    used = {f"{s}.{spec.name}" for s, cls in SECTIONS.items() for spec in fields(cls) if KINDS[kind].uses(s, spec.name)}
    assert reads == copied | used - CHOOSING


def test_every_key_of_a_classifier_is_read(tmp_path: Path) -> None:
    data = make_class_folders(tmp_path / "data")
    config = write_config(tmp_path / "c.json", training={"num_workers": 0, "min_crop_area": 0.5})
    classes = {f.name: getattr(classifier, f"{f.name.title()}Config") for f in fields(classifier.ClassifierConfig)[:-1]}
    classes["optimizer.schedule"] = classifier.ScheduleConfig
    with recorded(classes) as reads, redirect_stdout(StringIO()):
        train_classifier(TrainingOptions(config, data, tmp_path / "run", device="cpu"))
    assert reads == {f"{section}.{spec.name}" for section, cls in classes.items() for spec in fields(cls)}
