"""Process settings: applied in the process itself, inherited by child processes, overridden by those of the user."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from seamseg.utils import process_settings

PROGRAM = """
import ctypes, subprocess, sys
import seamseg
from seamseg.utils import process_settings
if "apply" in sys.argv:
    process_settings.apply()

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]

def in_heap(mebibytes):
    address = libc.malloc(mebibytes << 20)
    line = next(line for line in open("/proc/self/maps") if "[heap]" in line)
    start, end = (int(word, 16) for word in line.split()[0].split("-"))
    return start <= address < end

print("kept:", in_heap(100), in_heap(300))
print(process_settings.malloc_status())
print(process_settings.openmp_status())
if "torch" in sys.argv:
    import torch
if "child" in sys.argv:
    subprocess.run([sys.executable, sys.argv[0]], check=True)
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
gnu_openmp = pytest.mark.skipif(sys.platform != "linux", reason="torch has another OpenMP library")


def lines(tmp_path, *words: str, **extra: str) -> list[str]:
    """What the program prints, without settings of this process but with `extra` ones."""
    (tmp_path / "program.py").write_text(PROGRAM)
    unwanted = (*process_settings.MALLOC, process_settings.MALLOC_SWITCH, "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    env = {name: value for name, value in os.environ.items() if name not in unwanted} | extra
    command = [sys.executable, str(tmp_path / "program.py"), *words]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return done.stdout.splitlines()


@glibc
def test_the_allocator_is_set_here_and_in_processes_started_from_here(tmp_path) -> None:
    printed = lines(tmp_path, "apply", "child")
    assert printed.count("kept: True False") == 2
    assert printed.count("large buffers are kept") == 2
    assert printed.count(f"GOMP_SPINCOUNT={process_settings.SPIN['GOMP_SPINCOUNT']}") == 2


@glibc
def test_an_import_changes_nothing(tmp_path) -> None:
    kept, malloc, spin = lines(tmp_path)
    assert kept == "kept: False False"
    assert malloc.startswith("glibc defaults")
    assert spin.startswith("libgomp default")


@glibc
def test_settings_of_the_user_are_left_alone(tmp_path) -> None:
    kept, malloc, spin = lines(tmp_path, "apply", MALLOC_TOP_PAD_="1000000", OMP_WAIT_POLICY="active")
    assert kept == "kept: False False"
    assert malloc == "large buffers are kept"
    assert spin == "OMP_WAIT_POLICY=active"


@glibc
@pytest.mark.parametrize("value", ["off", "OFF", "0"])
def test_the_allocator_can_be_left_alone(tmp_path, value: str) -> None:
    kept, malloc, _ = lines(tmp_path, "apply", SEAMSEG_MALLOC=value)
    assert kept == "kept: False False"
    assert malloc == f"switched off by SEAMSEG_MALLOC={value}"


@pytest.mark.slow
@gnu_openmp
def test_torch_loads_openmp_with_the_setting(tmp_path) -> None:
    printed = lines(tmp_path, "apply", "torch", OMP_DISPLAY_ENV="verbose")
    assert any(f"GOMP_SPINCOUNT = '{process_settings.SPIN['GOMP_SPINCOUNT']}'" in line for line in printed)


def test_openmp_is_left_alone_once_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", pytest)
    monkeypatch.setenv(process_settings.MALLOC_SWITCH, "off")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    process_settings.apply()
    assert "GOMP_SPINCOUNT" not in os.environ


def test_other_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(process_settings.ctypes, "CDLL", lambda *args: pytest.fail("libc was called"))
    for name in process_settings.MALLOC:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "1")
    process_settings.apply()
    assert process_settings.malloc_status() == "not glibc: unchanged"


TRAINING = """
import hashlib
from seamseg.utils import process_settings
process_settings.apply()
import torch
from seamseg.ops.norm import InPlaceABN

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), InPlaceABN(32), torch.nn.Conv2d(32, 64, 3), InPlaceABN(64))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    net(torch.randn(2, 3, 64, 64)).square().mean().backward()
    optimizer.step()
weights = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
print(torch.get_num_threads(), hashlib.sha256(weights).hexdigest())
"""


@gnu_openmp
@pytest.mark.slow
def test_the_time_that_threads_spin_does_not_change_the_result() -> None:
    results = []
    for variables in ({}, {"OMP_WAIT_POLICY": "passive"}):
        env = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        command = [sys.executable, "-c", TRAINING]
        env |= {"OMP_NUM_THREADS": "2", **variables}
        results.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    printed = {process.communicate()[0] for process in results}
    assert len(printed) == 1
    assert printed.pop().startswith("2 ")


@glibc
@pytest.mark.parametrize("photo", ["large", "small"])
def test_memory_of_large_photos_is_returned(tmp_path, photo) -> None:
    program = f"""
import ctypes
from pathlib import Path
from seamseg.utils import process_settings
process_settings.apply()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
blocks = [libc.malloc(16 << 20) for _ in range(8)]
for block in blocks:
    ctypes.memset(block, 1, 16 << 20)
for block in blocks:
    libc.free(block)
pages = lambda: int(Path("/proc/self/statm").read_text().split()[1])
before = pages()
process_settings.return_memory(process_settings.LARGE_PIXELS - {photo == "small":d})
print((before - pages()) * 4096 > 100 << 20)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == str(photo == "large")
