"""Configurations as the original resolved them, and mistakes in them, each one line with the way out."""

import dataclasses
import json
from pathlib import Path

import pytest

from seamseg.config import (
    config_from_string,
    config_to_string,
    default_config,
    experiments,
    find_experiment,
    load_config,
)
from seamseg.config.loader import check_training, differences
from seamseg.config.reference import reference
from seamseg.config.sections import SECTIONS
from seamseg.config.values import ValueProblem, hints_of, parse_value
from seamseg.utils.errors import InputError

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests" / "golden" / "configs.json").read_text())
EXPERIMENTS = {"vistas": "vistas_r50.ini", "cityscapes": "cityscapes_r50.ini"}
KINDS = ("panoptic", "instance_seg", "detection")


def problem(text, kind="panoptic", overrides=()):
    with pytest.raises(InputError) as error:
        check_training(config_from_string(text, kind, "my.ini", overrides), "my.ini", overrides)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # names that there are not, and files that are no INI
        ("[optimiser]\nlr = 1", "my.ini: unknown section [optimiser]; did you mean 'optimizer'?"),
        ("[optimizer]\nlearning = 1", "my.ini: unknown key 'learning' in [optimizer]; known are accumulate, "),
        ("[roi]\nnum_sample = 1", "my.ini: unknown key 'num_sample' in [roi]; did you mean 'num_samples'?"),
        ("[general]\nlr = 1", "my.ini: unknown key 'lr' in [general]; it belongs in [optimizer]"),
        ("[DEFAULT]\nlr = 1", "my.ini: unknown section [DEFAULT]"),
        ("lr = 1", "my.ini: line 1: a [section] must come before the first key: 'lr = 1'"),
        ("[roi]\nnonsense", "my.ini: line 2: not `key = value`: 'nonsense'"),
        # values that a key cannot have
        ("[optimizer]\nlr = fast", "my.ini: [optimizer] lr = fast: expected a number"),
        ("[roi]\nnum_samples = 1.5", "my.ini: [roi] num_samples = 1.5: expected a whole number"),
        ("[roi]\nscore_threshold = 5", "my.ini: [roi] score_threshold = 5: expected a value from 0 to 1"),
        ("[rpn]\nanchor_scale = 0", "my.ini: [rpn] anchor_scale = 0: expected more than 0"),
        ("[optimizer]\nnesterov = perhaps", "my.ini: [optimizer] nesterov = perhaps: expected yes or no"),
        ("[roi]\nroi_size = 14", "my.ini: [roi] roi_size = 14: expected a tuple of 2 whole numbers"),
        ("[roi]\nroi_size = (14, 14, 14)", "my.ini: [roi] roi_size = (14, 14, 14): expected 2 values, got 3"),
        ("[rpn]\nanchor_ratios = ()", "my.ini: [rpn] anchor_ratios = (): is empty, expected a tuple of numbers"),
        ("[rpn]\nanchor_ratios = (1, -2)", "expected more than 0"),
        ("[fpn]\ninputs = (1, 2)", "my.ini: [fpn] inputs = (1, 2): expected a list of quoted names"),
        ("[scheduler]\nparams = {'a': open('x')}", "expected a dict such as"),
        ("[body]\nbody = resnet51", "my.ini: [body] body = resnet51: no body 'resnet51'; did you mean 'resnet50'?"),
        ("[body]\nnormalization_mode = batch", "expected one of bn, syncbn"),
        # values that contradict each other
        ("[optimizer]\nloss_weights = (1, 1)", "[optimizer] loss_weights has 2 values, panoptic has 6"),
        (
            "[general]\nkind = detection\n[optimizer]\nloss_weights = (1,1,1,1,1,1)",
            "has 6 values, detection has 4 losses",
        ),
        ("[fpn]\nextra_scales = 1", "[fpn] out_strides has 4 values, inputs and extra_scales make 5"),
        ("[rpn]\nfpn_levels = 5", "[rpn] fpn_min_level + fpn_levels = 5, the pyramid has 4 levels"),
        ("[fpn]\ninputs = ['mod2','mod3','mod4','mod6']", "[fpn] inputs names 'mod6', which is not in [bo"),
        ("[roi]\nneg_threshold_lo = .9", "[roi] neg_threshold_lo 0.9 is above neg_threshold_hi 0.5"),
        ("[dataloader]\ncolor_jitter = (0, 0, 0, .6)", "color_jitter: the hue, its last value, is at most"),
    ],
)
def test_mistakes(text, expected):
    message = problem(text)
    assert message.startswith("my.ini: ")
    assert expected in message


