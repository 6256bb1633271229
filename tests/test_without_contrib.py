"""The core works without the wing above it: its tests pass where `seamseg/contrib` and its commands are deleted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seamseg
from seamseg.extensions import COMMANDS

ROOT = Path(__file__).parents[1]
TESTS = (
    *("config", "data", "predicting", "validation", "checkpoints", "inference", "inplace_abn", "components", "utils"),
    *("test_fusion.py", "test_structures.py", "test_python.py"),
)
"""Tests of the core; those of `models`, `ops` and `training`, which import nothing else, take too long here."""

# an editable installation would find the deleted modules in this repository
SITE = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if not getattr(finder, "__name__", "").startswith("_Editable")]
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """A copy of the package as it is installed, and of its tests, without contrib."""
    root = tmp_path_factory.mktemp("core")
    package = root / "seamseg"
    ignored = shutil.ignore_patterns("__pycache__", "contrib")
    shutil.copytree(Path(seamseg.__file__).parent, package, ignore=ignored)
    shutil.copytree(ROOT / "configs", package / "configs", dirs_exist_ok=True)
    shutil.copytree(ROOT / "examples" / "components", package / "examples", dirs_exist_ok=True)
    for name in ("tests", "configs", "examples", "docs", "scripts"):
        shutil.copytree(ROOT / name, root / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", root)
    for name in COMMANDS:
        (package / "cli" / f"{name.replace('-', '_')}.py").unlink()
    (root / "sitecustomize.py").write_text(SITE)
    return root


def run(core, *words):
    environment = {**os.environ, "PYTHONPATH": str(core)}
    done = subprocess.run([sys.executable, *words], cwd=core, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr


@pytest.mark.slow
def test_every_module_is_imported(core):
    modules = sorted(path.relative_to(core).with_suffix("") for path in (core / "seamseg").rglob("*.py"))
    names = [".".join(path.parts) for path in modules if path.name not in ("__main__", "__init__")]
    names = [name for name in names if not name.startswith(("seamseg.configs", "seamseg.examples"))]
    program = f"import importlib\nfor name in {names}: importlib.import_module(name)\nimport seamseg\n"
    program += "assert not {'classifier', 'export', 'serve'} & set(seamseg.__all__)\nfrom seamseg import *\n"
    program += f"assert not {set(COMMANDS)} & set(seamseg.cli.main.COMMANDS)\n"
    run(core, "-c", program)


@pytest.mark.slow
@pytest.mark.parametrize("folder", TESTS)
def test_the_tests_of_the_core_pass(core, folder):
    run(core, "-m", "pytest", "-q", "-x", "-p", "no:xdist", "-p", "no:cacheprovider", f"tests/{folder}")
