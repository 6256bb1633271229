"""The experiments and the packaged defaults resolve to exactly what the original resolved them to."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from seamseg.config import config_from_string, config_to_string, default_config, load_config
from seamseg.config.reference import reference
from seamseg.config.sections import SECTIONS
from seamseg.config.values import hints_of, parse_value

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "configs.json").read_text())
EXPERIMENTS = {"vistas": "vistas_r50.ini", "cityscapes": "cityscapes_r50.ini"}
KINDS = ("panoptic", "instance_seg", "detection")


def assert_equals(config, golden):
    """Every key of the original has its value; all other keys are ours, or do not exist for the task."""
    for section, values in golden.items():
        cls = SECTIONS[section]
        hints, specs = hints_of(cls), {f.name: f for f in fields(cls)}
        for key, text in values.items():
            expected = parse_value(text, hints[key], specs[key].metadata)
            assert getattr(getattr(config, section), key) == expected, f"[{section}] {key}"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_resolve_to_the_original_values_and_text(name):
    config = load_config(ROOT / "configs" / EXPERIMENTS[name])
    assert_equals(config, GOLDEN[name]["sections"])
    assert config_to_string(config) == GOLDEN[name]["string"]


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_are_those_of_the_original(kind):
    assert_equals(default_config(kind), GOLDEN[f"defaults_{kind}"])


def test_panoptic_experiments_have_exactly_the_original_keys_and_ours():
    for section, cls in SECTIONS.items():
        original = set(GOLDEN["defaults_panoptic"][section])
        ours = {f.name for f in fields(cls) if f.metadata["ours"]}
        assert {f.name for f in fields(cls)} == original | ours
        assert not original & ours


# tests/contrib has those with recipes
@pytest.mark.parametrize(
    "path",
    [path for path in sorted((ROOT / "configs").glob("*.ini")) if "seamseg.contrib" not in path.read_text()],
    ids=lambda path: path.stem,
)
def test_every_packaged_experiment_loads_and_survives_its_text(path):
    config = load_config(path)
    assert config_from_string(config_to_string(config)) == config
    assert config.dataloader.train_batch_size
    assert config.dataloader.val_batch_size


def test_the_page_of_all_keys_is_up_to_date():
    page = ROOT / "docs" / "config.md"
    assert page.read_text(encoding="utf-8") == reference(), "run `make reference` and commit docs/config.md"
