"""benchmarks/gpu.py on a CPU: what it writes, skips, repeats and keeps of failures."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
import zipfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu
import gpu_machine
import gpu_steps

ROOT = Path(__file__).parents[2]
FIRST_RUN = ("build", "ops", "fusion", "parity", "tests")


class Bench:
    """A session without a GPU, and steps in it."""

    def __init__(self, folder, machine):
        self.out, self.machine = folder / "out", machine
        self.session = gpu.Session(machine, self.out)

    def run(self, function, *, name="ops"):
        """Return the record of a step of this function, its name in the results, and whether it is done."""
        step = gpu_steps.Step(name, "a step", 1, (), function)
        self.session.run(step, 60)
        records = json.loads((self.out / "cpu_small.json").read_text())
        assert records == json.loads((gpu.STATE / "cpu_small.json").read_text())
        (key,) = records
        return records[key], key, gpu.Session(self.machine, self.out).is_done(step)

    def logs(self):
        """Return the logs in the archive."""
        with zipfile.ZipFile(self.out / "cpu_small_logs.zip") as file:
            return [file.read(name).decode() for name in file.namelist()]


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Made once: its facts come from processes that load torch."""
    return gpu_machine.Machine("cpu", True, tmp_path_factory.mktemp("machine"))


@pytest.fixture
def bench(tmp_path, machine, monkeypatch):
    monkeypatch.setattr(gpu, "STATE", tmp_path / "state")
    return Bench(tmp_path, machine)


@pytest.fixture
def card(machine, monkeypatch):
    """The machine as if it had a GPU; its kernels are missing."""
    monkeypatch.setattr(machine, "device", "cuda")
    monkeypatch.setattr(machine, "capability", "9.0", raising=False)
    monkeypatch.setitem(machine.facts, "kernels", {"CPU": "loaded", "GPU": "they were never built"})
    return machine


@pytest.mark.slow
def test_a_step_leaves_its_results_and_where_they_are_from(bench, monkeypatch):
    def answer(machine, seconds):
        return {"answer": seconds}

    found, name, done = bench.run(answer)
    assert name == "ops"
    assert done
    assert found["results"] == {"answer": 60}
    assert found["status"] == "done"
    assert found["device"] == "cpu"
    assert found["small"] is True
    assert {"torch", "cuda", "commit", "kernels", "digest", "date", "seconds"} <= found.keys()
    step = gpu_steps.Step("ops", "a step", 1, (), answer)
    for key, other in (("device", "NVIDIA H100"), ("small", False), ("kernels", {"GPU": "missing"}), ("torch", "2.9")):
        with monkeypatch.context() as change:
            change.setitem(bench.machine.facts, key, other)
            assert not bench.session.is_done(step)
    assert bench.session.is_done(step)
    assert not bench.session.is_done(gpu_steps.Step("ops", "another", 1, (), lambda machine, seconds: {}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "limit", "status", "reason"),
    [
        ("print('some words'); raise SystemExit(3)", 60, "failed", "exit code 3"),
        ("print('some words', flush=True); import time; time.sleep(60)", 5, "timed out", "no end after 5 s"),
        ("import os; print('some words', flush=True); os.kill(os.getpid(), 9)", 60, "failed", "exit code -9"),
    ],
)
def test_a_step_that_fails_leaves_its_output(bench, code, limit, status, reason):
    found, name, done = bench.run(lambda m, seconds: m.call([sys.executable, "-c", code], limit) and {})
    assert name == "ops.failed"
    assert not done
    assert found["status"] == status
    assert found["results"] == {"reason": reason}
    assert found["output"] == ["some words"]
    assert bench.session.timed_out(gpu_steps.STEPS["ops"]) == (status == "timed out")
    # and once it works, the failure is gone, but not its log
    assert bench.run(lambda m, seconds: {"lines": m.call(["echo", "well"], 9)})[1] == "ops"
    (first, second) = bench.logs()
    assert first.endswith("some words\n")
    assert second == "$ echo well\nwell\n"


