"""benchmarks/gpu.py on a CPU: what it writes, skips, repeats and keeps of failures."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu
import gpu_machine
import gpu_steps

ROOT = Path(__file__).parents[2]


class Bench:
    """A session without a GPU, and steps in it."""

    def __init__(self, folder, machine):
        self.out, self.machine = folder / "out", machine
        self.session = gpu.Session(machine, self.out)

    def run(self, function):
        """Return the record of a step of this function, its name in the results, and whether it is done."""
        step = gpu_steps.Step("ops", "a step", 1, (), function)
        self.session.run(step, 60)
        records = json.loads((self.out / "cpu_small.json").read_text())
        assert records == json.loads((gpu.STATE / "cpu_small.json").read_text())
        (key,) = records
        return records[key], key, gpu.Session(self.machine, self.out).is_done(step)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Made once: its facts come from processes that load torch."""
    return gpu_machine.Machine("cpu", True, tmp_path_factory.mktemp("machine"))


@pytest.fixture
def bench(tmp_path, machine, monkeypatch):
    monkeypatch.setattr(gpu, "STATE", tmp_path / "state")
    return Bench(tmp_path, machine)


@pytest.mark.slow
def test_a_step_leaves_its_results_and_where_they_are_from(bench, monkeypatch):
    def answer(machine, seconds):
        return {"answer": seconds}

    found, name, done = bench.run(answer)
    assert (name, done, found["results"]) == ("ops", True, {"answer": 60})
    assert (found["status"], found["device"], found["small"]) == ("done", "cpu", True)
    assert {"torch", "cuda", "commit", "kernels", "digest", "date", "seconds"} <= found.keys()
    step = gpu_steps.Step("ops", "a step", 1, (), answer)
    for key, other in (("device", "NVIDIA H100"), ("small", False), ("kernels", {"GPU": "missing"}), ("torch", "2.9")):
        with monkeypatch.context() as change:
            change.setitem(bench.machine.facts, key, other)
            assert not bench.session.is_done(step)
    assert bench.session.is_done(step)
    assert not bench.session.is_done(gpu_steps.Step("ops", "another", 1, (), lambda machine, seconds: {}))


@pytest.mark.slow
def test_a_step_that_times_out_leaves_its_output(bench):
    """`test_gpu_rehearsal.py` has steps that fail or are killed."""
    code = "print('some words', flush=True); import time; time.sleep(60)"
    found, name, done = bench.run(lambda m, seconds: m.call([sys.executable, "-c", code], 5) and {})
    assert (name, done, found["status"]) == ("ops.failed", False, "timed out")
    assert (found["results"], found["output"]) == ({"reason": "no end after 5 s"}, ["some words"])
    assert bench.session.timed_out(gpu_steps.STEPS["ops"])
    # and once it works, the failure is gone, but not its log
    assert bench.run(lambda m, seconds: {"lines": m.call(["echo", "well"], 9)})[1] == "ops"
    with zipfile.ZipFile(bench.out / "cpu_small_logs.zip") as file:
        first, second = (file.read(name) for name in file.namelist())
    assert first.endswith(b"some words\n")
    assert second == b"$ echo well\nwell\n"


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


def test_the_first_steps_fit_into_six_and_a_half_minutes():
    """With prebuilt kernels, even if each uses its limit up; the rest is for what comes between them."""
    first = list(gpu_steps.STEPS.values())[1:8]
    assert [step.name for step in first] == [
        *("throughput", "train_step", "profile", "fusion", "ops", "parity", "tests"),
    ]
    assert sum(step.minutes for step in first) <= 6.2
