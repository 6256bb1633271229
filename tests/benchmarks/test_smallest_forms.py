"""Every script of benchmarks/ in its smallest form succeeds, and writes its table and JSON."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {"timing", "street", "networks", "gpu_machine", "gpu_steps", "gpu_tables"}
CASE = r"\d  .+ +\d+\.\d\d +\d+\.\d\d"
"""A row of `timing.report`: milliseconds, the peer, its milliseconds, the ratio."""
SMALLEST: dict[str, tuple[str, str]] = {
    "bandwidth": ("statistics --small --rounds 1 --json OUT", r"abn_statistics +\d+x.* \d"),
    "calls": ("--json OUT", r"\d\d+ functions in \d\d+ files, \d\d+ of them before"),
    "demo": (
        "fp32 --train 2 --val 1 --epochs 1 --set scheduler.burn_in_steps=0 --set dataloader.train_batch_size=2 "
        "--set general.log_interval=1 --json OUT",
        r"fp32 +\d+ +\d+ +\d+\.\d+ +\d+\.\d\d",
    ),
    "exported": (
        "fp32 onnx openvino-int8 --config toy_city_r18 --size 64x96 --rounds 1 --json OUT",
        r"onnx( +\d+\.\d+){3}\n*openvino-int8( +\d+\.\d+){3}",
    ),
    "figures": ("", r"\d+ figures agree"),
    "fusion": ("--rounds 1 --json OUT", CASE),
    "gpu": ("--device cpu --small --steps build,fusion,tables --out OUT", r"fusion +done"),
    "inference": (
        "fp32 plain maskrcnn fp32/300 --rounds 1 --sizes 64 --json OUT",
        r"plain takes \d.*\n.*maskrcnn takes \d.*\n.*fp32/300 takes \d",
    ),
    "int8": ("--train 2 --val 1 --epochs 1 --calibrate 1 --rounds 1 --json OUT", r"onnx int8 +\d.*PQ"),
    "kernels": ("6000 backward noise --rounds 1 --json OUT", CASE),
    "loading": ("crop --rounds 1 --size 128 --json OUT", r"images/s, peer \d"),
    "memory": ("--size 64 128 --json OUT", r"in-place ABN( +\d+\.\d+){4}"),
    "models": ("toy_city_r18 --json OUT", r"toy_city_r18 +\d+\.\d\d s, peak \d\.\d\d GB"),
    "network": ("--rounds 1 --side 64 --config toy_city_r18 --json OUT", r"separated( +\d+\.\d+){4}"),
    "panoptic_quality": ("--pairs 2 --rounds 1 --workers 1 --json OUT", r"seamseg +\d"),
    "ray_data": ("--help", r"Compare the throughput"),
    "throughput": (
        "plain --device cpu --size 64x96 --rounds 1 --photos 2 --workers 0 --config toy_city_r18 --profile --json OUT",
        r"plain +predict +\d.*images/s",
    ),
    "train_step": (
        "--device cpu --size 64x128 --rounds 1 --config toy_city_r18 --json OUT",
        r"eager +\d(.|\n)*checkpointed, not compiled +\d",
    ),
    "training_memory": ("--size 64x128 --config toy_city_r18 --json OUT", r"eager +\d+ +\d\.\d+ +\d"),
}


def test_every_script_is_listed():
    assert {path.stem for path in (ROOT / "benchmarks").glob("*.py")} == set(SMALLEST) | MODULES


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), SMALLEST.items())
def test_smallest_form(name, form, tmp_path):
    words, wanted = form
    out = tmp_path / "out"
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *shlex.split(words.replace("OUT", str(out)))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "TORCHDYNAMO_DISABLE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert re.search(wanted, done.stdout), done.stdout[-3000:]
    if "--json" in words:
        assert json.loads(out.read_text())
