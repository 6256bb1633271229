"""Components of a user: imported because the user names them, their keys in sections of their own."""

import hashlib
import re
import subprocess
import sys
from dataclasses import asdict, fields

import pytest
from support.components import LION

from seamseg.checkpoints.snapshot import parse_records
from seamseg.cli.components import import_all
from seamseg.config import components, config_from_string, config_to_string, load_config
from seamseg.config.components import Record
from seamseg.config.loader import differences
from seamseg.config.sections import NotLoaded
from seamseg.config.values import declaration_problem
from seamseg.training.options import TrainingOptions
from seamseg.training.run import run_training
from seamseg.utils.errors import InputError


@pytest.fixture
def lion(tmp_path, imported):
    file = tmp_path / "my_lion.py"
    file.write_text(LION)
    return file


def load(folder, text, *files, changed=()):
    (folder / "my.ini").write_text(text)
    return load_config(folder / "my.ini", None, [*(f"general.components={file}" for file in files), *changed])


def refusal(*arguments):
    with pytest.raises(InputError) as error:
        load(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_configuration_chooses_a_component_with_keys(lion, tmp_path):
    naming = "[general]\ncomponents = my_lion.py\n"
    text = "[optimizer]\ntype = lion\n[optimizer lion]\nbeta1 = .8\n"
    changed = ["optimizer lion.beta2=.9"]
    for config in (
        load(tmp_path, naming + text, changed=changed),
        load(tmp_path, text, lion, changed=changed),
    ):
        component, keys = config.component("optimizer")
        assert (component.name, component.file, component.built_in) == ("lion", lion, False)
        assert (keys.beta1, keys.beta2) == (0.8, 0.9)
        assert config.general.components == str(lion)


def test_the_text_of_a_configuration_holds_all_keys(lion, tmp_path):
    config = load(tmp_path, "[optimizer]\ntype = lion\n", lion)
    text = config_to_string(config)
    assert "[optimizer lion]\nbeta1 = 0.9\nbeta2 = 0.99\n" in text
    again = config_from_string(text)
    assert again == config
    other = load(tmp_path, "[optimizer]\ntype = lion\n[optimizer lion]\nbeta1 = 0\n", lion)
    assert differences(config, other) == ["optimizer lion.beta1: 0.9 -> 0.0"]
    assert differences(load(tmp_path, ""), config)[-1] == "[optimizer lion] added"


def test_components_without_keys_get_the_section_that_chooses_them(lion, tmp_path):
    config = load(tmp_path, "[scheduler]\ntype = halving\nepochs = 7", lion)
    component, keys = config.component("scheduler")
    assert keys is config.scheduler
    assert component.make(5, 10, keys) == 0.5**5
    sgd, keys = config.component("optimizer")
    assert (sgd.built_in, keys) == (True, config.optimizer)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[optimizer]\ntype = lino", "[optimizer] type = lino: no optimizer 'lino'; did you mean 'lion'?"),
        ("[scheduler]\ntype = cosine", "no scheduler 'cosine'; known are halving, linear, multistep, poly, step; name"),
        ("[optimizer lion]\nbeta = 1", "unknown key 'beta' in [optimizer lion]; did you mean 'beta2'?"),
        ("[optimizer lion]\nbeta1 = 2", "[optimizer lion] beta1 = 2: expected a value from 0 to 1"),
        ("[optimizer lion]\nbeta1 = .5", "[optimizer lion] has no effect: [optimizer] type is sgd"),
        ("[optimizer tiger]\nbeta1 = .5", "[optimizer tiger]: no optimizer 'tiger'"),
    ],
)
def test_mistakes(lion, tmp_path, text, message):
    assert message in refusal(tmp_path, text, lion)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "my_part.py line 1: ZeroDivisionError: division by zero"),
        ("x = 1\nimport no_such_module", "my_part.py line 2: ModuleNotFoundError: No module named 'no_such_module'"),
        ("@scheduler('Mine')\ndef f(): ...", "scheduler 'Mine': a name has lower-case letters, digits and underscores"),
        ("@scheduler('poly')\ndef f(): ...", "rename one"),
        ("class K: ...\n@scheduler('k', keys=K)\ndef f(): ...", "scheduler k: its keys K must be a dataclass"),
        ("x: int = 1", "scheduler k: x of K: declare it as key(DOC, DEFAULT), in lower case"),
        ("x: int = key('', 0, minimum=1)", "my_part.py: scheduler k: x of K: its default 0: expected at least 1"),
        ("x: object = key('', 1)", "a key is bool, int, float, str, or a tuple, list or dict of numbers or texts, not"),
        ("x: 'Missing' = key('', 1)", "NameError: name 'Missing' is not defined"),
    ],
)
def test_files_that_fail(tmp_path, imported, text, message):
    """The error has file and line; nothing remains registered, so that the corrected file can be imported."""
    file = tmp_path / "my_part.py"
    if text.startswith("x:"):
        text = f"@dataclass(frozen=True)\nclass K:\n  {text}\n@scheduler('k', keys=K)\ndef f(): ..."
    if "@" in text:
        text = f"from dataclasses import dataclass\nfrom seamseg.components import key, scheduler\n{text}"
    file.write_text(text)
    before = dict(components._REGISTERED)
    assert message in refusal(tmp_path, "", file)
    file.write_text("")
    load(tmp_path, "", file)
    assert before.items() <= components._REGISTERED.items()


