"""`csrc` compiles against the oldest torch that pyproject.toml allows; `make setup` compiles it against another."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OLDEST = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
VARIABLE = "SEAMSEG_OLDEST_TORCH"
LOADED = "from seamseg import ops; print(*ops.kernels().values(), sep='|')"


@pytest.mark.slow
def test_all_libraries_are_built_and_load(tmp_path):
    """The CUDA kernels too if there is an nvcc of that torch's CUDA version; they are not run."""
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"set {VARIABLE} to a Python with torch {OLDEST}, setuptools>=77 and numpy; .ci/minimum makes one")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    built = shutil.ignore_patterns("*.so", "kernels.json", "__pycache__")
    for name in ("csrc", "seamseg", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=built)
    variables = {"PYTHONPATH": str(tmp_path), "TORCH_CUDA_ARCH_LIST": "9.0", "SEAMSEG_KERNELS": "all"}

    def run(*words):
        command = [os.path.abspath(python), *words]
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    version, cuda = run("-c", "import torch; print(torch.__version__, torch.version.cuda)").split()
    assert version.startswith(f"{OLDEST}."), f"{VARIABLE} has torch {version}"
    run("setup.py", "--quiet", "build_ext", "--inplace")
    report = json.loads((tmp_path / "seamseg/kernels.json").read_text())
    assert (report["_maps"], report["_C"]) == ("built", "built")
    expected = "loaded|built; loaded with the first use of a GPU"
    if report["_C_cuda"] != "built":
        assert cuda == "None" or "nvcc" in report["_C_cuda"], report
        expected = f"loaded|{report['_C_cuda']}"
    assert run("-c", LOADED).strip() == expected
