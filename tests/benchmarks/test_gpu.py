"""benchmarks/gpu.py on a CPU: what it writes, leaves out, does again, and the tables that follow from its results."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from unittest import mock

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu
import gpu_machine
import gpu_steps
import gpu_tables

ROOT = Path(__file__).parents[2]
DOCUMENTS = {name for name, _, _ in gpu_tables.PLACES}


def record(step, results=None, status="done", **more):
    """As gpu.py writes it."""
    said = {"device": "NVIDIA H200", "date": "2026-11-22 10:00 UTC", "small": False, "results": results or {}}
    return {"step": step, "status": status, **said, **more}


def some_results():
    """One done, one failed, one of a CPU's form."""
    rows = [
        {"side": "plain", "seconds": 1.0, "speed_ratio": 1.0, "peak_mib": 9000.0, "peak_ratio": 1.0, "of_ceiling": 0.1},
        {"side": "fast", "seconds": 0.25, "speed_ratio": 4.0, "peak_mib": 4500.0, "peak_ratio": 0.5, "of_ceiling": 0.4},
    ]
    return {
        "train_step": record("train_step", {"rows": rows}),
        "ops.failed": record("ops", {"reason": "exit code 1"}, "failed"),
        "fusion": record(
            "fusion", {"rows": [{"case": "fuse + to_result", "ours_ms": 2.5, "peer": "p", "peer_ms": 9.0}]}
        ),
    }


@pytest.fixture
def documents(tmp_path):
    """Copies of the documents with tables."""
    for name in DOCUMENTS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_tables_are_those_of_the_results():
    for name, text in gpu_tables.rendered(gpu_tables.read(ROOT / "benchmarks/results"), ROOT).items():
        assert (ROOT / name).read_text() == text, f"{name}: python benchmarks/gpu.py --steps tables"


def test_tables_follow_the_results_and_go_back(documents):
    gpu_tables.write({}, documents)
    before = {name: (documents / name).read_text() for name in DOCUMENTS}
    assert all("not yet" in text for text in before.values())
    assert set(gpu_tables.write(some_results(), documents)) == DOCUMENTS
    readme, state = ((documents / name).read_text() for name in ("README.md", "benchmarks/results/README.md"))
    assert "| >= 3 times | 4.00 times, met (NVIDIA H200, 2026-11-22) |" in readme
    assert "| <= 0.5 times | 0.50 times, met (NVIDIA H200, 2026-11-22) |" in readme
    assert "| <= 2 ms | 2.50 ms, missed (NVIDIA H200, 2026-11-22) |" in readme
    assert "| >= 40 images/s | **not yet** |" in readme
    assert "**failed** (2026-11-22, NVIDIA H200): exit code 1" in state
    assert gpu_tables.write(some_results(), documents) == []
    gpu_tables.write({}, documents)
    assert {name: (documents / name).read_text() for name in DOCUMENTS} == before


def test_all_figures_have_rows(documents):
    """Of the scripts' JSON as they write it."""
    variant = {"wall": 0.02, "images/s": 45.0, "outside": 0.1}
    kept = {"in-place ABN": {"kept_mib": 1.0, "peak_mib": 2.0}}
    huge = [{"photo": "1x1", "tiles": "off", "seconds": 1.0, "gpu": 2.0, "peak": 3.0}]
    results = {
        **some_results(),
        "throughput": record("throughput", {"precision": "bf16", "variants": {"both": variant, "plain": variant}}),
        "memory": record("memory", {"training": {"rows": kept}, "huge_photo": {"rows": huge}}),
        "parity": record("parity", {"rows": [{"precision": "fp32", "pyramid": 1e-6, "semantic": 1.0, "PQ": 1.0}]}),
        "toy_city": record(
            "toy_city", {"epochs": 8, "runs": {"bf16": {"losses": {"1": 2.0}, "PQ": 0.5, "seconds": 9}}}
        ),
    }
    text = gpu_tables.rendered(results, documents)["docs/reference/performance.md"]
    for said in (
        "45.0 images/s, met",
        "10%, met",
        "network 50.0 images/s",
        "keeps 1 MiB",
        "2.0 GiB of the GPU",
        "PQ 50.0",
    ):
        assert said in text


def test_small_and_cpu_runs_are_ignored(tmp_path):
    for name, content in {
        "gpu_ops.json": record("ops", small=True),
        "cpu_tests.json": record("tests"),
        "gpu_parity.json": record("parity"),
        "gpu_fusion.failed.json": record("fusion", status="failed"),
    }.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert set(gpu_tables.read(tmp_path)) == {"parity", "fusion.failed"}


