"""With, without and with broken kernels: what serves the operators, and what is said about it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import seamseg
from seamseg.ops import implementations, kernels

PACKAGE = Path(seamseg.__file__).parent
# the clone may be installed as editable: its kernels are not those of the copy
REPORT = """
import json
from seamseg import ops
print(json.dumps([ops.kernels(), ops.implementations()]))
"""


def report(path=PACKAGE.parent, **variables):
    environment = {**os.environ, **variables, "PYTHONPATH": str(path)}
    command = [sys.executable, "-c", REPORT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=path)
    return (*json.loads(done.stdout), done.stderr)


def test_every_operator_has_a_kernel_here():
    assert kernels()["CPU"] == "loaded"
    assert {name for name, served in implementations().items() if "C++" not in served} == set()
    assert len(implementations()) > 20


def test_switched_off():
    state, served, said = report(SEAMSEG_PLAIN_OPS="1")
    assert set(served.values()) == {"plain torch"}
    assert state["CPU"] == "switched off by SEAMSEG_PLAIN_OPS"
    assert said == ""


@pytest.fixture
def copy(tmp_path):
    """The package without its kernels."""
    built = shutil.ignore_patterns("*.so", "kernels.json", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "seamseg", ignore=built)
    return tmp_path


def test_never_built(copy):
    _, served, said = report(path=copy)
    assert set(served.values()) == {"plain torch"}
    assert said.count("no compiled operators for the CPU: they were never built. Everything works, slower.") == 1
    assert "pip install --no-build-isolation" in said


def test_says_why_the_build_left_them_out(copy):
    (copy / "seamseg/kernels.json").write_text('{"_C": "no C++ compiler was found", "_C_cuda": "no nvcc was found"}')
    state, _, said = report(path=copy)
    assert state["CPU"] == "no C++ compiler was found"
    assert said.count("UserWarning") == 1
    assert "no compiled operators for the CPU: no C++ compiler was found." in said


def test_a_kernel_that_does_not_load(copy):
    (copy / "seamseg/kernels.json").write_text('{"_C": "built", "_C_cuda": "no nvcc was found"}')
    (copy / "seamseg/_C.abi3.so").write_bytes(b"not a library")
    state, _, said = report(path=copy)
    assert state["CPU"].startswith("they do not load here (")
    assert "no compiled operators for the CPU: they do not load here" in said
