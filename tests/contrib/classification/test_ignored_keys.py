"""A training of a classifier reads all keys of its configuration."""

from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import fields
from io import StringIO
from pathlib import Path

import pytest
from support.classes import make_class_folders, write_config
from support.recorded_keys import recorded

from seamseg.contrib.classification import config as classifier
from seamseg.contrib.classification.train import train_classifier
from seamseg.training.run import TrainingOptions

pytestmark = pytest.mark.usefixtures("narrow")


def test_every_key_of_a_classifier_is_read(tmp_path: Path) -> None:
    data = make_class_folders(tmp_path / "data")
    config = write_config(tmp_path / "c.json", training={"num_workers": 0, "min_crop_area": 0.5})
    classes = {f.name: getattr(classifier, f"{f.name.title()}Config") for f in fields(classifier.ClassifierConfig)[:-1]}
    classes["optimizer.schedule"] = classifier.ScheduleConfig
    with recorded(classes) as reads, redirect_stdout(StringIO()):
        train_classifier(TrainingOptions(config, data, tmp_path / "run", device="cpu"))
    assert reads == {f"{section}.{spec.name}" for section, cls in classes.items() for spec in fields(cls)}
