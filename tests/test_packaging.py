"""What an installed package holds besides its code."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = (
    "seamseg", "configs", "examples", "csrc", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE",
)  # fmt: skip
SLOW = pytest.mark.slow
SDIST = "import sys; sys.path.insert(0, 'csrc'); import backend; backend.build_sdist('out')"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """An unpacked source distribution of this clone, built aside so that nothing is left in it."""
    pytest.importorskip("setuptools", minversion="77", reason="built without isolation, to need no network")
    folder = tmp_path_factory.mktemp("sdist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name)
        else:
            shutil.copy(ROOT / name, folder)
    subprocess.run([sys.executable, "-c", SDIST], cwd=folder, check=True, capture_output=True)
    with tarfile.open(next((folder / "out").glob("*.tar.gz"))) as archive:
        # an argument `filter` is refused before Python 3.11.4
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder / "unpacked")
    return next((folder / "unpacked").iterdir())


@pytest.fixture(scope="module")
def wheel(sdist):
    """A wheel of it, without kernels: the compiler takes a minute."""
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-q", "-w", "out"]
    subprocess.run(command, cwd=sdist, check=True, env={**os.environ, "SEAMSEG_KERNELS": "off"})
    return next((sdist / "out").glob("*.whl"))


def test_a_source_distribution_holds_all_that_kernels_are_built_from(sdist):
    wanted = {path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*.*") if "__pycache__" not in path.parts}
    assert wanted == {path.relative_to(sdist) for path in (sdist / "csrc").rglob("*.*")}
    assert not [*sdist.rglob("*.so"), *sdist.rglob("kernels.json")]


def test_a_wheel_holds_code_defaults_experiments_and_types(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    code = {str(path.relative_to(ROOT)) for path in (ROOT / "seamseg").rglob("*.py")}
    defaults = {f"seamseg/config/defaults/{path.name}" for path in (ROOT / "seamseg/config/defaults").glob("*.ini")}
    patterns = ("*.ini", "imagenet/*.json", "classes/*.ini")
    packaged = [path for pattern in patterns for path in ROOT.glob(f"configs/{pattern}")]
    configs = {f"seamseg/{path.relative_to(ROOT).as_posix()}" for path in packaged}
    examples = {f"seamseg/examples/{path.name}" for path in ROOT.glob("examples/components/*.py")}
    assert len(defaults) == 5
    assert len(examples) == 11
    assert len(configs) >= 4 + 9
    page = {str(path.relative_to(ROOT)) for path in ROOT.glob("seamseg/**/assets/*")}
    assert {Path(name).suffix for name in page} == {".html", ".css", ".js"}
    classes = {f"seamseg/contrib/foreign/classes/{name}.txt" for name in ("ade20k", "coco_panoptic", "vistas_v2")}
    assert held == code | defaults | configs | examples | page | classes | {
        "seamseg/contrib/deploy/model_card.md",
        "seamseg/py.typed",
        "seamseg/kernels.json",
        "seamseg/ops/schemas.inc",
    }


# stands for nvcc and the C++ compiler; says what it compiles, and fails at one file of the operators for the CPU
COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo "Cuda compilation tools, release RELEASE, VRELEASE.0" && exit
for source; do case "$source" in *FAILING)
  echo "In file included from $source:5:" >&2
  echo "$source:3:1: warning: 'x' is unused" >&2
  echo "$source:7:1: error: 'permute' is not a member of 'torch::stable'" >&2
  echo "$source:8:1: error: another" >&2
  exit 1;;
esac; done
while [ "$1" != -o ]; do shift; done
echo > "$2"
"""


def write_compiler(path, release="", failing="nothing"):
    path.parent.mkdir(exist_ok=True)
    path.write_text(COMPILER.replace("RELEASE", release).replace("FAILING", failing))
    path.chmod(0o755)
    return path


def build(sdist, folder, gpu, variables):
    """Build with compilers that write nothing, beside a GPU of this version or none; return what the build reports."""
    version = importlib.import_module("torch").version.cuda
    if version is None:
        pytest.skip("this torch is built without CUDA: so are the kernels")
    for name in ("include", "lib64"):
        (folder / name).mkdir()
    compiler = write_compiler(folder / "bin/nvcc", version)
    (folder / "bin/nvidia-smi").write_text(f"#!/bin/sh\necho {gpu}\n")
    (folder / "bin/nvidia-smi").chmod(0o755)
    asked = ("SEAMSEG_KERNELS", "FORCE_CUDA", "TORCH_CUDA_ARCH_LIST")
    others = {name: value for name, value in os.environ.items() if name not in asked}
    tools = {"CXX": str(compiler), "CUDA_HOME": str(folder), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    folders = ["--build-lib", str(folder / "lib"), "--build-temp", str(folder / "temp")]
    command = [sys.executable, "setup.py", "--quiet", "build_ext", *folders]
    subprocess.run(command, cwd=sdist, check=True, env={**others, **tools, **variables}, capture_output=True)
    report = json.loads((folder / "lib/seamseg/kernels.json").read_text())
    return report


FORCED = {"SEAMSEG_KERNELS": "all", "TORCH_CUDA_ARCH_LIST": "7.5;9.0a+PTX"}


@pytest.mark.parametrize(
    ("gpu", "variables", "built", "architectures"),
    [
        ("9.0", {}, True, None),
        ("", FORCED, True, ["sm_75", "sm_90a", "compute_90a"]),
        pytest.param("", {}, False, None, marks=SLOW),
        pytest.param("", {"FORCE_CUDA": "1"}, True, None, marks=SLOW),
        pytest.param("9.0", {"SEAMSEG_KERNELS": "cpu"}, False, None, marks=SLOW),
    ],
)
def test_cuda_kernels_need_a_gpu_or_a_wish(sdist, tmp_path, gpu, variables, built, architectures):
    """The build notes its architectures, which `seamseg.ops` compares with the GPUs of a machine."""
    report = build(sdist, tmp_path, gpu, variables)
    assert (report["_C_cuda"] == "built") is built, report
    assert architectures in (None, report.get("architectures"))


@pytest.mark.parametrize(("command", "code"), [pytest.param("build_ext", 1, marks=SLOW), ("bdist_wheel", 0)])
def test_a_failed_compiler_is_the_last_word_of_a_build(sdist, tmp_path, command, code):
    """Kernels that are asked for by themselves fail; an installation goes on, and keeps the error for `doctor`."""
    shutil.copytree(sdist, tmp_path / "clone")
    compiler = write_compiler(tmp_path / "c++", failing="pooling.cpp")
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", command],
        cwd=tmp_path / "clone",
        env={**os.environ, "CXX": str(compiler), "SEAMSEG_KERNELS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    reason = "the compiler failed: csrc/cpu/pooling.cpp:7:1: error: 'permute' is not a member of 'torch::stable'"
    *before, line, missing, named, _ = done.stderr.splitlines()
    assert (set(line), "KERNELS ARE MISSING" in missing, named) == ({"*"}, True, f"  seamseg._C: {reason}")
    assert any(said.endswith("pooling.cpp:8:1: error: another") for said in before), "the whole output is shown"
    report = json.loads(next((tmp_path / "clone/build").glob("lib*/seamseg/kernels.json")).read_text())
    assert (report["_maps"], report["_C"]) == ("built", reason)
