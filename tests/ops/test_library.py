"""With, without and with broken kernels: what serves the operators, and what is said about it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import seamseg
from seamseg.cli.main import main
from seamseg.ops import _library, implementations, kernels
from seamseg.utils import native as compiled

PACKAGE = Path(seamseg.__file__).parent
BUILT = shutil.ignore_patterns("*.so", "kernels.json", "__pycache__")
DEFAULT = ["sm_80", "sm_90", "compute_90"]
ROOT = PACKAGE.parent
OLDEST = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
VARIABLE = "SEAMSEG_OLDEST_TORCH"
LOADED = "from seamseg import ops; print(*ops.kernels().values(), sep='|')"

SERVER = """
import json, os, sys, torch
# torch is loaded once; each case imports the package of its folder in a process of its own
for name, folder, variables, code in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(name + ".err", os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(os.open(name + ".out", os.O_WRONLY | os.O_CREAT), 1)
        os.environ.update(variables)
        sys.path.insert(0, folder)
        exec(code)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, open(name + ".err").read()
"""
REPORT = """
import json
from seamseg import ops
print(json.dumps([ops.kernels(), ops.implementations()]))
"""
AT_IMPORT = """
import torch
torch.version.cuda = "13.0"
def never(*_):
    raise SystemExit("a GPU was asked for at import")
asking = ("is_available", "init", "_lazy_init", "device_count", "get_device_name", "get_device_capability")
for name in asking:
    setattr(torch.cuda, name, never)
from seamseg import ops
print(ops.kernels()["GPU"])
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_name = lambda i: "Tesla T4"
torch.cuda.get_device_capability = lambda i: (7, 5)
# what torch does when it initialises CUDA
for call, _ in torch.cuda._queued_calls:
    if call.__module__.startswith("seamseg"):
        call()
print(ops.kernels()["GPU"])
"""


@pytest.fixture(scope="module")
def imports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imports")

    def copy(name, built, library=None):
        shutil.copytree(PACKAGE, folder / name / "seamseg", ignore=BUILT)
        if built is not None:
            (folder / name / "seamseg" / "kernels.json").write_text(json.dumps(built))
        if library is not None:
            (folder / name / "seamseg" / library).write_bytes(b"not a library")
        return folder / name

    def changed_schemas():
        library = next(PACKAGE.glob("_C.*"))
        path = copy("changed", json.loads((PACKAGE / "kernels.json").read_text()))
        shutil.copy(library, path / "seamseg")
        shutil.copytree(ROOT / "csrc", path / "csrc")
        with (path / "seamseg/ops/schemas.inc").open("a") as file:
            file.write('"new_operator(Tensor x) -> Tensor",\n')
        return path

    gpu = {"_C": "switched off", "_C_cuda": "built", "architectures": DEFAULT}
    cases = {
        "switched off": (ROOT, {"SEAMSEG_PLAIN_OPS": "1"}, REPORT),
        "never built": (copy("never", None), {}, REPORT),
        "not a library": (copy("broken", {"_C": "built"}, "_C.abi3.so"), {}, REPORT),
        "older build": (changed_schemas(), {}, REPORT),
        "no GPU": (copy("gpu", gpu, "_C_cuda.abi3.so"), {}, AT_IMPORT),
    }
    words = [[str(folder / name), str(path), variables, code] for name, (path, variables, code) in cases.items()]
    # the clone may be installed as editable: its kernels are not those of the copies
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", SERVER, json.dumps(words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return {name: [(folder / f"{name}.{end}").read_text() for end in ("out", "err")] for name in cases}


def test_every_operator_has_a_kernel_here_and_its_schema():
    """Schemas are registered by C++: a program without Python finds them."""
    assert kernels()["CPU"] == "loaded"
    assert {name for name, served in implementations().items() if "C++" not in served} == set()
    assert set(_library.SCHEMAS) == set(implementations())
    for name, schema in _library.SCHEMAS.items():
        registered = getattr(torch.ops.seamseg, name).default
        assert str(registered._schema) == f"seamseg::{schema}"
        assert "csrc/cpu/module.cpp" in registered._handle.debug()


@pytest.mark.parametrize(
    ("name", "state", "words"),
    [
        ("switched off", "switched off by SEAMSEG_PLAIN_OPS", None),
        ("never built", "they were never built", "pip install --no-build-isolation"),
        ("not a library", "they do not load here (", ""),
        ("older build", "they do not load here (csrc has changed since they were compiled: make kernels)", ""),
    ],
)
def test_without_kernels(imports, name, state, words):
    output, said = imports[name]
    states, served = json.loads(output)
    assert states["CPU"].startswith(state)
    assert set(served.values()) == {"plain torch"}
    assert said.count(f"no compiled operators for the CPU: {states['CPU']}. Everything works, slower.") == (
        words is not None
    )
    assert said.count("UserWarning") <= 1
    assert (words or "") in said


# (code, capabilities that it runs on, capabilities that it does not run on)
CODES = [
    ("sm_86", [(8, 6), (8, 9)], [(8, 0), (8, 7), (9, 0)]),
    ("sm_87", [(8, 7)], [(8, 6), (8, 9)]),
    ("compute_90", [(9, 0), (10, 0), (10, 3), (11, 0), (12, 1)], [(8, 9), (7, 5)]),
    ("sm_90a", [(9, 0)], [(8, 9), (10, 0)]),
    ("compute_120f", [(12, 0), (12, 1)], [(10, 3), (13, 0)]),
    ("sm_90x", [], [(9, 0)]),
]


@pytest.mark.parametrize(("code", "runs", "fails"), CODES, ids=[code for code, _, _ in CODES])
def test_which_code_runs_on_which_gpu(code, runs, fails):
    assert [card for card in runs if not compiled.runs_on(code, card)] == []
    assert [card for card in fails if compiled.runs_on(code, card)] == []


GPUS = {"Tesla T4": (7, 5), "H100": (9, 0), "RTX 3090": (8, 6), "RTX 5090": (12, 0)}


@pytest.mark.parametrize(
    ("gpus", "architectures", "card", "wanted"),
    [
        (["H100"], DEFAULT, None, None),
        (["RTX 3090", "H100", "RTX 5090"], DEFAULT, None, None),
        (["Tesla T4"], None, None, None),
        (["Tesla T4"], ["sm_75"], None, None),
        (["Tesla T4"], DEFAULT, "GPU 0, Tesla T4 (sm_75)", "7.5"),
        (["H100", "Tesla T4"], DEFAULT, "GPU 1, Tesla T4 (sm_75)", "7.5;9.0"),
        (["RTX 5090", "RTX 3090"], ["sm_90a"], "GPU 0, RTX 5090 (sm_120), GPU 1, RTX 3090 (sm_86)", "8.6;12.0"),
    ],
)
def test_loaded_where_it_runs_on_every_gpu(monkeypatch, gpus, architectures, card, wanted, capsys, recwarn):
    report, loaded = {"_C_cuda": "built", "architectures": architectures}, []
    monkeypatch.setattr(compiled, "_report", lambda: report)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: gpus[i])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: GPUS[gpus[i]])
    monkeypatch.setattr(_library, "_kernels", dict(_library._kernels))
    monkeypatch.setattr(_library, "_load", lambda name, device: loaded.append(name))
    _library._load_cuda_kernels()
    said = [str(warning.message) for warning in recwarn.list]
    if card is None:
        assert (loaded, said) == (["_C_cuda"], [])
        return
    assert (loaded, len(said)) == ([], 1)
    reason = f"compiled for {', '.join(architectures)}, not for {card}"
    command = f'TORCH_CUDA_ARCH_LIST="{wanted}" pip install --no-build-isolation --no-deps --force-reinstall .'
    words = f"no compiled operators for the GPU: {reason}. Everything works, slower. To compile them: {command}"
    assert words in said[0]
    main(["doctor"])
    assert f"kernels, GPU      {reason}; to compile them: {command}\n" in capsys.readouterr().out


def test_import_does_not_ask_for_gpus(imports):
    """It would initialise CUDA, after which no forked process could use it; they are compared when CUDA starts."""
    output, said = imports["no GPU"]
    before, after = output.splitlines()
    assert before == "built; loaded with the first use of a GPU"
    assert after.startswith("compiled for sm_80, sm_90, compute_90, not for GPU 0, Tesla T4 (sm_75); to compile them:")
    assert said.count("no compiled operators for the GPU") == 1


@pytest.mark.slow
def test_all_libraries_are_built_with_the_oldest_torch_and_load(tmp_path):
    """The CUDA kernels too if there is an nvcc of that torch's CUDA version; they are not run."""
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"set {VARIABLE} to a Python with torch {OLDEST}, setuptools>=77 and numpy; .ci/minimum makes one")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("csrc", "seamseg", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=BUILT)
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
