"""benchmarks/gpu_tables.py: the tables that follow from the results of `gpu.py`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import gpu_tables

ROOT = Path(__file__).parents[2]
DOCUMENTS = {name for name, _, _ in gpu_tables.PLACES}


def record(step, results, status="done"):
    """As gpu.py writes it."""
    said = {"device": "NVIDIA H200", "date": "2026-11-22 10:00 UTC", "small": False, "results": results}
    return {"step": step, "status": status, **said, "kernels": {"CPU": "loaded", "GPU": "loaded"}}


def some_results():
    """Two done, one failed."""
    rows = [
        {"side": "plain", "seconds": 1.0, "speed_ratio": 1.0, "peak_mib": 9000.0, "peak_ratio": 1.0, "of_ceiling": 0.1},
        {"side": "fast", "seconds": 0.25, "speed_ratio": 4.0, "peak_mib": 4500.0, "peak_ratio": 0.5, "of_ceiling": 0.4},
    ]
    fused = {"case": "fuse + to_result", "ours_ms": 2.5, "peer": "p", "peer_ms": 9.0}
    return {
        "train_step": record("train_step", {"rows": rows}),
        "ops.failed": record("ops", {"reason": "exit code 1"}, "failed"),
        "fusion": record("fusion", {"rows": [fused]}),
    }


def test_the_tables_are_those_of_the_results():
    for name, text in gpu_tables.rendered(gpu_tables.read(ROOT / "benchmarks/results"), ROOT).items():
        assert (ROOT / name).read_text() == text, f"{name}: python benchmarks/gpu.py --steps tables"


def test_tables_follow_the_results_and_go_back(tmp_path):
    documents = tmp_path
    for name in DOCUMENTS:
        (documents / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, documents / name)
    gpu_tables.write({}, documents)
    before = {name: (documents / name).read_text() for name in DOCUMENTS}
    assert all("not yet" in text for text in before.values())
    assert set(gpu_tables.write(some_results(), documents)) == DOCUMENTS
    state = (documents / "benchmarks/results/README.md").read_text()
    assert "| >= 4.2 times | 4.00 times (fast), missed (NVIDIA H200, 2026-11-22) |" in state
    assert "| <= 0.48 times | 0.50 times (fast), missed (NVIDIA H200, 2026-11-22) |" in state
    assert "| <= 2 ms | 2.50 ms, missed (NVIDIA H200, 2026-11-22) |" in state
    assert "| >= 100 images/s | **not yet** |" in state
    assert "**failed** (2026-11-22, NVIDIA H200): exit code 1" in state
    assert gpu_tables.write(some_results(), documents) == []
    gpu_tables.write({}, documents)
    assert {name: (documents / name).read_text() for name in DOCUMENTS} == before