def test_missing_files_and_names_of_other_modules(lion, tmp_path):
    assert refusal(tmp_path, "", "none.py") == "components: none.py: no such file"
    assert "no_such_package" in refusal(tmp_path, "", "no_such_package")
    (tmp_path / "random.py").write_text("")
    assert "another module is named random: rename the file" in refusal(tmp_path, "", tmp_path / "random.py")
    load(tmp_path, "", lion)
    (tmp_path / "other").mkdir()
    other = lion.rename(tmp_path / "other" / lion.name)
    assert f"another module is named my_lion: rename the file ({lion})" in refusal(tmp_path, "", other)


def test_a_text_that_is_not_the_users_imports_nothing(tmp_path, imported, monkeypatch):
    monkeypatch.chdir(tmp_path)
    marker = tmp_path / "imported"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')")
    text = "[general]\ncomponents = evil.py\n[optimizer]\ntype = evil\n[optimizer evil]\nx = 1\n"
    config = config_from_string(text)
    assert not marker.exists()
    assert config.parts["optimizer evil"] == NotLoaded({"x": "1"})
    assert "[optimizer evil]\nx = 1\n" in config_to_string(config)
    with pytest.raises(InputError, match=r"no optimizer 'evil'.*name the file"):
        config.component("optimizer")


def test_sections_without_use_in_a_process_stay_text(tmp_path):
    """Those of formats and callbacks of the package, for which nothing is imported; a training checks both."""
    text = "[format overlay]\nopacity = .3\n[callback tensorboard]\nenabled = no\n"
    (tmp_path / "my.ini").write_text(text)
    (tmp_path / "wrong.ini").write_text("[format overlay]\nopacitiy = .3\n")
    program = "import sys; from seamseg.config import load_config; "
    program += f"print(load_config({str(tmp_path / 'my.ini')!r}).parts, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.findall(r"'(\w+ \w+)': NotLoaded\(", done.stdout) == ["format overlay", "callback tensorboard"]
    assert done.stdout.endswith(" False\n")
    with pytest.raises(InputError, match=r"wrong\.ini: unknown key 'opacitiy' in \[format overlay\]; did you mean"):
        run_training(TrainingOptions(tmp_path / "wrong.ini", "no data", tmp_path / "run", device="cpu"))
    assert not (tmp_path / "run").exists()
    config = load_config(tmp_path / "my.ini")
    assert (config.parts["format overlay"].opacity, config.parts["callback tensorboard"].enabled) == (0.3, False)


def test_records_tell_changed_files(lion, tmp_path):
    config = load(tmp_path, "[optimizer]\ntype = lion\n", lion)
    for damaged in ([{"kind": "head"}], 3):
        with pytest.raises(InputError, match=r"x.tar: its list of components is damaged"):
            parse_records(damaged, "x.tar")
    record = Record.of(config.component("optimizer")[0])
    assert record.change is None
    assert re.fullmatch("[0-9a-f]{64}", record.sha256)
    assert Record(**asdict(record)) == record
    lion.write_text(LION + "\n")
    assert record.change == f"optimizer lion: {lion} has changed since the training"
    assert Record("optimizer", "unknown", "", "", "").change is None


def test_changed_files_are_read_again(lion, tmp_path):
    """The checksum of a record is that of the code that ran."""
    lion.write_text(LION.replace("0.9,", "0.5,"))
    chosen = "[optimizer]\ntype = lion\n"

    def beta():
        component, keys = load(tmp_path, chosen, lion).component("optimizer")
        return component, keys.beta1

    first, value = beta()
    assert value == 0.5
    assert beta()[0] is first
    # of the same length, within a second
    old = lion.read_text()
    lion.write_text(old.replace("0.5,", "0.2,"))
    assert Record.of(first).sha256 == hashlib.sha256(old.encode()).hexdigest()
    component, value = beta()
    assert (value, Record.of(component).sha256) == (0.2, hashlib.sha256(lion.read_bytes()).hexdigest())
    assert components.custom_of(first.make([{"params": [], "lr": 1}], first.keys())) is component
    lion.write_text("def f(:")
    assert "SyntaxError" in refusal(tmp_path, chosen, lion)
    lion.write_text(LION.replace('"lion"', '"panther"'))
    assert "no optimizer 'lion'" in refusal(tmp_path, chosen, lion)


def test_keys_of_components_of_the_package_are_declared():
    import_all()
    for component in components.registered():
        if component.built_in:
            problems = [declaration_problem(spec, component.keys) for spec in fields(component.keys)]
            assert problems == [None] * len(problems), component.section
