"""Packaged components: models and configurations name their modules, and the reference lists them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from seamseg.config import components, config_from_string, config_to_string, load_config
from seamseg.utils.errors import InputError


@pytest.fixture
def no_recipes(imported, monkeypatch):
    """As in a process that has not imported those of the package."""
    for name in [name for name in sys.modules if name.startswith("seamseg.contrib.recipes.")]:
        monkeypatch.delitem(sys.modules, name)
    for key in [
        key for key, found in components._REGISTERED.items() if found.module.startswith("seamseg.contrib.recipes.")
    ]:
        del components._REGISTERED[key]


def test_a_model_names_parts_of_the_package(no_recipes, tmp_path, monkeypatch):
    """They are imported, unlike files; one that does not name them ends in a line that says what to add."""
    monkeypatch.chdir(tmp_path)
    for name in ("evil.py", "seamseg.contrib.recipes.py"):
        (tmp_path / name).write_text("raise ValueError")
    chosen = "[body]\nbody = timm:resnet18\n[sem]\nloss = max_pooling\n[loss max_pooling]\npower = 2\n"
    message = re.escape(
        "no body 'timm:resnet18': it is part of this package, add `components=seamseg.contrib.recipes.timm`"
    )
    with pytest.raises(InputError, match=message):
        config_from_string(chosen)
    with pytest.raises(InputError, match=r"^m: \[body\] body = nosuch: no body"):
        config_from_string(
            "[general]\ncomponents = seamseg.contrib.recipes.nosuch\n[body]\nbody = nosuch\n", source="m"
        )
    assert config_from_string(chosen.replace("timm:", "")).not_loaded == ["loss max_pooling"]
    names = "seamseg.contrib.recipes.timm, evil.py, seamseg.contrib.recipes.max_pooling, seamseg.contrib.recipes.py"
    config = config_from_string(f"[general]\ncomponents = {names}\n{chosen}")
    assert config.general.components == names
    assert config.component("loss")[1].power == 2
    assert config.component("body")[0].module == "seamseg.contrib.recipes.timm"
    assert config.records() == ()


def test_the_page_of_components_is_up_to_date() -> None:
    """In a process of its own: other tests import components."""
    program = [sys.executable, "-m", "seamseg.cli.components"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    page = Path(__file__).parents[3] / "docs" / "reference" / "components.md"
    assert page.read_text(encoding="utf-8") == done.stdout, "run `make reference` and commit components.md"


@pytest.mark.parametrize("name", ["cityscapes_convnext_tiny", "vistas_convnext_base", "vistas_wrn38"])
def test_experiments_with_recipes_load_and_survive_their_text(name: str) -> None:
    config = load_config(name)
    assert config.general.components.startswith("seamseg.contrib.recipes.")
    assert config_from_string(config_to_string(config)) == config
