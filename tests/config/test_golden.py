"""The published experiments and the defaults resolve to what the original makes of them, text for text."""

import json

import pytest
from golden_files import DATA

from seamseg.config import KINDS, config_from_string, config_to_string, default_config, find_experiment, load_config

GOLDEN = json.loads((DATA / "configs.json").read_text())
PUBLISHED = ("vistas", "cityscapes")


@pytest.mark.parametrize("name", PUBLISHED)
def test_resolved_values(name: str) -> None:
    config = load_config(find_experiment(f"{name}_r50"))
    for section, values in GOLDEN[name]["sections"].items():
        assert {key: config.texts[section][key] for key in values} == values


@pytest.mark.parametrize("name", PUBLISHED)
def test_text_of_a_snapshot(name: str) -> None:
    assert config_to_string(load_config(find_experiment(f"{name}_r50"))) == GOLDEN[name]["string"]


@pytest.mark.parametrize("kind", KINDS)
def test_defaults(kind: str) -> None:
    texts = default_config(kind).texts
    for section, values in GOLDEN[f"defaults_{kind}"].items():
        assert {key: texts[section][key] for key in values} == values


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_text_reads_as_the_same_configuration(name: str) -> None:
    config = load_config(find_experiment(f"{name}_r50"))
    assert config_from_string(config_to_string(config)) == config


def test_our_keys_stand_in_the_text_where_they_differ() -> None:
    config = config_from_string("[roi]\nfc_channels = 256\nconv_channels = 256")
    text = config_to_string(config)
    assert "fc_channels = 256" in text
    assert "conv_channels" not in text
    assert config_from_string(text) == config


def test_typed_values() -> None:
    config = load_config(find_experiment("vistas_r50"))
    assert config.rpn.anchor_ratios == (0.2, 0.5, 1.0, 2.0, 5.0)
    assert all(type(ratio) is float for ratio in config.rpn.anchor_ratios)
    assert config.fpn.inputs == ["mod2", "mod3", "mod4", "mod5"]
    assert config.body.out_channels["mod5"] == 2048
    assert config.body.weights == ""
    assert config.optimizer.weight_decay_norm is False
    assert config.scheduler.params == {"gamma": 0.1, "milestones": [144000, 176000]}
    assert config.dataloader.random_scale == (0.8, 1.25)
    assert config.dataloader.train_batch_size == 1
    assert default_config().dataloader.train_batch_size is None
    assert default_config("detection").optimizer.loss_weights == (1.0,) * 4
