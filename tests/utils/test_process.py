"""Process settings: applied in the process itself, inherited by child processes, overridden by those of the user."""

import os
import platform
import subprocess
import sys

import pytest

from seamseg.utils import process

PROGRAM = """
import ctypes, subprocess, sys
import seamseg
from seamseg.utils import process
if "apply" in sys.argv:
    process.apply_settings()

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]

def in_heap(mebibytes):
    address = libc.malloc(mebibytes << 20)
    line = next(line for line in open("/proc/self/maps") if "[heap]" in line)
    start, end = (int(word, 16) for word in line.split()[0].split("-"))
    return start <= address < end

print("kept:", in_heap(100), in_heap(300))
print(process.malloc_status())
print(process.openmp_status())
if "child" in sys.argv:
    subprocess.run([sys.executable, sys.argv[0]], check=True)
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")


def lines(tmp_path, *words, **extra):
    (tmp_path / "program.py").write_text(PROGRAM)
    unwanted = (*process.MALLOC, process.MALLOC_SWITCH, "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    env = {name: value for name, value in os.environ.items() if name not in unwanted} | extra
    command = [sys.executable, str(tmp_path / "program.py"), *words]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return done.stdout.splitlines()


@glibc
def test_the_allocator_is_set_here_and_in_processes_started_from_here(tmp_path):
    printed = lines(tmp_path, "apply", "child")
    assert printed.count("kept: True False") == 2
    assert printed.count("large buffers are kept") == 2
    assert printed.count(f"GOMP_SPINCOUNT={process.SPIN['GOMP_SPINCOUNT']}") == 2


@glibc
@pytest.mark.parametrize(
    ("words", "variables", "malloc", "spin"),
    [
        ((), {}, "glibc defaults", "libgomp default"),
        (("apply",), {"SEAMSEG_MALLOC": "OFF"}, "switched off by SEAMSEG_MALLOC=OFF", "GOMP_SPINCOUNT"),
        (("apply",), {"MALLOC_TOP_PAD_": "9", "OMP_WAIT_POLICY": "active"}, "large buffers are kept", "OMP_WAIT_"),
    ],
)
def test_an_import_changes_nothing_nor_what_the_user_has_set(tmp_path, words, variables, malloc, spin):
    kept, *status = lines(tmp_path, *words, **variables)
    assert kept == "kept: False False"
    assert status[0].startswith(malloc)
    assert status[1].startswith(spin)
