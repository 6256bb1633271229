"""Every mistake in a configuration is one line that names file, section and key, and what was meant."""

from pathlib import Path

import pytest

from seamseg.config import config_from_string, default_config, experiments, find_experiment, load_config
from seamseg.errors import InputError


def message(text: str, kind: str = "panoptic", overrides: tuple[str, ...] = ()) -> str:
    """What is said about a wrong configuration."""
    with pytest.raises(InputError) as caught:
        config_from_string(text, kind, "my.ini", overrides)
    words = str(caught.value)
    assert "\n" not in words
    return words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[optmizer]\nlr = 1", "my.ini: unknown section [optmizer]; did you mean 'optimizer'?"),
        ("[optimizer]\nlrr = 1", "my.ini: unknown key 'lrr' in [optimizer]; did you mean 'lr'?"),
        ("[optimizer]\nepochs = 1", "my.ini: unknown key 'epochs' in [optimizer]; it belongs in [scheduler]"),
        ("[sem]\nzzz = 1", "my.ini: unknown key 'zzz' in [sem]; known are fpn_levels, fpn_min_level, hidden_channels,"),
        ("[nothing like it]", "my.ini: unknown section [nothing like it]; known are body, dataloader"),
        ("lr = 1", "my.ini: line 1: a [section] must come before the first key"),
        ("[sem]\nohem", "my.ini: line 2: not `key = value`: 'ohem'"),
        ("[sem]\nohem = .1\n\nohem = .2", "my.ini: line 4: 'ohem' is twice in [sem]"),
        ("[sem]\n[rpn]\n[sem]", "my.ini: line 3: the section [sem] is there twice"),
    ],
)
def test_structure(text: str, expected: str) -> None:
    assert message(text).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[general]\nval_interval = often", "[general] val_interval = often: expected a whole number"),
        ("[general]\nval_interval = 1.5", "[general] val_interval = 1.5: expected a whole number"),
        ("[general]\nval_interval =", "[general] val_interval = : is empty, expected a whole number"),
        ("[general]\nval_interval = 0", "[general] val_interval = 0: expected at least 1"),
        ("[general]\neval_coco = perhaps", "[general] eval_coco = perhaps: expected yes or no"),
        ("[general]\nscore_threshold = 1.5", "[general] score_threshold = 1.5: expected a value from 0 to 1"),
        ("[optimizer]\nlr = fast", "[optimizer] lr = fast: expected a number"),
        ("[optimizer]\nlr = nan", "[optimizer] lr = nan: expected a number"),
        ("[optimizer]\nlr = -1", "[optimizer] lr = -1: expected at least 0"),
        ("[rpn]\nsigma = 0", "[rpn] sigma = 0: expected more than 0"),
        ("[sem]\nohem = 2", "[sem] ohem = 2: expected at most 1"),
        ("[body]\nbody = resnet51", "[body] body = resnet51: expected one of resnet18, resnet34"),
        ("[body]\nbody_params = 3", '[body] body_params = 3: expected a dict such as {"gamma": .9}'),
        ("[body]\nout_channels = {'mod1': 'x'}", "[body] out_channels = {'mod1': 'x'}: expected a dict such as"),
        ("[fpn]\ninputs = [mod2]", '[fpn] inputs = [mod2]: expected a list of quoted names such as ["mod2"'),
        ("[fpn]\ninputs = []", "[fpn] inputs = []: is empty, expected a list of quoted names"),
        ("[rpn]\nanchor_ratios = (1.)", "[rpn] anchor_ratios = (1.): expected a tuple of numbers such as (.5, 1.)"),
        ("[rpn]\nanchor_ratios = (1., -2)", "[rpn] anchor_ratios = (1., -2): expected more than 0"),
        ("[rpn]\nanchor_ratios = (1.,", "[rpn] anchor_ratios = (1.,: expected a tuple of numbers"),
        ("[roi]\nroi_size = (14, 14, 14)", "[roi] roi_size = (14, 14, 14): expected 2 values, got 3"),
        ("[roi]\nroi_size = (14, 14.5)", "[roi] roi_size = (14, 14.5): expected a tuple of 2 whole numbers such as"),
        ("[roi]\nbbx_reg_weights = (1, 2, 'x', 4)", "[roi] bbx_reg_weights = (1, 2, 'x', 4): expected a tuple of 4"),
        ("[dataloader]\nrgb_std = (0, 1, 1)", "[dataloader] rgb_std = (0, 1, 1): expected more than 0"),
        ("[scheduler]\nparams = (\n 1\n )", "[scheduler] params = ( 1 ): expected a dict"),
        ("[scheduler]\nparams = __import__('os').getcwd()", "[scheduler] params = __import__('os').getcwd(): expected"),
    ],
)
def test_values(text: str, expected: str) -> None:
    assert message(text).startswith(f"my.ini: {expected}")


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("[optimizer]\nloss_weights = (1, 1)", "panoptic", "has 2 values, panoptic has 6 losses"),
        ("[optimizer]\nloss_weights = (1, 1, 1, 1, 1, 1)", "detection", "has 6 values, detection has 4 losses"),
        ("[fpn]\nextra_scales = 1", "panoptic", "out_strides has 4 values, inputs and extra_scales make 5 levels"),
        ("[rpn]\nfpn_levels = 5", "panoptic", "[rpn] fpn_min_level + fpn_levels = 5, the pyramid has 4 levels"),
        ("[sem]\nfpn_min_level = 1", "panoptic", "[sem] fpn_min_level + fpn_levels = 5, the pyramid has 4 levels"),
        ('[fpn]\ninputs = ["mod2", "mod3", "mod4", "mod6"]', "panoptic", "[fpn] inputs names 'mod6', which [body]"),
        ("[rpn]\nneg_threshold = .8", "panoptic", "[rpn] neg_threshold 0.8 is above pos_threshold 0.7"),
        ("[roi]\nneg_threshold_lo = .6", "panoptic", "[roi] neg_threshold_lo 0.6 is above neg_threshold_hi 0.5"),
    ],
)
def test_contradictions(text: str, kind: str, expected: str) -> None:
    assert expected in message(text, kind)


