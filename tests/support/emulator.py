"""Runs the CUDA kernels of `csrc/cuda` without a GPU, and the C++ of `csrc/cpu` and `csrc/maps`, all under sanitizers.

The kernels and their host files, unchanged, are compiled by the C++ compiler against `cuda_emulation/cuda_runtime.h`;
a block's threads are fibers that change places where they wait for each other, in an order drawn from a seed.

What this shows: indexing, undefined arithmetic, results that depend on the order of threads, blocks or atomics, memory
read before it is written (it starts as NaN), barriers that not all threads reach, launches CUDA would refuse, the host
side, and numbers. What it does not show: races between blocks or between barriers, the memory model, streams,
registers and occupancy, speed, and what the GPU's own instructions round differently.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from select import select
from typing import Any

import torch

from support.cuda_emulation.worker import read, write

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent / "cuda_emulation"
BUILD = ROOT / "build" / "emulation"
SANITIZERS = "address,undefined,float-cast-overflow"
FLAGS = ["-std=c++20", "-O1", "-g1", "-fPIC", "-fvisibility=hidden", "-D_GLIBCXX_ASSERTIONS", "-fno-omit-frame-pointer"]
FLAGS += [f"-fsanitize={SANITIZERS}", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"]
FLAGS += ["-DTORCH_TARGET_VERSION=0x020b000000000000", "-Wno-unknown-pragmas", "-Wno-attributes"]
HANG_SECONDS = 200


class Fault(AssertionError):
    """A kernel did what it must never do: the sanitizers' or the emulator's words."""


def obstacle() -> str | None:
    """Why nothing can be emulated here, if so."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return "the emulator needs Linux on x86-64"
    if shutil.which("g++") is None or not Path(_runtime("libasan.so")).is_absolute():
        return "no g++ with AddressSanitizer"
    return None


def _runtime(name: str) -> str:
    return subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()


def shared_declarations(source: str) -> str:
    """Make `__shared__ float a[8], b;` ask the emulator for arrays that are new for each block."""

    def declare(match: re.Match[str]) -> str:
        text = re.sub(r"\balignas\([^)]*\)", "", match.group(1)).strip()
        parts = re.split(r",(?![^<\[(]*[>\])])", text)
        kind, first = re.fullmatch(r"(.+?)\s+(\w+\s*(?:\[.*\])?)", parts[0], re.DOTALL).groups()
        said = []
        for part in [first, *parts[1:]]:
            name, size = re.fullmatch(r"\s*(\w+)(.*)", part, re.DOTALL).groups()
            said.append(f"static char {name}_at; using {name}_t = {kind.strip()}{size.strip()}; ")
            said.append(f"auto& {name} = *static_cast<{name}_t*>(the_machine.shared(&{name}_at, sizeof({name}_t))); ")
        return "".join(said) + "\n" * match.group(0).count("\n")

    return re.sub(r"__shared__\s+([^;]+);", declare, source)


def _copy(path: Path) -> Path:
    """A copy of a source with the shared arrays declared anew; what compilers say still names the original."""
    copy = BUILD / "csrc" / (path.relative_to(ROOT / "csrc") if path.is_relative_to(ROOT / "csrc") else path.name)
    text = re.sub(r"(#define SEAMSEG_CLONES) .*", r"\1", path.read_text())  # one clone is enough
    text = f'#line 1 "{path}"\n{shared_declarations(text)}'
    if not copy.exists() or copy.read_text() != text:
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
    return copy


