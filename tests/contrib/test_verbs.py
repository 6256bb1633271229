"""`seamseg.export` and `seamseg.serve`: the options of the commands as keywords; entry points of torch.hub."""

import inspect
import re
import runpy
from dataclasses import fields
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import torch
from support.classes import write_classifier
from support.micro import narrow_body
from support.small_models import CLASSES, write_run

import seamseg
from seamseg.contrib.deploy.options import ExportOptions
from seamseg.inference.options import InferenceOptions
from seamseg.utils.errors import InputError


def test_keywords_are_those_of_the_options():
    assert {field.name for field in fields(ExportOptions)} <= set(inspect.signature(seamseg.export).parameters)
    parameters = inspect.signature(seamseg.serve).parameters
    assert {field.name for field in fields(InferenceOptions)} < set(parameters)
    for field in fields(InferenceOptions):
        assert f"\n{field.name} : {field.metadata['text']}" in seamseg.serve.__doc__
    with pytest.raises(TypeError, match=r"^serve\(\) got an unexpected keyword argument 'tiels'"):
        seamseg.serve("none.zip", tiels="off")
    with pytest.raises(InputError, match=r"^`probabilities` has no effect: no response contains them$"):
        seamseg.serve("none.zip", probabilities=True)


ROOT = Path(__file__).parents[2]


def load(entry: str, *arguments: object) -> object:
    with narrow_body():
        return torch.hub.load(str(ROOT), entry, *arguments, source="local", device="cpu")


def test_entry_points() -> None:
    # as torch.hub.list, which takes no folder
    held = runpy.run_path(str(ROOT / "hubconf.py"))
    listed = sorted(name for name, value in held.items() if callable(value) and not name.startswith("_"))
    assert listed == ["classifier", "detection", "instance_seg", "panoptic", "semantic"]


def test_networks_by_kind(tmp_path: Path) -> None:
    model = write_run(tmp_path / "panoptic")
    assert [load(kind, model).kind for kind in ("panoptic", "detection")] == ["panoptic", "detection"]
    boxes = write_run(tmp_path / "detection", "detection")
    assert load("detection", boxes).metadata == CLASSES
    with pytest.raises(InputError, match="is a model for detection, not for panoptic"):
        load("panoptic", boxes)
    assert load("classifier", write_classifier(tmp_path / "run"))(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


def test_the_dependencies_are_those_of_the_package() -> None:
    needed = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert needed is not None
    wanted = {*re.findall(r'"([\w-]+)', needed[1]), "torch", "torchvision"}
    owners = packages_distributions()  # with Python 3.10 not of all packages
    stated = runpy.run_path(str(ROOT / "hubconf.py"))["dependencies"]
    assert {owner.lower().replace("_", "-") for name in stated for owner in owners.get(name, [name])} == wanted
