"""benchmarks/gpu.py in its smallest form on a CPU, in a copy of the clone: all steps, and the evidence of failures."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import throughput
from gpu_steps import STEPS

ROOT = Path(__file__).parents[2]
ON_A_GPU = {"build", "sanitizer", "tests"}
OLDEST = os.environ.get("SEAMSEG_OLDEST_PYTHON")
NO_OLDEST = (
    "set SEAMSEG_OLDEST_PYTHON to a Python with torch 2.11 and torchvision 0.26 (also pytest, hypothesis, tensorboard, "
    "tqdm, u-msgpack-python, pycocotools, zlib-ng)"
)


@pytest.fixture
def clone(tmp_path):
    """A copy, with the compiled kernels: its state and documents are its own, and errors can be put into it."""
    ignored = shutil.ignore_patterns("__pycache__", "_generated")
    for name in ("benchmarks", "configs", "csrc", "docs", "seamseg", "tests"):
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
    assert text.count(place) == 1
    path.write_text(text.replace(place, code + place))


@pytest.mark.slow
@pytest.mark.parametrize(
    "python",
    [
        pytest.param(sys.executable, id="this torch"),
        pytest.param(OLDEST, id="oldest torch", marks=pytest.mark.skipif(not OLDEST, reason=NO_OLDEST)),
    ],
)
def test_all_steps(clone, python):
    done, records, logs = rehearse(clone, python=python)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:]
    wanted = {name: "needs a GPU" if name in ON_A_GPU else "done" for name in STEPS}
    assert {name: record["status"] for name, record in records.items()} == wanted
    assert {record["kernels"]["CPU"] for record in records.values()} == {"loaded"}
    assert json.loads((clone / "build/gpu/cpu_small.json").read_text()) == records
    assert sorted(name[4:-4] for name in logs) == sorted(set(STEPS) - {"build", "sanitizer"})
    assert "nothing remains\ntables: no table changes\n" in done.stdout
    again, after, _ = rehearse(clone, python=python)
    assert again.returncode == 0
    assert again.stdout.count("done before") == len(STEPS)
    assert after == records


@pytest.mark.parametrize("broken", ["make", "network", "files"])
def test_a_variant_that_fails_keeps_the_others(tmp_path, monkeypatch, broken):
    """Wherever it fails: while it is made, in the network, or from file to file."""
    good = {
        "make": types.SimpleNamespace(input_size=None),
        "network": {"first": 1.0, "wall": 0.1, "cpu": 0.1, "plain/this wall": 1.0, "plain/this cpu": 1.0},
        "files": {"images/s": 9.0, "outside": 0.1},
    }

    def answer(function):
        def call(*given):
            last = given[0] if function != "files" else Path(given[2]).name.removesuffix("-first")
            if function == broken and last == "compile":
                raise RuntimeError("ptxas fatal")
            return dict(good[function]) if isinstance(good[function], dict) else good[function]

        return call

    for name in good:
        monkeypatch.setattr(throughput, name, answer(name))
    monkeypatch.setattr("seamseg.inference.images.network_input", lambda image, size: image)
    words = f"throughput.py plain compile --device cpu --size 64x96 --photos 1 --json {tmp_path / 'json'}"
    monkeypatch.setattr(sys, "argv", words.split())
    assert throughput.main() == 1
    found = json.loads((tmp_path / "json").read_text())
    assert found["variants"]["plain"]["images/s"] == 9.0
    assert ("compile" in found["variants"]) == (broken == "files"), "what was measured before stays"
    assert list(found["failed"]) == ["compile"]
    assert "RuntimeError: ptxas fatal" in found["failed"]["compile"]


def fails_at(last, answer):
    """Return a function that fails if its first argument is this."""

    def call(first, *given):
        if first == last:
            raise RuntimeError("no kernel image")
        return answer

    return call


def script(name):
    """Load a script whose name is also that of a folder of tests."""
    spec = importlib.util.spec_from_file_location(f"{name}_script", ROOT / "benchmarks" / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_precision_that_fails_keeps_the_others(tmp_path, monkeypatch):
    toy_city, golden = script("toy_city"), script("golden")
    monkeypatch.setattr(toy_city, "train", fails_at("bf16", {"PQ": 0.5}))
    monkeypatch.setattr(sys, "argv", ["toy_city.py", "--json", str(tmp_path / "toy")])
    with pytest.raises(RuntimeError):
        toy_city.main()
    assert json.loads((tmp_path / "toy").read_text())["runs"] == {"fp32": {"PQ": 0.5}}
    for name in ("build_network", "load_golden", "for_inference"):
        monkeypatch.setattr(golden, name, lambda *given: types.SimpleNamespace(eval=lambda: None))
    monkeypatch.setattr(golden, "distance", fails_at("bf16", golden.Distance("fp32")))
    monkeypatch.setattr(sys, "argv", ["golden.py", "--device", "cpu", "--json", str(tmp_path / "golden")])
    with pytest.raises(RuntimeError):
        golden.main()
    found = json.loads((tmp_path / "golden").read_text())
    assert ([row["precision"] for row in found["rows"]], found["fp32 agrees"]) == (["fp32"], True)


@pytest.mark.slow
def test_gpu_tests_are_collected_without_pycocotools():
    """The machine may lack it, and whatever other tests need."""
    code = "import sys, pytest; sys.modules['pycocotools'] = None; sys.exit(pytest.main(sys.argv[1:]))"
    paths = [str(p) for p in sorted((ROOT / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in p.read_text()]
    words = ["-q", "--collect-only", "-p", "no:cacheprovider", "-m", "gpu", *paths]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]


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
    done, records, logs = rehearse(clone, "--steps", "ops,train_step,fusion")
    assert done.returncode == 1
    assert set(records) == {"ops.failed", "train_step.failed", "fusion.failed"}
    assert {record["status"] for record in records.values()} == {"failed"}

    found = records["ops.failed"]["results"]["kernels"]
    assert found["operators"]["nms"]["compared"] > 0
    assert found["operators"]["nms_fixed"]["compared"] == 0
    assert "match_kernel: invalid configuration argument" in found["operators"]["nms_fixed"]["failures"][0]
    assert "match_kernel: invalid" in found["broken"]["case nms, many boxes"]
    assert found["cases"]["case abn, beyond 2^31"] == "equal"

    found = records["train_step.failed"]["results"]
    sides = ["plain", "torchvision", "torchvision_bf16", "eager", "fast, not compiled"]
    assert [row["side"] for row in found["rows"]] == sides
    assert list(found["failed"]) == ["checkpointed"]
    assert found["failed"]["checkpointed"].startswith("Traceback")
    assert "RuntimeError: inductor: CppCompileError" in found["failed"]["checkpointed"]

    assert records["fusion.failed"]["results"]["reason"] == "exit code -9"
    assert "half of it" in records["fusion.failed"]["output"]
    assert [name[4:-4] for name in logs] == ["ops", "fusion", "train_step"]
    assert "CppCompileError" in logs["002_train_step.log"]
    assert "remain: build, ops, fusion" in done.stdout
