"""With, without and with a broken C library: the reported state; maps are read and compared in any case."""

import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from support.png_streams import stream_of

import seamseg
from seamseg.formats.id_png import write_id_png
from seamseg.idmaps import library
from seamseg.idmaps.histogram import joint_histogram
from seamseg.idmaps.id_runs import decode_id_runs

PACKAGE = Path(seamseg.__file__).parent
# the clone may be installed as editable: its library is not that of the copy
REPORT = """
import json, sys
from seamseg.formats.id_png import read_id_runs
from seamseg.idmaps import id_runs, library
runs = read_id_runs(sys.argv[1])
pairs, counts = id_runs.joint_histogram_of_runs(runs, runs)
print(json.dumps([library.state, pairs.tolist(), counts.tolist(), "torch" in sys.modules]))
"""


@pytest.fixture
def report(tmp_path):
    ids = np.array([[7, 7, 9], [0, 9, 70_000]])
    write_id_png(tmp_path / "map.png", ids)

    def run(path=PACKAGE.parent, **variables):
        environment = {**os.environ, **variables, "PYTHONPATH": str(path)}
        command = [sys.executable, "-c", REPORT, str(tmp_path / "map.png")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=path)
        state, pairs, counts, torch = json.loads(done.stdout)
        assert pairs == [[i, i] for i in (0, 7, 9, 70_000)]
        assert counts == [1, 2, 2, 1]
        assert not torch
        return state, done.stderr

    return run


@pytest.fixture
def copy(tmp_path):
    """The package without what was compiled, and without sources to compare it with."""
    shutil.copytree(PACKAGE, tmp_path / "seamseg", ignore=shutil.ignore_patterns("*.so", "kernels.json", "__pycache__"))
    return tmp_path


def test_loaded(report):
    assert library.state == "loaded"
    assert report() == ("loaded", "")


def test_switched_off(report):
    assert report(SEAMSEG_PLAIN_OPS="1") == ("switched off by SEAMSEG_PLAIN_OPS", "")


def test_never_built(report, copy):
    state, said = report(copy)
    assert state == "they were never built"
    assert said.count("no compiled functions for maps of ids: they were never built. Everything works, slower.") == 1
    assert "pip install --no-build-isolation" in said


def test_reason_of_the_build(report, copy):
    (copy / "seamseg/kernels.json").write_text('{"_maps": "no C++ compiler was found"}')
    assert report(copy)[0] == "no C++ compiler was found"


@pytest.mark.parametrize("content", [b"not a library", None])
def test_invalid_libraries(report, copy, content):
    (copy / "seamseg/kernels.json").write_text('{"_maps": "built"}')
    target = copy / "seamseg/_maps.abi3.so"
    if content is None:  # a library without our functions
        other = next((PACKAGE.parent / "seamseg").glob("_maps*.so"))
        names = other.read_bytes().replace(b"seamseg_take_pairs", b"seamseg_take_rocks")
        target.write_bytes(names)
    else:
        target.write_bytes(content)
    state, said = report(copy)
    assert state.startswith("they do not load here (")
    assert said.count("UserWarning") == 1


def test_built_from_other_sources(report, copy):
    shutil.copytree(PACKAGE.parent / "csrc", copy / "csrc")
    shutil.copy(next(PACKAGE.glob("_maps*.so")), copy / "seamseg")
    (copy / "seamseg/kernels.json").write_text((PACKAGE / "kernels.json").read_text())
    assert report(copy) == ("loaded", "")
    (copy / "csrc/maps/answer.h").write_text("// changed")
    assert report(copy)[0] == "they do not load here (csrc has changed since they were compiled: make kernels)"


def _resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_results_are_freed_without_memory_for_arrays(monkeypatch):
    ids = np.arange(1 << 20).reshape(1024, 1024)
    stream = stream_of(ids, np.zeros(1024, np.uint8), 1, zlib.Z_RLE, 15)

    def full(*_):
        raise MemoryError

    def fail():
        for call in (lambda: joint_histogram(ids, ids), lambda: decode_id_runs(stream, 1024, 1024)):
            with pytest.raises(MemoryError):
                call()

    monkeypatch.setattr(library.np, "empty", full)
    fail()
    before = _resident()
    for _ in range(5):
        fail()
    # a histogram has 24 MiB, the runs have 8
    assert _resident() - before < 100 << 20
