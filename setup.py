"""Build the kernels of `csrc/`; metadata is in pyproject.toml.

`seamseg._maps` (C functions for id maps, without torch) needs a C++20 compiler, `seamseg._C` (operators for the CPU)
also the headers of torch, `seamseg._C_cuda` also an nvcc of torch's CUDA major version. The operators use LibTorch's
stable ABI, so that one binary works with every torch from 2.11 on. A library that cannot be built is left out, with the
reason in `seamseg/kernels.json`; the installation does not fail. Only `setup.py build_ext` fails where a compiler does.

    SEAMSEG_KERNELS=off|maps|cpu|all  what to build; maps needs no torch (default: all that can be built, but CUDA
                                  kernels only if the machine has a GPU or one of the next two is set)
    FORCE_CUDA=1                  build the CUDA kernels without a GPU
    TORCH_CUDA_ARCH_LIST          GPU architectures (default: "8.0;9.0+PTX" and those of the GPUs in this machine);
                                  they are recorded in kernels.json
    CUDA_HOME                     CUDA toolkit (default: that of nvcc on the path)
    MAX_JOBS                      parallel compilers (default: one per core)
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "csrc"))
from toolchain import architecture_flags, architectures, cards, compiler, cuda_home, cuda_version_of, torch_folder  # noqa: E402

# the package itself may need what is not installed yet
spec = importlib.util.spec_from_file_location("native", ROOT / "seamseg/utils/native.py")
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)

TORCH_TARGET = "0x020b000000000000"
MAX_JOBS = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)


class CompilerFailed(Exception):
    """A compiler or linker failed; the message is its first error line."""


def compile_or_fail(command: list[str]) -> None:
    """Run a compiler or linker and show its output; raise CompilerFailed if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    print(done.stdout, end="", file=sys.stderr)
    if done.returncode:
        lines = [line.strip().replace(f"{ROOT}/", "") for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if re.search(r"\berror\b|undefined reference|cannot find", line)]
        raise CompilerFailed((errors or lines[-1:] or [f"{command[0]}: exit code {done.returncode}"])[0])


