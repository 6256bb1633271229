"""benchmarks/gpu.py in its smallest form on a CPU, in a copy of the clone."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu_machine
import gpu_steps
from gpu_steps import STEPS

ROOT = Path(__file__).parents[2]
ON_A_GPU = {"build", "sanitizer", "tests"}
PYTHON = os.environ.get("SEAMSEG_OLDEST_PYTHON", sys.executable)
"""May be one with the oldest supported torch and torchvision, and with what the tests need."""


@pytest.mark.slow
def test_all_steps(tmp_path):
    """In a copy with the compiled kernels, whose state and documents are its own."""
    ignored = shutil.ignore_patterns("__pycache__", "_generated")
    for name in ("benchmarks", "configs", "csrc", "docs", "examples", "seamseg", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    command = [PYTHON, "benchmarks/gpu.py", "--device", "cpu", "--small", "--out", "results"]
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(tmp_path)}, "timeout": 3000}
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    records = json.loads((tmp_path / "results/cpu_small.json").read_text())
    wanted = {name: "needs a GPU" if name in ON_A_GPU else "done" for name in STEPS}
    assert {name: record["status"] for name, record in records.items()} == wanted
    assert {record["kernels"]["CPU"] for record in records.values()} == {"loaded"}
    assert json.loads((tmp_path / "build/gpu/cpu_small.json").read_text()) == records
    with zipfile.ZipFile(tmp_path / "results/cpu_small_logs.zip") as file:
        assert sorted(name[4:-4] for name in file.namelist()) == sorted(set(STEPS) - {"build", "sanitizer"})
    assert "nothing remains\ntables: no table changes\n" in done.stdout
    again = subprocess.run(command, capture_output=True, text=True, **options)
    assert again.stdout.count("done before") == len(STEPS)
    assert json.loads((tmp_path / "results/cpu_small.json").read_text()) == records


def test_an_edit_repeats_only_the_steps_it_concerns(tmp_path, monkeypatch):
    ignored = shutil.ignore_patterns("golden", "*.so", "__pycache__")
    for folder in ("benchmarks", "csrc", "seamseg", "configs", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for module in (gpu_machine, gpu_steps):
        monkeypatch.setattr(module, "ROOT", tmp_path)

    kernels, everything = {"build", "ops", "sanitizer"}, set(gpu_steps.STEPS)
    before = {name: step.digest() for name, step in gpu_steps.STEPS.items()}
    for path, concerned in {
        "benchmarks/fusion.py": {"fusion"},
        "tests/gpu_checks/operator_cases.py": {"ops", "sanitizer", "tests"},  # imported by operators.py
        # and by what is imported
        "benchmarks/timing.py": everything - {"build", "parity", "tests", "memory", "distributed"},
        "benchmarks/gpu_machine.py": set(),
        "csrc/cuda/abn.cu": everything,
        "seamseg/ops/schemas.inc": everything,
        "seamseg/training/step.py": everything - kernels,
        "tests/support/micro.py": {"tests", "parity", "distributed"},
    }.items():
        with (tmp_path / path).open("a") as file:
            file.write("\n")
        after = {name: step.digest() for name, step in gpu_steps.STEPS.items()}
        assert {name for name in after if after[name] != before[name]} == concerned, path
        before = after
