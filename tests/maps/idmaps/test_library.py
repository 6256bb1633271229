"""With and without the C library: maps are read and compared in any case, without torch; failed allocations."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from support.png_streams import stream_of

from seamseg.maps.formats.id_png import write_id_png
from seamseg.maps.idmaps import library
from seamseg.maps.idmaps.histogram import joint_histogram
from seamseg.maps.idmaps.id_runs import decode_id_runs

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


def test_no_memory_for_results(monkeypatch):
    ids = np.arange(12).reshape(3, 4)
    stream = stream_of(ids, [0] * 3)
    monkeypatch.setattr(library.np, "empty", lambda *_: (_ for _ in ()).throw(MemoryError))
    for call in (lambda: joint_histogram(ids, ids), lambda: decode_id_runs(stream, 3, 4)):
        with pytest.raises(MemoryError):
            call()