class Kernels(build_ext):
    """Compile in parallel, skip files that are up to date, never fail the installation."""

    def run(self) -> None:
        """Build each library, or record why it cannot be built."""
        self.torch = torch_folder()
        wanted = os.environ.get("SEAMSEG_KERNELS")
        report, built, failed = {}, [], []
        for extension in self.extensions:
            name = extension.name.rpartition(".")[2]
            try:
                reason = "switched off by SEAMSEG_KERNELS" if wanted == "off" else self._obstacle(name, wanted)
                if reason is None:
                    self._build(extension)
            except (OSError, CompilerFailed) as error:
                reason = f"{native.COMPILER_FAILED}{error}"
                failed.append(extension.name)
            report[name] = reason or "built"
            print(f"seamseg: {extension.name}: {report[name]}", file=sys.stderr)
            if reason is None:
                built.append(extension)
            else:
                # a library of an earlier build may not have all operators
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
        # the distribution keeps its list: wheels of a platform have one layout, with and without kernels
        self.extensions = built
        target = ROOT if self.inplace else Path(self.build_lib)
        (target / "seamseg").mkdir(parents=True, exist_ok=True)
        # compared with the sources of a clone before a library is loaded
        report["sources"] = native.digest(ROOT / "csrc")
        if report.get("_C_cuda") == "built":
            # compared with the GPUs when the library is loaded
            report["architectures"] = architectures()
        (target / "seamseg/kernels.json").write_text(json.dumps(report, indent=1) + "\n")
        if failed:
            line = "*" * 100
            reasons = "\n".join(f"  {name}: {report[name.rpartition('.')[2]]}" for name in failed)
            text = f"seamseg: KERNELS ARE MISSING, a compiler failed. Everything works, slower.\n{reasons}"
            # the last words, after those of setuptools
            atexit.register(print, f"{line}\n{text}\n{line}", file=sys.stderr)
            # asked for by itself, not by an installation
            if "build_ext" in self.distribution.commands:
                sys.exit(1)

    def _obstacle(self, name: str, wanted: str | None) -> str | None:
        if compiler() is None:
            return "no C++ compiler was found"
        if name == "_maps":
            return None
        if wanted == "maps":
            return "switched off by SEAMSEG_KERNELS"
        if self.torch is None:
            return "torch was not installed where seamseg was built"
        if name == "_C":
            return None
        return "switched off by SEAMSEG_KERNELS" if wanted == "cpu" else self._cuda_obstacle(wanted == "all")

    def _cuda_obstacle(self, asked: bool) -> str | None:
        version = cuda_version_of(self.torch)
        if version is None:
            return "torch is a build for the CPU"
        asked = asked or os.environ.get("FORCE_CUDA", "0") != "0" or "TORCH_CUDA_ARCH_LIST" in os.environ
        if not asked and not cards():
            return "not built, as there was no GPU; FORCE_CUDA=1 builds them"
        home = cuda_home()
        if home is None:
            return "no nvcc was found; set CUDA_HOME"
        output = subprocess.run([home / "bin/nvcc", "--version"], capture_output=True, text=True).stdout
        release = re.search(r"release (\d+)", output)
        if release is None or release.group(1) != version.split(".")[0]:
            return f"torch was built with CUDA {version}, nvcc is of CUDA {release.group(1) if release else '?'}"
        return None

    def _build(self, extension: Extension) -> None:
        define, include, libraries = ["-DNDEBUG"], [], []
        headers = [*(ROOT / "csrc").rglob("*.h"), *(ROOT / "csrc").rglob("*.cuh"), ROOT / "seamseg/ops/schemas.inc"]
        cuda = extension.name.endswith("_cuda")
        if not extension.name.endswith("_maps"):
            include = [f"-I{self.torch / 'include'}", f"-I{sysconfig.get_path('include')}"]
            define.append(f"-DTORCH_TARGET_VERSION={TORCH_TARGET}")
            if STABLE:
                define.append("-DPy_LIMITED_API=0x030a0000")
            headers.append(self.torch / "version.py")
            libraries = [f"-L{self.torch / 'lib'}", "-ltorch_cpu"]
        if cuda:
            command = [str(cuda_home() / "bin/nvcc"), "-std=c++20", "-O3", "-DUSE_CUDA", *architecture_flags()]
            command += ["-Xcompiler", "-fPIC", "-Xcompiler", "-fvisibility=hidden", "-diag-suppress=20012"]
        else:
            command = [compiler(), "-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-fopenmp-simd"]
            command += ["-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wno-unknown-pragmas"]
        newest_header = max(path.stat().st_mtime for path in headers)
        # a folder for each compiler, architecture and torch
        flags = hashlib.sha256(" ".join([*command, *define, *include]).encode()).hexdigest()[:12]
        folder = Path(self.build_temp) / extension.name / flags
        folder.mkdir(parents=True, exist_ok=True)

        def compile_one(source: str) -> Path:
            path = ROOT / source
            target = folder / f"{path.stem}.o"
            newest = max(path.stat().st_mtime, newest_header)
            if self.force or not target.exists() or target.stat().st_mtime < newest:
                compile_or_fail([*command, *define, *include, "-c", str(path), "-o", str(target)])
            return target

        with ThreadPoolExecutor(MAX_JOBS) as pool:
            objects = list(pool.map(compile_one, extension.sources))
        output = Path(self.get_ext_fullpath(extension.name))
        output.parent.mkdir(parents=True, exist_ok=True)
        link = [compiler(), "-shared", *map(str, objects), *libraries]
        if sys.platform == "darwin":
            link += ["-undefined", "dynamic_lookup"]
        if cuda:
            folder = cuda_home() / ("lib64" if (cuda_home() / "lib64").is_dir() else "lib")
            link += ["-ltorch_cuda", f"-L{folder}", "-lcudart_static", "-lrt", "-ldl", "-lpthread"]
        fresh = output.with_name(f"{output.name}.tmp")
        compile_or_fail([*link, "-o", str(fresh)])
        fresh.replace(output)


def sources(folder: str, suffix: str) -> list[str]:
    """List the files to compile, relative to the root as setuptools requires."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc" / folder).glob(f"*{suffix}"))


# Python without the GIL has no stable ABI: the kernels then work with the Python version they are built for only
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    # `configs/` is installed as `seamseg/configs/`, the templates of `seamseg new` as `seamseg/examples/`, which
    # pyproject.toml cannot express
    packages=[*find_packages(include=["seamseg", "seamseg.*"]), "seamseg.configs", "seamseg.examples"],
    package_dir={"seamseg.configs": "configs", "seamseg.examples": "examples/components"},
    package_data={
        "seamseg": [
            "py.typed",
            "config/defaults/*.ini",
            "contrib/deploy/*.md",
            "contrib/foreign/classes/*.txt",
            "kernels.json",
            "ops/schemas.inc",
            "maps/report/assets/*",
            "contrib/serving/assets/*",
        ],
        "seamseg.configs": ["*.ini", "classes/*.ini", "imagenet/*.json"],
    },
    include_package_data=False,
    ext_modules=[
        Extension("seamseg._maps", sources("maps", ".cpp"), py_limited_api=STABLE),
        Extension("seamseg._C", sources("cpu", ".cpp"), py_limited_api=STABLE),
        Extension("seamseg._C_cuda", sources("cuda", ".cu"), py_limited_api=STABLE),
    ],
    cmdclass={"build_ext": Kernels},
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if STABLE else {},
)
