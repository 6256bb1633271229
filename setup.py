"""Builds the kernels of `csrc/`; metadata is in pyproject.toml.

`seamseg._maps` (C functions for maps of ids, no torch) needs a C++20 compiler, `seamseg._C` (operators for the CPU)
torch's headers too, `seamseg._C_cuda` an nvcc of torch's CUDA major version as well. Headers are all that is needed of
torch: the operators keep to LibTorch's stable ABI, so that one binary serves every torch from 2.11 on. What cannot be
built is left out, with the reason in `seamseg/kernels.json`; the install never fails for it.

    SEAMSEG_KERNELS=off|cpu|all   what to build (default: whatever can be built)
    TORCH_CUDA_ARCH_LIST          GPU architectures (default: "8.0;9.0+PTX" and those of the cards in this machine);
                                  they are noted in kernels.json
    CUDA_HOME                     the CUDA toolkit (default: where nvcc is)
    MAX_JOBS                      compilers at once (default: one a core)
"""

from __future__ import annotations

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
from toolchain import architecture_flags, architectures, compiler, cuda_home, cuda_version_of, torch_folder  # noqa: E402

TORCH_TARGET = "0x020b000000000000"
MAX_JOBS = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)


class Kernels(build_ext):
    """Compile with as many compilers at once as there are cores, skip what is up to date, never fail the install."""

    def run(self) -> None:
        """Build what can be built and write down why the rest was not."""
        self.torch = torch_folder()
        wanted = os.environ.get("SEAMSEG_KERNELS", "all")
        said, built = {}, []
        for extension in self.extensions:
            name = extension.name.rpartition(".")[2]
            try:
                reason = "switched off by SEAMSEG_KERNELS" if wanted == "off" else self._obstacle(name, wanted)
                if reason is None:
                    self._build(extension)
            except (OSError, subprocess.CalledProcessError) as error:
                reason = f"the compiler failed: {error}"
            said[name] = reason or "built"
            print(f"seamseg: {extension.name}: {said[name]}", file=sys.stderr)
            if reason is None:
                built.append(extension)
            else:
                # that of an earlier build would be loaded with operators that it does not know
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
        # the distribution keeps its list: a wheel for one platform has one layout, with kernels and without
        self.extensions = built
        target = ROOT if self.inplace else Path(self.build_lib)
        (target / "seamseg").mkdir(parents=True, exist_ok=True)
        said["sources"] = sources_digest()
        if said.get("_C_cuda") == "built":
            # compared with the GPUs when the library is loaded
            said["architectures"] = architectures()
        (target / "seamseg/kernels.json").write_text(json.dumps(said, indent=1) + "\n")

    def _obstacle(self, name: str, wanted: str) -> str | None:
        if compiler() is None:
            return "no C++ compiler was found"
        if name == "_maps":
            return None
        if self.torch is None:
            return "torch was not installed where seamseg was built"
        if name == "_C":
            return None
        if wanted == "cpu":
            return "switched off by SEAMSEG_KERNELS"
        version = cuda_version_of(self.torch)
        if version is None:
            return "torch is a build for the CPU"
        home = cuda_home()
        if home is None:
            return "no nvcc was found; set CUDA_HOME"
        said = subprocess.run([home / "bin/nvcc", "--version"], capture_output=True, text=True).stdout
        release = re.search(r"release (\d+)", said)
        if release is None or release.group(1) != version.split(".")[0]:
            return f"torch was built with CUDA {version}, nvcc is of CUDA {release.group(1) if release else '?'}"
        return None

    def _build(self, extension: Extension) -> None:
        define, include, libraries = ["-DNDEBUG"], [], []
        headers = [*(ROOT / "csrc").rglob("*.h"), *(ROOT / "csrc").rglob("*.cuh")]
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
        # objects of another compiler, architecture or torch have a folder of their own
        flags = hashlib.sha256(" ".join([*command, *define, *include]).encode()).hexdigest()[:12]
        folder = Path(self.build_temp) / extension.name / flags
        folder.mkdir(parents=True, exist_ok=True)

        def compile_one(source: str) -> Path:
            path = ROOT / source
            target = folder / f"{path.stem}.o"
            newest = max(path.stat().st_mtime, newest_header)
            if self.force or not target.exists() or target.stat().st_mtime < newest:
                subprocess.run([*command, *define, *include, "-c", str(path), "-o", str(target)], check=True)
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
        subprocess.run([*link, "-o", str(fresh)], check=True)
        fresh.replace(output)


def sources_digest() -> str:
    """Return the checksum by which `seamseg.utils.native` checks that the kernels of a clone match its sources."""
    spec = importlib.util.spec_from_file_location("compiled", ROOT / "seamseg/utils/native.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.digest(ROOT / "csrc")


def sources(folder: str, suffix: str) -> list[str]:
    """Return the files to compile, relative to the root as required by setuptools."""
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc" / folder).glob(f"*{suffix}"))


# Python without the GIL has no stable ABI: there the kernels serve the one version they are built for
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    # pyproject.toml cannot say that `configs/` is installed as `seamseg/configs/`, where `find_experiment` looks
    packages=[*find_packages(include=["seamseg", "seamseg.*"]), "seamseg.configs"],
    package_dir={"seamseg.configs": "configs"},
    package_data={
        "seamseg": ["py.typed", "config/defaults/*.ini", "kernels.json", "report/assets/*"],
        "seamseg.configs": ["*.ini"],
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