def test_keys_of_a_head_that_the_task_lacks_are_not_looked_at() -> None:
    two_levels = '[fpn]\ninputs = ["mod2", "mod3"]\nout_strides = (4, 8)\n[rpn]\nfpn_levels = 2\n[roi]\nfpn_levels = 2'
    assert config_from_string(two_levels, "detection").rpn.fpn_levels == 2
    assert "[sem]" in message(two_levels)


@pytest.mark.parametrize("text", ["yes", "True", "on", "1"])
def test_booleans_as_the_original_reads_them(text: str) -> None:
    assert config_from_string(f"[general]\neval_coco = {text}").general.eval_coco is True


def test_what_original_files_may_look_like() -> None:
    text = "[optimizer]\nLR: 0.5\n; a comment\n[rpn]\nanchor_ratios = [1, 2]\n[sem]\nohem =\n"
    config = config_from_string(text + "[dataloader]\nrandom_scale=None")
    assert config.optimizer.lr == 0.5
    assert config.rpn.anchor_ratios == (1.0, 2.0)
    assert config.sem.ohem is None
    assert config.dataloader.random_scale is None


def test_a_percent_sign_is_no_interpolation() -> None:
    assert config_from_string("[body]\nweights = 50%%/a%b.pth").body.weights == "50%%/a%b.pth"


def test_overrides_come_last() -> None:
    config = config_from_string("[optimizer]\nlr = .5", overrides=("optimizer.lr=0.02", " rpn.anchor_ratios = (1, 3)"))
    assert config.optimizer.lr == 0.02
    assert config.rpn.anchor_ratios == (1.0, 3.0)
    assert config.texts["optimizer"]["lr"] == "0.02"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("optimizer.lr", "--set optimizer.lr: write section.key=value, for example --set optimizer.lr=0.02"),
        ("lr=1", "--set lr=1: write section.key=value"),
        ("optimizer.=1", "--set optimizer.=1: write section.key=value"),
        ("optimiser.lr=1", "--set optimiser.lr=1: unknown section [optimiser]; did you mean 'optimizer'?"),
        (
            "optimizer.nestrov=1",
            "--set optimizer.nestrov=1: unknown key 'nestrov' in [optimizer]; did you mean 'nesterov'?",
        ),
        ("optimizer.lr=fast", "--set: [optimizer] lr = fast: expected a number"),
    ],
)
def test_wrong_overrides(override: str, expected: str) -> None:
    assert message("", overrides=(override,)).startswith(expected)


def test_unknown_kind() -> None:
    with pytest.raises(
        InputError, match="unknown kind of network 'semantic': choose panoptic, instance_seg, detection"
    ):
        default_config("semantic")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such config file$"):
        load_config(tmp_path / "nowhere" / "a.ini")
    (tmp_path / "toy_city.ini").touch()
    with pytest.raises(InputError, match=r"toy_cty\.ini: no such config file; did you mean .*toy_city\.ini\?"):
        load_config(tmp_path / "toy_cty.ini")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder, not a config file"):
        load_config(tmp_path)
    (tmp_path / "photo.ini").write_bytes(b"\xff\xd8\xff\xe0\x80")
    with pytest.raises(InputError, match=r"photo\.ini: not a config file: it is not UTF-8 text"):
        load_config(tmp_path / "photo.ini")


def test_a_byte_order_mark_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "notepad.ini").write_bytes(b"\xef\xbb\xbf[optimizer]\r\nlr = 0.5\r\n")
    assert load_config(tmp_path / "notepad.ini").optimizer.lr == 0.5


def test_experiments_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config("vistas_r50") == load_config(find_experiment("vistas_r50.ini"))
    (tmp_path / "vistas_r50").write_text("[optimizer]\nlr = 7")
    assert load_config("vistas_r50").optimizer.lr == 7, "a file of this name comes first"
    with pytest.raises(InputError, match=r"vistas_50: no such config file; did you mean .*vistas_r50\?"):
        load_config("vistas_50")
    with pytest.raises(InputError, match="no packaged experiment 'vistas_50'; did you mean 'vistas_r50'"):
        find_experiment("vistas_50")
    with pytest.raises(InputError, match="no packaged experiment 'x'; there are cityscapes_r50, coco_r50"):
        find_experiment("x")


@pytest.mark.parametrize("name", experiments())
def test_every_packaged_experiment_is_whole(name: str) -> None:
    config = load_config(find_experiment(name))
    assert config.dataloader.train_set
    assert config.dataloader.val_set
    assert config.dataloader.train_batch_size is not None