@cache
def build() -> tuple[Path, ...]:
    """Return the libraries of maps, of the C++ kernels and of the emulated CUDA kernels; compile what has changed."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for path in (ROOT / "csrc").rglob("*.*h"):
            _copy(path)
        headers = [*sorted(SUPPORT.glob("*.h")), *sorted((BUILD / "csrc").rglob("*.*h"))]
        included = b"\0".join(path.read_bytes() for path in headers)
        include = [f"-I{Path(torch.__file__).parent / 'include'}", f"-I{sysconfig.get_path('include')}", f"-I{SUPPORT}"]
        # products and sums are fused as nvcc does, where the processor can
        fma = " fma " in Path("/proc/cpuinfo").read_text()
        emulated = ["-x", "c++", *(["-mfma", "-ffp-contract=fast", "-fexpensive-optimizations"] if fma else [])]
        emulated += ["-include", str(BUILD / "csrc/cuda/common.cuh"), "-include", "redirect.h"]
        cpu, cuda = sorted((ROOT / "csrc/cpu").glob("*.cpp")), sorted((ROOT / "csrc/cuda").glob("*.cu"))
        jobs = [(path, emulated) for path in cuda if path.stem != "module"]
        jobs += [(path, ["-include", "redirect_cpu.h"]) for path in cpu if path.stem != "module"]
        jobs += [(path, []) for path in sorted((ROOT / "csrc/maps").glob("*.cpp"))]
        jobs += [(SUPPORT / "entry.cpp", emulated), (SUPPORT / "examples.cu", emulated)]
        jobs = [(_copy(path), flags) for path, flags in jobs]

        def compile_one(job: tuple[Path, list[str]]) -> Path:
            path, flags = job
            command = ["g++", *FLAGS, *include, *flags, "-c", str(path)]
            texts = [path.read_bytes(), included, " ".join(command).encode()]
            key = hashlib.sha256(b"\0".join(texts)).hexdigest()[:20]
            target = BUILD / f"{path.parent.name}-{path.stem}-{key}.o"
            if not target.exists():
                said = subprocess.run([*command, "-o", f"{target}.tmp"], capture_output=True, text=True)
                if said.returncode != 0:
                    raise Fault(f"{path.name} does not compile for the emulator:\n{said.stderr[-4000:]}")
                for old in BUILD.glob(f"{path.parent.name}-{path.stem}-????????????????????.o"):
                    old.unlink()
                os.replace(f"{target}.tmp", target)
            return target

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(compile_one, jobs))
        maps, host = ([path for path in objects if path.name.startswith(f"{name}-")] for name in ("maps", "cpu"))
        device = [path for path in objects if path not in [*maps, *host]]
        return _link("maps", maps), _link("checked", host), _link("emulated", device)


def _link(name: str, objects: list[Path]) -> Path:
    key = hashlib.sha256("".join(map(str, objects)).encode()).hexdigest()[:20]
    target = BUILD / f"lib{name}-{key}.so"
    if not target.exists():
        for old in BUILD.glob(f"lib{name}-*"):
            old.unlink()
        libraries = [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu"]
        command = ["g++", "-shared", f"-fsanitize={SANITIZERS}", *map(str, objects), *libraries, "-o", f"{target}.tmp"]
        subprocess.run(command, check=True)
        os.replace(f"{target}.tmp", target)
    return target


class Raised(RuntimeError):
    """A call raised: its type and its words."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(f"{kind}: {words}")
        self.kind, self.words = kind, words


class Worker:
    """A process that calls operators; a new one is started when a call has ended it.

    Parameters
    ----------
    sanitized : with the kernels of the CPU and of CUDA built with sanitizers, as `seamseg_checked` and
        `seamseg_emulated`, `seamseg` in plain torch, and `seamseg.maps.idmaps` with a library built so; else with
        `seamseg` as it is installed
    """

    def __init__(self, sanitized: bool) -> None:
        self._sanitized = sanitized
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, library: str, name: str, arguments: list[Any], seed: int = 0, wanted: bool = True) -> Any:
        """Call an operator of a namespace, or a function of a module; return its result, and the arguments afterwards.

        `seed` draws the order of the emulated threads, 0 keeps them in order. Unless the result is wanted, nothing
        comes back, and gradients are computed where there are some. Raise Fault if it did what no kernel may do, and
        Raised if it raised.
        """
        process = self._alive()
        try:
            write(process.stdin, (library, name, arguments, seed, wanted))
            error, result, after = self._answer(process)
        except (EOFError, BrokenPipeError):
            code = process.wait(60)
            raise Fault(f"{library}::{name} ended the process ({code}):\n{self._said()}") from None
        if error is None:
            return result, after
        if "CUDA emulation:" in result:
            raise Fault(result)
        raise Raised(error, result)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            libraries = []
            if self._sanitized:
                libraries = [str(path) for path in build()]
                environment |= {
                    "LD_PRELOAD": " ".join(_runtime(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")),
                    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=2048:"
                    "detect_odr_violation=0",
                    "UBSAN_OPTIONS": "print_stacktrace=1",
                    "SEAMSEG_PLAIN_OPS": "1",
                }
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the process)
            command = [sys.executable, "-m", "tests.support.cuda_emulation.worker", *libraries]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self._stderr, env=environment, cwd=ROOT
            )
            try:
                self._answer(self._process)
            except EOFError:
                raise Fault(f"the process did not start:\n{self._said()}") from None
        return self._process

    def _answer(self, process: subprocess.Popen[bytes]) -> Any:
        if not select([process.stdout], [], [], HANG_SECONDS)[0]:
            self.close()
            raise Fault(f"no answer after {HANG_SECONDS} s:\n{self._said()}")
        return read(process.stdout)

    def _said(self) -> str:
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace")
        start = max(said.rfind("ERROR: AddressSanitizer"), said.rfind("runtime error:") - 200, 0)
        return said[start:][:4000] if start else said[-3000:]
