"""The JSON configuration: values of the original, old names, and errors of one line."""

import json
from pathlib import Path

import pytest
from support.golden_files import DATA

from seamseg.contrib.classification.config import load_classifier_config, parse_classifier_config
from seamseg.utils.errors import InputError

GOLDEN = json.loads((DATA / "classifier.json").read_text())


@pytest.mark.parametrize("name", GOLDEN["configs"])
def test_the_experiments_and_defaults_of_the_original(name: str) -> None:
    if name == "_minimal_arch_resnet50":
        config = parse_classifier_config({"network": {"arch": "resnet50"}})
    else:
        config = load_classifier_config(name)
    content = config.to_json()
    del content["training"], content["network"]["params"]
    assert content == GOLDEN["configs"][name]


def test_names_before_release_1() -> None:
    network = parse_classifier_config({"network": {"leaky_relu_slope": 0.2, "activation": "none"}}).network
    assert (network.activation, network.activation_param) == ("identity", 0.2)
    both = parse_classifier_config({"network": {"leaky_relu_slope": 0.2, "activation_param": 0.1}}).network
    assert both.activation_param == 0.1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"netwrk": {}}, "unknown key netwrk is ignored; did you mean 'network'?"),
        ({"optimizer": {"schedule": {"epoch": 1}}}, "unknown key optimizer.schedule.epoch .*did you mean 'epochs'"),
    ],
)
def test_unknown_keys_are_warned_of(content: dict, message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        assert parse_classifier_config(content) == parse_classifier_config({})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "must be an object"),
        ({"network": 3}, "network must be an object with keys, not 3"),
        ({"network": {"classes": "five"}}, 'network.classes = "five": expected a whole number'),
        ({"optimizer": {"learning_rate": True}}, "optimizer.learning_rate = true: expected a number"),
        ({"optimizer": {"schedule": {"type": "step"}}}, "a step schedule needs step_size"),
        ({"optimizer": {"schedule": {"type": "linear", "params": {"alpha": 1}}}}, "a linear schedule needs beta"),
        ({"optimizer": {"schedule": {"params": {"gamma": 1}}}}, "a constant schedule has no gamma"),
        ({"optimizer": {"schedule": {"type": "multistep", "params": {"milestones": 3}}}}, "milestones = 3: expected a"),
        ({"input": {"mean": [1, 2]}}, r"input.mean = \[1, 2\]: expected 3 values"),
    ],
)
def test_wrong_values(content: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_classifier_config(content, "c.json")
    assert "\n" not in str(caught.value)
    assert "c.json" in str(caught.value)


def test_overrides() -> None:
    changes = ["network.dilation=[1, 1, 2, [4, 4, 8]]", "optimizer.nesterov=yes", "input.mean=[0, 0, 0.5]"]
    changes += ["optimizer.schedule.type=step", "optimizer.schedule.params={'step_size': 3}", "training.seed=7"]
    config = parse_classifier_config({"training": {"seed": 1}}, overrides=changes)
    assert config.network.dilation == [1, 1, 2, [4, 4, 8]]
    assert config.optimizer.nesterov
    assert config.input.mean == (0, 0, 0.5)
    assert config.optimizer.schedule.params == {"step_size": 3}
    assert config.training.seed == 7


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"network":\n {"arch": }}')
    with pytest.raises(InputError, match=r"broken.json: not JSON, .*line 2"):
        load_classifier_config(broken)
    with pytest.raises(InputError, match="Is a directory"):
        load_classifier_config(tmp_path)
    with pytest.raises(InputError, match=r"no such config file; did you mean .*broken.json"):
        load_classifier_config(tmp_path / "brokn.json")
    with pytest.raises(InputError, match="did you mean the packaged experiment resnext101_ipabn_lr_512"):
        load_classifier_config("resnext101_ipabn_512")


def test_a_batch_is_divided_by_the_processes() -> None:
    config = parse_classifier_config({"optimizer": {"batch_size": 10}})
    assert [config.batch_per_process(n) for n in (1, 3, 10)] == [10, 3, 1]
    with pytest.raises(InputError, match="less than one image for each of 11 processes"):
        config.batch_per_process(11)
