"""`csrc` compiles against the oldest torch that pyproject.toml allows, and against the installed one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
OLDEST = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
VARIABLE = "SEAMSEG_OLDEST_TORCH"

# of 2.11's torch/csrc/stable/ops.h; TORCH_TARGET_VERSION hides no younger function of that file
FUNCTIONS = {
    "amax",
    "clone",
    "contiguous",
    "copy_",
    "empty",
    "empty_like",
    "fill_",
    "flatten",
    "from_blob",
    "full",
    "get_num_threads",
    "matmul",
    "narrow",
    "new_empty",
    "new_zeros",
    "pad",
    "parallel_for",
    "reshape",
    "select",
    "squeeze",
    "subtract",
    "sum",
    "sum_out",
    "to",
    "transpose",
    "unsqueeze",
    "view",
    "zero_",
}


def test_only_functions_of_the_oldest_torch_are_called():
    called = set()
    for path in CSRC.rglob("*"):
        if path.suffix in (".h", ".cuh", ".cpp", ".cu"):
            called |= set(re.findall(r"torch::stable::([a-z]\w*)\(", re.sub(r"//.*", "", path.read_text())))
    assert len(called) > 8
    assert called <= FUNCTIONS


def test_a_source_compiles_against_the_installed_torch(tmp_path):
    """All of them are compiled by `make setup`, and by the slow test below."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler was found: install g++ or clang++")
    target = re.search(r'TORCH_TARGET = "(\w+)"', (ROOT / "setup.py").read_text())[1]
    includes = [f"-I{path}" for path in (*include_paths(), sysconfig.get_path("include"))]
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-DTORCH_TARGET_VERSION={target}", *includes]
    done = subprocess.run([*command, CSRC / "cpu/pooling.cpp"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


LOADED = "from seamseg import ops; print(*ops.kernels().values(), sep='|')"


@pytest.mark.slow
@pytest.mark.parametrize("which", ["installed", "oldest"])
def test_all_libraries_are_built_and_load(which, tmp_path):
    """The CUDA kernels too if there is an nvcc of that torch's CUDA version; they are not run."""
    python = sys.executable if which == "installed" else os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"set {VARIABLE} to a Python with torch {OLDEST}, setuptools>=77 and numpy; .ci/minimum makes one")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("csrc", "seamseg", "configs"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "kernels.json", "__pycache__")
        )

    def run(*words):
        environment = {
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "TORCH_CUDA_ARCH_LIST": "9.0",
            "SEAMSEG_KERNELS": "all",
        }
        done = subprocess.run(
            [os.path.abspath(python), *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    version, cuda, folder = run(
        "-c", "import torch; print(torch.__version__, torch.version.cuda, torch.__path__[0])"
    ).split()
    if which == "oldest":
        assert re.match(rf"{re.escape(OLDEST)}\.", version), f"{VARIABLE} has torch {version}"
        header = (Path(folder) / "include/torch/csrc/stable/ops.h").read_text()
        assert [name for name in FUNCTIONS if not re.search(rf"\b{name}\(", header)] == []
    else:
        assert version == torch.__version__
    run("setup.py", "--quiet", "build_ext", "--inplace")
    report = json.loads((tmp_path / "seamseg/kernels.json").read_text())
    assert (report["_maps"], report["_C"]) == ("built", "built")
    expected = "loaded|built; loaded with the first use of a GPU"
    if report["_C_cuda"] != "built":
        assert cuda == "None" or "nvcc" in report["_C_cuda"], report
        expected = f"loaded|{report['_C_cuda']}"
    assert run("-c", LOADED).strip() == expected
