"""benchmarks/gpu.py in its smallest form on a CPU, in a copy of the clone: its steps, and the evidence of failures."""

from __future__ import annotations

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


@pytest.fixture
def clone(tmp_path):
    """A copy, with the compiled kernels: its state and documents are its own, and errors can be put into it."""
    ignored = shutil.ignore_patterns("__pycache__", "_generated")
    for name in ("benchmarks", "configs", "csrc", "docs", "examples", "seamseg", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in ("README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def rehearse(clone, *words, python=sys.executable):
    """Run it; return the finished process, the records and the logs."""
    command = [python, "benchmarks/gpu.py", "--device", "cpu", "--small", "--out", "results", *words]
    environment = {**os.environ, "PYTHONPATH": str(clone)}
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=3000)
    with zipfile.ZipFile(clone / "results/cpu_small_logs.zip") as file:
        logs = {name: file.read(name).decode() for name in file.namelist()}
    return done, json.loads((clone / "results/cpu_small.json").read_text()), logs


def put_in(path, place, code):
    """Put code in front of a line of a file."""
    text = path.read_text()
    assert text.count(place) == 1, place
    path.write_text(text.replace(place, code + place))


@pytest.mark.slow
def test_all_steps(clone):
    done, records, logs = rehearse(clone, python=PYTHON)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    wanted = {name: "needs a GPU" if name in ON_A_GPU else "done" for name in STEPS}
    assert {name: record["status"] for name, record in records.items()} == wanted
    assert {record["kernels"]["CPU"] for record in records.values()} == {"loaded"}
    assert json.loads((clone / "build/gpu/cpu_small.json").read_text()) == records
    assert sorted(name[4:-4] for name in logs) == sorted(set(STEPS) - {"build", "sanitizer"})
    assert "nothing remains\ntables: no table changes\n" in done.stdout
    again, after, _ = rehearse(clone, python=PYTHON)
    assert again.stdout.count("done before") == len(STEPS)
    assert after == records


@pytest.mark.slow
def test_failures_leave_their_evidence(clone):
    """A launch error of one operator, a compiler error of one variant, a step that is killed."""
    with (clone / "seamseg/ops/__init__.py").open("a") as file:
        file.write(
            "import sys, torch\n"
            "def _refused(*arguments):\n"
            "    raise RuntimeError('CUDA error: match_kernel: invalid configuration argument')\n"
            "if sys.argv[0].endswith('operators.py'):\n"
            "    _injected = torch.library.Library('seamseg', 'IMPL')\n"
            "    _injected.impl('nms_fixed', _refused, 'CPU', allow_override=True)\n"
        )
    error = "    if net.body.checkpoint:\n        raise RuntimeError('inductor: CppCompileError')\n"
    put_in(clone / "seamseg/training/run.py", "    net.compile_parts(backend)\n", error)
    killed = "    import os\n    print('half of it', flush=True)\n    os.kill(os.getpid(), 9)\n"
    put_in(clone / "benchmarks/fusion.py", "    report(cases(", killed)
    done, records, logs = rehearse(clone, "--steps", "ops,train_step_compiled,fusion")
    assert done.returncode == 1
    assert "remain: build, throughput, train_step" in done.stdout
    assert {name: record["status"] for name, record in records.items()} == {
        f"{name}.failed": "failed" for name in ("ops", "train_step_compiled", "fusion")
    }
    found = records["ops.failed"]["results"]["kernels"]
    assert found["operators"]["nms"]["compared"] > 0
    assert "match_kernel: invalid configuration argument" in found["operators"]["nms_fixed"]["failures"][0]
    found = records["train_step_compiled.failed"]["results"]
    assert [row["side"] for row in found["rows"]] == ["plain", "fast, not compiled"]
    assert "RuntimeError: inductor: CppCompileError" in found["failed"]["checkpointed"]
    assert "CppCompileError" in logs["002_train_step_compiled.log"]
    assert records["fusion.failed"]["results"]["reason"] == "exit code -9"
    assert "half of it" in records["fusion.failed"]["output"]


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