class Bench:
    """A machine without a GPU, and a step on it."""

    def __init__(self, folder, machine):
        self.out = folder
        self.machine = machine

    def run(self, function, *, needs=(), name="ops"):
        """The record of a step of this function, and whether its file is that of a failure."""
        step = gpu_steps.Step(name, "a step", 1, 1, needs, function)
        gpu.run(self.machine, step, 60, self.out)
        paths = sorted(self.out.glob("*.json"))
        assert len(paths) == 1
        done = gpu.is_done(self.machine, step, [self.out])
        return json.loads(paths[0].read_text()), paths[0].name, done


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Made once: its facts come from a process that loads torch."""
    return gpu_machine.Machine("cpu", True, tmp_path_factory.mktemp("machine"))


@pytest.fixture
def bench(tmp_path, machine):
    return Bench(tmp_path, machine)


def test_a_step_leaves_its_results_and_where_they_are_from(bench):
    found, name, done = bench.run(lambda machine, seconds: {"answer": seconds})
    assert name == "cpu_ops.json"
    assert done
    assert found["results"] == {"answer": 60}
    assert found["status"] == "done"
    assert found["device"] == "cpu"
    assert found["small"] is True
    assert {"torch", "cuda", "commit", "sources", "date", "seconds"} <= found.keys()
    for key, other in (("sources", "others"), ("device", "NVIDIA H100"), ("small", False)):
        with mock.patch.dict(bench.machine.facts, {key: other}):
            assert not gpu.is_done(bench.machine, gpu_steps.STEPS["ops"], [bench.out])


@pytest.mark.parametrize(
    ("code", "limit", "status", "reason"),
    [
        ("print('some words'); raise SystemExit(3)", 60, "failed", "exit code 3"),
        ("print('some words', flush=True); import time; time.sleep(60)", 5, "timed out", "no end after 5 s"),
    ],
)
def test_a_step_that_fails_leaves_the_end_of_its_output(bench, code, limit, status, reason):
    found, name, done = bench.run(lambda m, seconds: m.call([sys.executable, "-c", code], limit) and {})
    assert name == "cpu_ops.failed.json"
    assert not done
    assert found["status"] == status
    assert found["results"] == {"reason": reason}
    assert found["output"] == ["some words"]
    # and once it works, the failure is gone
    assert bench.run(lambda machine, seconds: {})[1] == "cpu_ops.json"


def test_an_error_in_a_step_is_recorded(bench):
    found, _, _ = bench.run(lambda machine, seconds: {}["nothing"])
    assert found["status"] == "failed"
    assert "KeyError" in found["results"]["reason"]


def test_missing_requirements_are_recorded(bench):
    found, name, done = bench.run(lambda machine, seconds: {}, needs=("no_such_module",))
    assert name == "cpu_ops.failed.json"
    assert found["status"] == "left out"
    assert found["results"]["reason"] == "cannot be imported here: no_such_module"
    assert not done, "it is repeated, for example with wheels"
    with mock.patch.object(bench.machine, "kernels", return_value={"CPU": "loaded"}):
        found, name, done = bench.run(gpu_steps.build)
    assert name == "cpu_ops.json"
    assert done
    assert found["status"] == "needs a GPU"
    assert "CPU" in found["results"]["kernels"]
    assert bench.run(gpu_steps.sanitizer)[0]["status"] == "needs a GPU"


def command(*words, **options):
    """Run benchmarks/gpu.py."""
    words = [sys.executable, str(ROOT / "benchmarks/gpu.py"), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, env=environment, capture_output=True, text=True, **options)


def test_errors_are_one_line(tmp_path):
    for words, said in (
        (("--steps", "opps"), "gpu.py: --steps opps: choose among build,ops,"),
        (("--wheels", tmp_path, "--steps", "build"), f"gpu.py: --wheels {tmp_path}: there is no .whl file"),
    ):
        done = command(*words)
        assert done.returncode == 1
        assert done.stderr.startswith(said)
        assert done.stderr.count("\n") == 1


def test_the_tables_need_no_gpu():
    done = command("--steps", "tables")
    assert done.returncode == 0
    assert "no table changes" in done.stdout


@pytest.mark.slow
def test_all_steps_in_their_smallest_form(tmp_path):
    texts = {name: (ROOT / name).read_text() for name in DOCUMENTS}
    done = command("--device", "cpu", "--small", "--out", tmp_path, timeout=3000)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    found = {path.name: json.loads(path.read_text())["status"] for path in tmp_path.glob("*.json")}
    elsewhere = {"build", "sanitizer", "tests"}
    wanted = {name: "needs a GPU" if name in elsewhere else "done" for name in gpu_steps.STEPS if name != "tables"}
    assert found == {f"cpu_{name}.json": status for name, status in wanted.items()}
    assert "nothing remains" in done.stdout
    assert {name: (ROOT / name).read_text() for name in DOCUMENTS} == texts
    again = command("--device", "cpu", "--small", "--out", tmp_path, timeout=600)
    assert again.returncode == 0
    assert again.stdout.count("done before") == len(gpu_steps.STEPS) - 1


def test_kernels_are_queried_after_cuda_is_initialised(monkeypatch, capsys):
    """The library for the GPU is loaded when CUDA is initialised, not at import."""
    cuda = types.SimpleNamespace(is_available=lambda: True, started=False)
    cuda.init = lambda: setattr(cuda, "started", True)
    ops = types.SimpleNamespace(kernels=lambda: {"GPU": "loaded" if cuda.started else "built"})
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "seamseg.ops", ops)
    exec(gpu_machine.KERNELS, {})
    assert json.loads(capsys.readouterr().out) == {"GPU": "loaded"}
