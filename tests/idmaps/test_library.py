"""With, without and with a broken C library: the reported state; maps are read and compared in any case."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import seamseg
from seamseg.formats.id_png import write_id_png
from seamseg.idmaps import library

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


def test_with_and_without(report):
    assert library.state == "loaded"
    assert report() == ("loaded", "")
    assert report(SEAMSEG_PLAIN_OPS="1") == ("switched off by SEAMSEG_PLAIN_OPS", "")