@pytest.mark.parametrize(
    ("kind", "text", "key"),
    [
        ("panoptic", "[sem]\ndilations = (1, 2)", "[sem] dilations"),
        ("instance_seg", "[sem]\nloss = max_pooling", "[sem] loss"),
        ("detection", "[roi]\nvoid_is_background = yes", "[roi] void_is_background"),
    ],
)
def test_keys_without_effect_are_refused(kind, text, key):
    line = f"{key} has no effect on networks of kind {kind}: remove it"
    assert problem(f"[general]\nkind = {kind}\n{text}") == f"my.ini: {line}"
    override = text.replace("[", "").replace("]\n", ".").replace(" = ", "=")
    assert problem("", kind, (override,)) == f"`overrides`: {line}"
    # the file is for another kind, whose keys these are; a file that names none is for panoptic networks
    if kind == "panoptic":
        assert problem(text) == f"my.ini: {line}"
        text += "\n[general]\nkind = semantic"
    else:
        assert config_from_string(text, kind) == default_config(kind)
    made = config_from_string(text, overrides=[f"general.kind={kind}"])
    assert made == default_config(kind)
    assert config_from_string(config_to_string(made)) == made


def test_keys_of_the_original_without_effect_are_ignored_unless_the_file_states_its_kind():
    text = "[sem]\nohem = .5\n[general]\nmin_stuff_area = 1\n[body]\nout_strides = {'mod2': 4}\n"
    made = config_from_string(text, "detection")
    assert made == default_config("detection")
    assert config_from_string(config_to_string(made)) == made
    message = problem(text.replace("[general]", "[general]\nkind = detection"))
    assert message == "my.ini: [sem] ohem has no effect on networks of kind detection: remove it"
    assert "[sem] ohem = -1.0: expected" in problem("[sem]\nohem = -1.0", "detection")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optimizer.lr", "`overrides=optimizer.lr`: write section.key=value"),
        ("optimizr.lr=1", "`overrides=optimizr.lr=1`: unknown section [optimizr]; did you mean 'optimizer'?"),
        ("optimizer.lrr=1", "`overrides=optimizer.lrr=1`: unknown key 'lrr' in [optimizer]; did you mean 'lr'?"),
        ("optimizer.lr=x", "`overrides`: [optimizer] lr = x: expected a number"),
    ],
)
def test_wrong_overrides(override, expected):
    message = problem("", overrides=(override,))
    assert message.startswith("`overrides")
    assert expected in message


def test_spellings(tmp_path):
    """As the original took them, and as Windows writes them."""
    text = """[optimizer]
LR: .5
Nesterov = On
[general]
eval_coco = yes
[rpn]
anchor_ratios = [1, 2]
[fpn]
inputs = 'mod2', 'mod3', 'mod4', 'mod5'
[sem]
ohem = None
[dataloader]
train_set = 50%(half)s
train_batch_size =
random_scale =
"""
    (tmp_path / "my.ini").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    config = load_config(tmp_path / "my.ini")
    assert (config.optimizer.lr, config.optimizer.nesterov, config.general.eval_coco) == (0.5, True, True)
    assert config.rpn.anchor_ratios == (1.0, 2.0)
    assert config.fpn.inputs == ["mod2", "mod3", "mod4", "mod5"]
    assert config.sem.ohem is config.dataloader.train_batch_size is config.dataloader.random_scale is None
    assert config.dataloader.train_set == "50%(half)s"


def test_overrides_win_over_the_file():
    text = "[optimizer]\nlr = .5\nmomentum = .5\n[dataloader]\ntrain_set = mine"
    overrides = ["optimizer.lr=0.25", "optimizer.LR = 0.125", "dataloader.train_set="]
    overrides += ['scheduler.params={"gamma": 0.5}', "body.weights=a=b.pth"]
    config = config_from_string(text, "panoptic", "my.ini", overrides)
    assert (config.optimizer.lr, config.optimizer.momentum, config.dataloader.train_set) == (0.125, 0.5, "")
    assert config.scheduler.params == {"gamma": 0.5}
    assert config.body.weights == "a=b.pth"