def test_an_edit_repeats_only_the_steps_it_concerns(tmp_path, monkeypatch):
    ignored = shutil.ignore_patterns("golden", "*.so", "__pycache__")
    for folder in ("benchmarks", "csrc", "seamseg", "configs", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    monkeypatch.setattr(gpu_steps, "ROOT", tmp_path)

    def digests():
        return {name: step.digest() for name, step in gpu_steps.STEPS.items()}

    kernels, everything = {"build", "ops", "sanitizer"}, set(gpu_steps.STEPS)
    before = digests()
    for path, concerned in {
        "benchmarks/fusion.py": {"fusion"},
        "benchmarks/operator_cases.py": {"ops", "sanitizer"},  # imported by operators.py
        "benchmarks/abn.py": {"memory", "train_step"},  # and by what is imported
        "benchmarks/gpu_machine.py": set(),
        "csrc/cuda/abn.cu": everything,
        "seamseg/ops/schemas.inc": everything,
        "seamseg/training/step.py": everything - kernels,
        "tests/support/micro.py": {"tests", "parity", "distributed"},
    }.items():
        with (tmp_path / path).open("a") as file:
            file.write("\n")
        after = digests()
        assert {name for name in after if after[name] != before[name]} == concerned, path
        before = after


class Limits(gpu.Session):
    """Steps that take no time, or a given part of their limit, by a clock that stands still between them."""

    def __init__(self, machine, out, clock, parts):
        super().__init__(machine, out)
        self.clock, self.parts, self.given = clock, parts, {}

    def run(self, step, seconds):
        self.given[step.name] = round(seconds)
        self.clock[0] += seconds * self.parts.get(step.name, 0)
        if step.name == "build":
            self.machine.facts["kernels"] = {"GPU": "loaded"}
        return "done"


@pytest.fixture
def limits(card, tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(gpu.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(gpu, "STATE", tmp_path / "state")
    options = types.SimpleNamespace(allow_plain=False, again=False, time_limit=gpu.MINUTES)

    def run(parts):
        clock[0] = 0.0
        session = Limits(card, tmp_path, clock, parts)
        return session, gpu.run_all(list(gpu_steps.STEPS.values()), session, options, 0.0)

    return run


def test_the_first_steps_fit_into_nine_minutes(limits):
    """Each has its own limit even if all others use theirs up, and what was not used."""
    session, statuses = limits(dict.fromkeys(gpu_steps.STEPS, 1.0))
    assert tuple(session.given) == FIRST_RUN
    assert session.given == {name: gpu_steps.STEPS[name].minutes * 60 for name in FIRST_RUN}
    assert session.clock[0] <= 8.5 * 60, "the rest is for what comes between them"
    assert {statuses[name] for name in set(gpu_steps.STEPS) - set(FIRST_RUN)} == {"no time left"}
    session, _ = limits({"fusion": 1.0})
    assert session.given["fusion"] == sum(gpu_steps.STEPS[name].minutes * 60 for name in FIRST_RUN[:3])
    assert session.given["parity"] == gpu_steps.STEPS["parity"].minutes * 60


def program(path, text):
    """Write a script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_both_sanitizers_run_on_our_kernels(bench, card, tmp_path, monkeypatch):
    text = 'echo "$@" >> {0}\necho "a warning: not supported"\ncase "$2" in '
    text += 'memcheck) echo "= Invalid read"; echo "== ERROR SUMMARY: 3 errors"; exit 99;;'
    text += '\n*) echo "== RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)";; esac'
    program(tmp_path / "bin/compute-sanitizer", text.format(tmp_path / "calls"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    found, name, _ = bench.run(gpu_steps.sanitizer, name="sanitizer")
    assert name == "sanitizer.failed"
    assert found["results"]["memcheck"] == {"errors": 3, "summary": "ERROR SUMMARY: 3 errors"}
    assert found["results"]["racecheck"]["errors"] == 0
    assert "= Invalid read" in found["output"]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[1] for call in calls] == ["memcheck", "racecheck"]
    assert all("--kernel-name kns=seamseg --report-api-errors no" in call for call in calls)


def alive(number):
    """Return whether a process runs; one that has ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_step_started_ends_with_the_run(tmp_path):
    """Also processes that it has started in turn, and also if nothing can be cleaned up."""
    code = "from pathlib import Path; import gpu_machine as g; m = object.__new__(g.Machine); m.environment = {}; "
    code += (
        f"m.log = Path({str(tmp_path / 'log')!r}); m.call(['/bin/sh', '-c', '/bin/sleep 300 & echo $$ $!; wait'], 300)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
    children = [int(word) for word in process.stdout.readline().split()]
    assert len(children) == 2
    assert all(map(alive, children))
    process.send_signal(signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 60
    while any(map(alive, children)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(alive, children))
    process.stdout.close()
