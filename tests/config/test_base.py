"""Configurations that build on others: what they inherit, what they write, and what is refused."""

from dataclasses import replace

import pytest
from support.components import LION

from seamseg.config import config_from_string, config_to_string, load_config
from seamseg.config.loader import differences
from seamseg.utils.errors import InputError

TOY = "[general]\nbase = toy_city_r18\n"


@pytest.fixture
def write(tmp_path):
    (tmp_path / "shared").mkdir()

    def write(name, text):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_a_chain_and_overrides(write):
    write("shared/first.ini", "[general]\nseed = 1\nlog_interval = 1\n[optimizer]\nlr = 1\nmomentum = 0.1\n")
    write("shared/second.ini", "[general]\nbase = first.ini\nseed = 2\n[optimizer]\nlr = 0.2\n")
    mine = write("mine.ini", "[general]\nbase = shared/second.ini\n[optimizer]\nlr = 0.3\n")
    config = load_config(mine, None, ["optimizer.momentum=0.4"])
    assert (config.general.log_interval, config.general.seed) == (1, 2)
    assert (config.optimizer.lr, config.optimizer.momentum) == (0.3, 0.4)


def test_the_written_configuration_is_complete(write):
    config, base = load_config(write("mine.ini", f"{TOY}[optimizer]\nlr = 0.5\n")), load_config("toy_city_r18")
    assert differences(base, config) == [f"optimizer.lr: {base.optimizer.lr} -> 0.5"]
    text = config_to_string(config)
    assert "base" not in text
    assert config_from_string(text) == config
    with pytest.raises(InputError, match=r"config: \[general\] base = toy_city_r18: a model must have a complete"):
        config_from_string(TOY)
    with pytest.raises(InputError, match=r"general\.base=.*a base is named in a file"):
        config_from_string("", overrides=["general.base=toy_city_r18"])


def test_another_body_has_its_own_channels(write):
    config = load_config(write("mine.ini", f"{TOY}[body]\nbody = resnet50\n"))
    whole = load_config("vistas_r50").body.out_channels
    assert config.body.out_channels == whole
    half = load_config("toy_city_r18", None, ["body.body=resnet50"]).body.out_channels
    assert half == {name: channels // 2 for name, channels in whole.items()}
    write("params.ini", '[body]\nbody = resnext50\nbody_params = {"input_3x3": True}\n')
    assert load_config(write("plain.ini", "[general]\nbase = params.ini\n[body]\nbody = resnet50\n"))
    kept = '[body]\nbody = resnet18\nout_channels = {"mod1": 1, "mod2": 2}\n[fpn]\n'
    config = load_config(write("mine.ini", TOY + kept + 'inputs = ["mod1", "mod2"]\nextra_scales = 2\n'))
    assert config.body.out_channels == {"mod1": 1, "mod2": 2}


def test_another_kind(write):
    """Keys of the base without effect on it are dropped, weights of losses converted; own ones are refused."""
    config = load_config(write("mine.ini", f"{TOY}kind = detection\n"))
    wanted = load_config("toy_city_r18", None, ["general.kind=detection"])
    assert replace(config, texts={}) == replace(wanted, texts={})
    inherited = load_config(write("mine.ini", "[general]\nbase = toy_city_semantic_r18\nseed = 7\n"))
    assert inherited.general.kind == "semantic"
    with pytest.raises(InputError, match=r"mine.ini: \[roi\] void_is_background has no effect on networks of kind sem"):
        load_config(write("mine.ini", "[general]\nbase = toy_city_semantic_r18\n[roi]\nvoid_is_background = yes\n"))


def test_components_of_the_base_are_found_beside_it(write, imported):
    lion = write("shared/lion_of_base.py", LION)
    chosen = "[optimizer]\ntype = lion\n[optimizer lion]\nbeta1 = .8\n"
    write("shared/lion.ini", f"[general]\ncomponents = lion_of_base.py\n{chosen}")
    more = write("more_of_mine.py", "")
    own = "[general]\nbase = shared/lion.ini\ncomponents = more_of_mine.py\n"
    config = load_config(write("mine.ini", f"{own}[optimizer lion]\nbeta2 = .5\n"))
    assert config.general.components == f"{lion}, {more}"
    assert (config.parts["optimizer lion"].beta1, config.parts["optimizer lion"].beta2) == (0.8, 0.5)
    other = load_config(write("mine.ini", f"{own}[optimizer]\ntype = adamw\n"))
    assert "optimizer lion" not in other.parts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base = none.ini", "mine.ini: [general] base = none.ini: {0}/none.ini: no such config file"),
        ("base = cityscapes_r5", "no such config file; did you mean the packaged experiment cityscapes_r50?"),
        ("base = shared/circle.ini", "[general] base = ../mine.ini: a configuration cannot build on itself"),
        ("base = shared/typo.ini", "shared/typo.ini: unknown key 'lrr' in [optimizer]"),
        ("base = shared/value.ini", "shared/value.ini: [optimizer] lr = fast: "),
    ],
)
def test_mistakes(write, tmp_path, text, message):
    write("shared/circle.ini", "[general]\nbase = ../mine.ini\n")
    write("shared/typo.ini", "[optimizer]\nlrr = 1\n")
    write("shared/value.ini", "[optimizer]\nlr = fast\n")
    with pytest.raises(InputError) as error:
        load_config(write("mine.ini", f"[general]\n{text}\n"))
    assert message.format(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)