def test_an_override_of_the_width_replaces_the_channels_of_the_file():
    text = '[body]\nbody = resnet18\nout_channels = {"mod1": 64, "mod2": 64, "mod3": 128, "mod4": 256, "mod5": 512}\n'
    text += '[fpn]\ninputs = ["mod2", "mod3", "mod4", "mod5"]\n'
    override = 'body.body_params={"width": 32}'
    config = config_from_string(text, "panoptic", "my.ini", [override])
    assert list(config.body.out_channels.values()) == [32, 32, 64, 128, 256]
    own = '{"mod1": 1, "mod2": 2, "mod3": 3, "mod4": 4, "mod5": 5}'
    config = config_from_string(text, "panoptic", "my.ini", [override, f"body.out_channels={own}"])
    assert list(config.body.out_channels.values()) == [1, 2, 3, 4, 5]


def test_what_the_text_holds():
    """Keys of ours only when they matter, so that the original reads it."""
    config = default_config()
    text = config_to_string(config)
    assert "kind" not in text
    assert "fc_channels" not in text
    assert "\nkind = detection\n" in config_to_string(default_config("detection"))
    optimizer = dataclasses.replace(config.optimizer, lr=0.5, nesterov=False)
    changed = dataclasses.replace(config, optimizer=optimizer, roi=dataclasses.replace(config.roi, fc_channels=64))
    text = config_to_string(changed)
    assert "fc_channels = 64" in text
    assert config_from_string(text) == changed
    assert differences(config, config) == []
    others = config_from_string(config_to_string(config), overrides=["scheduler.epochs=3", "dataloader.train_set=a"])
    assert differences(config, others) == ["scheduler.epochs: 90 -> 3", "dataloader.train_set: empty -> a"]


def test_packaged_experiments_by_name(tmp_path, monkeypatch):
    assert {"vistas_r50", "cityscapes_r50", "coco_r50", "toy_city_r18"} <= set(experiments())
    assert load_config("vistas_r50") == load_config(find_experiment("vistas_r50.ini"))
    with pytest.raises(InputError, match="no packaged experiment 'vista_r50'; did you mean 'vistas_r50'"):
        find_experiment("vista_r50")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vistas_r50").write_text("[optimizer]\nlr = 7")
    assert load_config("vistas_r50").optimizer.lr == 7


def test_the_kind_is_that_of_the_override_then_of_the_file_then_of_the_caller(tmp_path):
    path = tmp_path / "my.ini"
    path.write_text("")
    assert load_config(path).general.kind == "panoptic"
    assert load_config(path, "instance_seg").general.kind == "instance_seg"
    path.write_text("[general]\nkind = detection")
    config = load_config(path, "instance_seg")
    assert (config.general.kind, len(config.optimizer.loss_weights)) == ("detection", 4)
    config = load_config(path, None, ["general.kind=panoptic", "general.kind=instance_seg"])
    assert (config.general.kind, len(config.optimizer.loss_weights)) == ("instance_seg", 5)
    assert load_config("toy_city_detection_r18").general.kind == "detection"
    assert load_config("toy_city_instance_r18").general.kind == "instance_seg"


def test_an_override_of_the_kind_selects_its_loss_weights():
    six = "[optimizer]\nloss_weights = (1, 2, 3, 4, 5, 6)"
    changed = config_from_string(six, overrides=["general.kind=detection"])
    assert changed.optimizer.loss_weights == (1, 2, 3, 4)
    assert config_from_string(config_to_string(changed)) == changed
    # those of the other kind already
    four = config_from_string("[optimizer]\nloss_weights = (4, 3, 2, 1)", overrides=["general.kind=detection"])
    assert four.optimizer.loss_weights == (4, 3, 2, 1)
    three = "[optimizer]\nloss_weights = (1, 2, 3)"
    assert "has 3 values, detection has 4 losses" in problem(three, "panoptic", ("general.kind=detection",))


@pytest.mark.parametrize("value", ["nan", "1e400", "-inf", "9" * 5000, "1,5", "0x10", "1 2"])
def test_numbers_that_no_key_can_have(value):
    for cls in SECTIONS.values():
        for spec in dataclasses.fields(cls):
            if (hint := hints_of(cls)[spec.name])[0] in (int, float):
                with pytest.raises(ValueProblem, match="expected a"):
                    parse_value(value, hint, spec.metadata)


def assert_equals(config, golden):
    """Every key of the original has its value; all other keys are ours, or do not exist for the task."""
    for section, values in golden.items():
        cls = SECTIONS[section]
        hints, specs = hints_of(cls), {f.name: f for f in dataclasses.fields(cls)}
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
        ours = {f.name for f in dataclasses.fields(cls) if f.metadata["ours"]}
        assert {f.name for f in dataclasses.fields(cls)} == original | ours
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
