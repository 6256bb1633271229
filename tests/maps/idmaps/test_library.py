"""With and without the C library: maps are read and compared in any case, without torch."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from seamseg.maps.formats.id_png import write_id_png

REPORT = """
import json, sys
from seamseg.maps.formats.id_png import read_id_runs
from seamseg.maps.idmaps import id_runs, library
runs = read_id_runs(sys.argv[1])
pairs, counts = id_runs.joint_histogram_of_runs(runs, runs)
print(json.dumps([library.state, pairs.tolist(), counts.tolist(), "torch" in sys.modules]))
"""


@pytest.mark.parametrize(("plain", "state"), [("", "loaded"), ("1", "switched off by SEAMSEG_PLAIN_OPS")])
def test_with_and_without(tmp_path, plain, state):
    write_id_png(tmp_path / "map.png", np.array([[7, 7, 9], [0, 9, 70_000]]))
    command = [sys.executable, "-c", REPORT, str(tmp_path / "map.png")]
    environment = {**os.environ, "SEAMSEG_PLAIN_OPS": plain}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [state, [[i, i] for i in (0, 7, 9, 70_000)], [1, 2, 2, 1], False]
    assert done.stderr == ""
